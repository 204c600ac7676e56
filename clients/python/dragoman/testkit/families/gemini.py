"""Gemini CLI."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

GEMINI: Final = AgentFamily(
    executable="gemini",
    config=".gemini",
    environment={"GEMINI_CLI_HOME": "{home}", "NO_BROWSER": "true"},
    # With a model named, none is asked which one fits the prompt.
    model={"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "{key}", "GEMINI_MODEL": "gemini-2.5-flash"},
    files={
        ".gemini/settings.json": '{{"privacy": {{"usageStatisticsEnabled": false}}, '
        '"telemetry": {{"enabled": false}}, '
        '"model": {{"disableLoopDetection": true}}, '  # scripted texts repeat themselves
        '"general": {{"maxAttempts": 2, "enableAutoUpdate": false, "enableAutoUpdateNotification": false}}, '
        '"security": {{"auth": {{"selectedType": "gemini-api-key"}}}}}}',
    },
    tools={
        "write": Native("write_file", {"file_path": "path", "content": "content"}),
        "read": Native("read_file", {"file_path": "path"}),
        "edit": Native(
            "replace",
            {"file_path": "path", "old_string": "old", "new_string": "new"},
            {"instruction": "Change it."},
        ),
        "shell": Native("run_shell_command", {"command": "command"}, {"description": "Run a scripted command"}),
        "background": Native(
            "run_shell_command",
            {"command": "command"},
            {"description": "Run a scripted command", "is_background": True},
        ),
        "skill": Native("activate_skill", {"name": "name"}),
        "ask": Native("ask_user", {"questions": "questions"}),
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
