"""Qwen Code."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

QWEN: Final = AgentFamily(
    executable="qwen",
    config=".qwen",
    environment={
        "QWEN_TELEMETRY_ENABLED": "false",
        "NO_PROXY": "127.0.0.1",
    },
    model={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "scripted-1"},
    files={
        ".qwen/settings.json": '{{"privacy": {{"usageStatisticsEnabled": false}},'
        ' "general": {{"enableAutoUpdate": false}},'
        ' "security": {{"auth": {{"selectedType": "openai"}}}}}}'
    },
    tools={
        "write": Native("write_file", {"file_path": "path", "content": "content"}),
        "read": Native("read_file", {"file_path": "path"}),
        "edit": Native("edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
        "shell": Native(
            "run_shell_command",
            {"command": "command"},
            {"description": "Run a scripted command", "is_background": False},
        ),
        "background": Native(
            "run_shell_command",
            {"command": "command"},
            {"description": "Run a scripted command", "is_background": True},
        ),
        "skill": Native("skill", {"skill": "name"}),
        "ask": Native("ask_user_question", {"questions": "questions"}),
        "subagent": Native(
            "agent", {"prompt": "prompt"}, {"description": "Scripted helper", "subagent_type": "general-purpose"}
        ),
    },
)
