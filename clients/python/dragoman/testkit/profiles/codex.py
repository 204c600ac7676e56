"""Codex, with the tools it offers to models of its direct mode; `CODE_MODE_MODEL` is one of the other mode."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

MODEL: Final = "gpt-5.5"
CODE_MODE_MODEL: Final = "gpt-6.1-sol"

#: A provider of our own, as the built-in one tries WebSockets first. Fewer retries than usual, for the time's sake.
_CONFIG: Final = """\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false

[features]
plugins = false

[analytics]
enabled = false

[feedback]
enabled = false

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "SCRIPTED_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
"""

CODEX: Final = AgentProfile(
    executable="codex",
    config=".codex",
    environment={"CODEX_HOME": "{config}"},
    model={"SCRIPTED_API_KEY": "{key}"},
    model_files={".codex/config.toml": _CONFIG},
    tools={
        "write": NativeTool("apply_patch", {"path": "path", "content": "content"}),
        "edit": NativeTool("apply_patch", {"path": "path", "old": "old", "new": "new"}),
        "read": NativeTool("exec_command", templates={"cmd": "cat '<path>'"}),
        "shell": NativeTool("exec_command", {"cmd": "command"}, {"yield_time_ms": 30000}),
        "background": NativeTool("exec_command", {"cmd": "command"}, {"yield_time_ms": 250}),
        "subagent": NativeTool(
            "collaboration.spawn_agent", {"message": "prompt"}, {"task_name": "helper", "fork_turns": "none"}
        ),
    },
    login_file="auth.json",
    login={"OPENAI_API_KEY": "sk-fake-0000-dragoman-testkit"},
)
