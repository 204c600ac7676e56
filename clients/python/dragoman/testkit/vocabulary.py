"""What an agent calls the neutral tool actions of the scripts."""

from collections.abc import Mapping
from dataclasses import replace

from dragoman.testkit.families import FAMILIES
from dragoman.testkit.family import Native
from dragoman.testkit.scenarios import Reply, Tool


def in_own_words(reply: Reply, offered: tuple[str, ...], tools: Mapping[str, Native] | None = None) -> Reply:
    """Return a reply whose tool calls are those of the asking agent.

    Args:
        reply: What the script says.
        offered: Tool names that the request offers.
        tools: The agent's own tools, if it is known which agent asks; None recognises it by what it offers.
    """
    if not any(isinstance(block, Tool) for block in reply.blocks):
        return reply
    words = tools if tools is not None else _recognised(offered)
    return replace(
        reply, blocks=tuple(_translated(block, words) if isinstance(block, Tool) else block for block in reply.blocks)
    )


def _recognised(offered: tuple[str, ...]) -> Mapping[str, Native]:
    """Return the tools of the family of which the request offers the most; none if it offers none of any."""

    def known(tools: Mapping[str, Native]) -> int:
        return len({tool.name for tool in tools.values()} & set(offered))

    best = max((family.tools for family in FAMILIES.values()), key=known)
    return best if known(best) else {}


def _translated(tool: Tool, words: Mapping[str, Native]) -> Tool:
    own = words.get(tool.action)
    if own is None:
        return tool  # a native name already
    named = {theirs: tool.inputs[ours] for theirs, ours in own.inputs.items() if ours in tool.inputs}
    written = {field: _written(text, tool.inputs) for field, text in own.templates.items()}
    return replace(tool, action=own.name, inputs={**named, **written, **own.constants})


def _written(text: str, inputs: Mapping[str, object]) -> str:
    for name, value in inputs.items():
        text = text.replace(f"<{name}>", str(value))
    return text
