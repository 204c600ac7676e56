"""The model APIs' own loop: no program, one profile for each wire format that it speaks."""

from typing import Final

from dragoman.testkit.profiles.agent_profile import AgentProfile, NativeTool

_TOOLS: Final = {
    "write": NativeTool("Write", {"file_path": "path", "content": "content"}),
    "read": NativeTool("Read", {"file_path": "path"}),
    "edit": NativeTool("Edit", {"file_path": "path", "old_string": "old", "new_string": "new"}),
}
_STATE: Final = ".local/state/dragoman/model_api"

MODEL_API_ANTHROPIC: Final = AgentProfile(
    executable="",
    config=_STATE,
    model={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "{key}"},
    tools=_TOOLS,
)
MODEL_API_OPENAI: Final = AgentProfile(
    executable="",
    config=_STATE,
    model={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "scripted-1"},
    tools=_TOOLS,
)
