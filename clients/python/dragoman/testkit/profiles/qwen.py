"""Qwen Code."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

QWEN: Final = AgentProfile(
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
        "write": NativeTool("write_file", {"file_path": "path", "content": "content"}),
        "read": NativeTool("read_file", {"file_path": "path"}),
        "edit": NativeTool("edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
        "shell": NativeTool(
            "run_shell_command",
            {"command": "command"},
            {"description": "Run a scripted command", "is_background": False},
        ),
        "background": NativeTool(
            "run_shell_command",
            {"command": "command"},
            {"description": "Run a scripted command", "is_background": True},
        ),
        "skill": NativeTool("skill", {"skill": "name"}),
        "ask": NativeTool("ask_user_question", {"questions": "questions"}),
        "subagent": NativeTool(
            "agent", {"prompt": "prompt"}, {"description": "Scripted helper", "subagent_type": "general-purpose"}
        ),
    },
)
