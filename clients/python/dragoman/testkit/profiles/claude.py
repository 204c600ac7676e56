"""Claude Code."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

CLAUDE: Final = AgentProfile(
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
        "write": NativeTool("Write", {"file_path": "path", "content": "content"}),
        "read": NativeTool("Read", {"file_path": "path"}),
        "edit": NativeTool("Edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
        "shell": NativeTool("Bash", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": NativeTool(
            "Bash",
            {"command": "command"},
            {"description": "Run a scripted command", "run_in_background": True},
        ),
        "skill": NativeTool("Skill", {"skill": "name"}),
        "ask": NativeTool("AskUserQuestion", {"questions": "questions"}),
        "subagent": NativeTool(
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
