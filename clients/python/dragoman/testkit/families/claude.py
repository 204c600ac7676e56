"""Claude Code."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

CLAUDE: Final = AgentFamily(
    executable="claude",
    config=".claude",
    environment={
        "CLAUDE_CONFIG_DIR": "{config}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    },
    model={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}"},
    tools={
        "write": Native("Write", {"file_path": "path", "content": "content"}),
        "read": Native("Read", {"file_path": "path"}),
        "edit": Native("Edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
        "shell": Native("Bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": Native(
            "Bash",
            {"command": "command"},
            {"description": "Run a scripted command", "run_in_background": True},
        ),
        "skill": Native("Skill", {"skill": "name"}),
        "ask": Native("AskUserQuestion", {"questions": "questions"}),
        "subagent": Native(
            "Agent",
            {"prompt": "prompt"},
            {
                "description": "Scripted helper",
                "subagent_type": "general-purpose",
                "run_in_background": False,
            },
        ),
    },
    login_file=".credentials.json",
    login={
        "claudeAiOauth": {
            "accessToken": "sk-ant-oat01-fake",
            "refreshToken": "sk-ant-ort01-fake",
            "scopes": ["user:inference", "user:profile"],
            "subscriptionType": "max",
        }
    },
    login_expiry=("claudeAiOauth", "expiresAt"),
)
