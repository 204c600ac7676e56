"""Cursor's agent in the terminal, as far as its documentation says; the tools are those of the fake in the tests."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

CURSOR: Final = AgentFamily(
    executable="cursor-agent",
    config=".cursor",
    environment={"CURSOR_CONFIG_DIR": "{config}"},
    model={"FAKE_CURSOR_MODEL_URL": "{url}", "CURSOR_API_KEY": "{key}"},
    tools={
        "write": Native("write", {"path": "path", "fileText": "content"}),
        "read": Native("read", {"path": "path"}),
        "shell": Native("shell", {"command": "command"}),
    },
)
