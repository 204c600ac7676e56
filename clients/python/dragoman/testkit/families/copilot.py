"""GitHub Copilot CLI, with a model of one's own."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

COPILOT: Final = AgentFamily(
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
        "write": Native("create", {"path": "path", "file_text": "content"}),
        "read": Native("view", {"path": "path"}),
        "edit": Native("edit", {"path": "path", "old_str": "old", "new_str": "new"}),
        "shell": Native("bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": Native(
            "bash", {"command": "command"}, {"description": "Run a scripted command", "mode": "async"}
        ),
        "skill": Native("skill", {"skill": "name"}),
        "ask": Native("ask_user", {"questions": "questions"}),
        "subagent": Native(
            "task",
            {"prompt": "prompt"},
            {"agent_type": "task", "name": "helper", "description": "Scripted helper", "mode": "sync"},
        ),
    },
    login_file="config.json",
    login={"loggedInUsers": [{"host": "https://github.com", "login": "somebody"}]},
)
