"""The model APIs' own loop: no program, one family for each wire format that it speaks."""

from typing import Final

from dragoman.testkit.family import AgentFamily, Native

_TOOLS: Final = {
    "write": Native("Write", {"file_path": "path", "content": "content"}),
    "read": Native("Read", {"file_path": "path"}),
    "edit": Native("Edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
}
_STATE: Final = ".local/state/dragoman/model_api"

MODEL_API_ANTHROPIC: Final = AgentFamily(
    executable="",
    config=_STATE,
    model={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}"},
    tools=_TOOLS,
)
MODEL_API_OPENAI: Final = AgentFamily(
    executable="",
    config=_STATE,
    model={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "scripted-1"},
    tools=_TOOLS,
)
