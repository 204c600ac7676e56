"""GitHub Copilot CLI, with a model of one's own."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

COPILOT: Final = AgentProfile(
    executable="copilot",
    config=".copilot",
    environment={
        "COPILOT_HOME": "{config}",
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "XDG_CONFIG_HOME": "{home}/.config",
        "XDG_DATA_HOME": "{home}/.local/share",
        "XDG_STATE_HOME": "{home}/.local/state",
        # Its first start with a new cache unpacks 245 MB.
        "XDG_CACHE_HOME": "{bin}/../copilot-cache",
    },
    model={
        "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "{key}",
        "COPILOT_MODEL": "scripted-1",
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "900000",
    },
    tools={
        "write": NativeTool("create", {"path": "path", "file_text": "content"}),
        "read": NativeTool("view", {"path": "path"}),
        "edit": NativeTool("edit", {"path": "path", "old_str": "old", "new_str": "new"}),
        "shell": NativeTool("bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": NativeTool(
            "bash", {"command": "command"}, {"description": "Run a scripted command", "mode": "async"}
        ),
        "skill": NativeTool("skill", {"skill": "name"}),
        "ask": NativeTool("ask_user", {"questions": "questions"}),
        "subagent": NativeTool(
            "task",
            {"prompt": "prompt"},
            {"agent_type": "task", "name": "helper", "description": "Scripted helper", "mode": "sync"},
        ),
    },
    login_file="config.json",
    login={"loggedInUsers": [{"host": "https://github.com", "login": "tester"}]},
)
