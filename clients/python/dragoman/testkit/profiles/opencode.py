"""opencode."""

import json
from typing import Any, Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

#: A custom provider as in ``opencode.json``; its models have a price, so that costs can be tested.
_CONFIG: Final[dict[str, Any]] = {
    "$schema": "https://opencode.ai/config.json",
    "model": "scripted/scripted-1",
    "provider": {
        "scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Scripted",
            "options": {"baseURL": "{env:SCRIPTED_BASE_URL}", "apiKey": "{env:SCRIPTED_API_KEY}"},
            "models": {
                name: {
                    "name": f"Scripted {name[-1]}",
                    "tool_call": True,
                    "reasoning": True,
                    "attachment": True,
                    "modalities": {"input": ["text", "image"], "output": ["text"]},
                    "limit": {"context": 200000, "output": 32000},
                    "cost": {"input": 1, "output": 2, "cache_read": 0.1, "cache_write": 1},
                }
                for name in ("scripted-1", "scripted-2")
            },
        }
    },
}

OPENCODE: Final = AgentProfile(
    executable="opencode",
    config=".config/opencode",
    environment={
        "XDG_CONFIG_HOME": "{home}/.config",
        "XDG_DATA_HOME": "{home}/.local/share",
        "XDG_STATE_HOME": "{home}/.local/state",
        "XDG_CACHE_HOME": "{home}/.cache",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_SHARE": "1",
        # Else each start reads the thousands of models that it was built with.
        "OPENCODE_MODELS_PATH": "{config}/catalogue.json",
        # It installs a package beside the user's configuration, in the background; here there is no registry.
        "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9",
    },
    files={
        ".config/opencode/catalogue.json": "{{}}",
        # As if that package were there: else each start looks for it again.
        ".config/opencode/node_modules/.package-lock.json": "{{}}",
        ".config/opencode/package-lock.json": (
            '{{"packages": {{"": {{"dependencies": {{"@opencode-ai/plugin": "*"}}}}}}}}'
        ),
    },
    model={"SCRIPTED_BASE_URL": "{url}/v1", "SCRIPTED_API_KEY": "{key}"},
    model_files={
        ".config/opencode/opencode.json": json.dumps(_CONFIG, indent=2).replace("{", "{{").replace("}", "}}")
    },
    tools={
        "write": NativeTool("write", {"filePath": "path", "content": "content"}),
        "read": NativeTool("read", {"filePath": "path"}),
        "edit": NativeTool("edit", {"filePath": "path", "oldString": "old", "newString": "new"}),
        "shell": NativeTool("bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": NativeTool("bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "skill": NativeTool("skill", {"name": "name"}),
        "ask": NativeTool("question", {"questions": "questions"}),
        "subagent": NativeTool(
            "task", {"prompt": "prompt"}, {"description": "Scripted helper", "subagent_type": "general"}
        ),
    },
    login_file="",
)
