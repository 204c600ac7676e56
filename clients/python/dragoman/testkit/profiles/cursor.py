"""Cursor's agent in the terminal, by its documentation; the tools are those of the stand-in in the tests."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

CURSOR: Final = AgentProfile(
    executable="cursor-agent",
    config=".cursor",
    environment={"CURSOR_CONFIG_DIR": "{config}"},
    model={"FAKE_CURSOR_MODEL_URL": "{url}", "CURSOR_API_KEY": "{key}"},
    tools={
        "write": NativeTool("write", {"path": "path", "fileText": "content"}),
        "read": NativeTool("read", {"path": "path"}),
        "shell": NativeTool("shell", {"command": "command"}),
    },
)
