"""Gemini CLI."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

GEMINI: Final = AgentProfile(
    executable="gemini",
    config=".gemini",
    environment={"GEMINI_CLI_HOME": "{home}", "NO_BROWSER": "true"},
    # With a model in the settings, the agent does not ask a model to choose one.
    model={"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "{key}", "GEMINI_MODEL": "gemini-2.5-flash"},
    files={
        ".gemini/settings.json": '{{"privacy": {{"usageStatisticsEnabled": false}}, '
        '"telemetry": {{"enabled": false}}, '
        '"model": {{"disableLoopDetection": true}}, '  # scripted texts repeat themselves
        '"general": {{"maxAttempts": 2, "enableAutoUpdate": false, "enableAutoUpdateNotification": false}}, '
        '"security": {{"auth": {{"selectedType": "gemini-api-key"}}}}}}',
    },
    tools={
        "write": NativeTool("write_file", {"file_path": "path", "content": "content"}),
        "read": NativeTool("read_file", {"file_path": "path"}),
        "edit": NativeTool(
            "replace",
            {"file_path": "path", "old_string": "old", "new_string": "new"},
            {"instruction": "Change it."},
        ),
        "shell": NativeTool("run_shell_command", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": NativeTool(
            "run_shell_command",
            {"command": "command"},
            {"description": "Run a scripted command", "is_background": True},
        ),
        "skill": NativeTool("activate_skill", {"name": "name"}),
        "ask": NativeTool("ask_user", {"questions": "questions"}),
    },
    login_file="oauth_creds.json",
    login={
        "access_token": "ya29.fake",
        "refresh_token": "1//fake",
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "token_type": "Bearer",
    },
    login_expiry=("expiry_date",),
)
