"""opencode."""

import json
from typing import Any, Final

from dragoman.testkit.family import AgentFamily, Native

#: A provider of the user's own, as ``opencode.json`` tells it; its models cost something, so that cost can be seen.
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
                    "limit": {"context": 200000, "output": 32000},
                    "cost": {"input": 1, "output": 2, "cache_read": 0.1, "cache_write": 1},
                }
                for name in ("scripted-1", "scripted-2")
            },
        }
    },
}

OPENCODE: Final = AgentFamily(
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
        # It installs a package beside the user's configuration, in the background; here there is no registry.
        "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9",
    },
    model={"SCRIPTED_BASE_URL": "{url}/v1", "SCRIPTED_API_KEY": "{key}"},
    model_files={
        ".config/opencode/opencode.json": json.dumps(_CONFIG, indent=2).replace("{", "{{").replace("}", "}}")
    },
    tools={
        "write": Native("write", {"filePath": "path", "content": "content"}),
        "read": Native("read", {"filePath": "path"}),
        "edit": Native("edit", {"filePath": "path", "oldString": "old", "newString": "new"}),
        "shell": Native("bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": Native("bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "skill": Native("skill", {"name": "name"}),
        "ask": Native("question", {"questions": "questions"}),
        "subagent": Native(
            "task", {"prompt": "prompt"}, {"description": "Scripted helper", "subagent_type": "general"}
        ),
    },
    login_file="",
)
