"""An agent's own names for the neutral tool actions of scripts."""

from collections.abc import Mapping

from dragoman.testkit.model_server.script import Reply, Tool
from dragoman.testkit.profiles import PROFILES
from dragoman.testkit.profiles.agent_profile import NativeTool
from msgspec.structs import replace


def with_native_tools(reply: Reply, offered: tuple[str, ...], tools: Mapping[str, NativeTool] | None = None) -> Reply:
    """Return a reply whose tool calls are those of the agent.

    Args:
        reply: The script's reply.
        offered: Tool names that the request offers.
        tools: The agent's own tools, if the agent is known; None recognizes it by the tools that it offers.
    """
    if not any(isinstance(block, Tool) for block in reply.blocks):
        return reply
    native = tools if tools is not None else _recognized(offered)
    return replace(
        reply,
        blocks=tuple(_translated(block, native) if isinstance(block, Tool) else block for block in reply.blocks),
    )


def _recognized(offered: tuple[str, ...]) -> Mapping[str, NativeTool]:
    """Return the tools of the profile of which the request offers the most; none if it offers none of any."""

    def known(tools: Mapping[str, NativeTool]) -> int:
        return len({tool.name for tool in tools.values()} & set(offered))

    best = max((profile.tools for profile in PROFILES.values()), key=known)
    return best if known(best) else {}


def _translated(tool: Tool, native: Mapping[str, NativeTool]) -> Tool:
    own = native.get(tool.action)
    if own is None:
        return tool  # a native name already
    named = {theirs: tool.inputs[ours] for theirs, ours in own.inputs.items() if ours in tool.inputs}
    written = {field: _written(text, tool.inputs) for field, text in own.templates.items()}
    return replace(tool, action=own.name, inputs={**named, **written, **own.constants})


def _written(text: str, inputs: Mapping[str, object]) -> str:
    for name, value in inputs.items():
        text = text.replace(f"<{name}>", str(value))
    return text
