"""Which of the shared tests an agent stands, and the shared scripts in its words."""

from typing import Final

import pytest
from dragoman.testkit.model_server.script import Delivery, Hold, Reply, Scenario, Step, Text, Tool, call, say
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Recipe


def why_not(recipe: Recipe, node: pytest.Item | pytest.Function) -> str:
    """Return why a shared test is not for this agent; empty if it is."""
    name = getattr(node, "originalname", "") or node.name
    exact = (node.name, name)
    for key in exact:
        if key in recipe.untestable:
            return f"not testable offline: {recipe.untestable[key]}"
        if key in recipe.cannot:
            return f"not supported by the agent: {recipe.cannot[key]}"
    info = recipe.make().describe()
    for mark in node.iter_markers("proves"):
        missing = [pb.Feature.Name(item)[8:].lower() for item in mark.kwargs["features"] if not info.has(item)]
        missing += [item for item in mark.kwargs["uses"] if item in recipe.lacks]
        if missing:
            return f"not supported by the agent: {', '.join(missing)}"
    return ""


_ROUNDS: Final = Scenario(
    "ROUNDS",
    "runs a command, then two others one after the other, then reports",
    (
        call(Tool("shell", {"command": "{arg:command|echo one}"})),
        call(Tool("shell", {"command": "echo two"})),
        call(Tool("shell", {"command": "echo three"})),
        say("Three rounds."),
    ),
    {"command": "the first command, in double quotes"},
)

INPUT_GATE: Final = "input"
"""Where a script pauses until its test has sent an input. A gate stays open for all tests that share a model, so no
other test may wait at one that a test opens."""
_WAIT_FOR_INPUT: Final = Scenario(
    "WAIT_FOR_INPUT",
    "answers once its test has sent an input",
    (Step((Reply((Text("After the input."),), delivery=Delivery(hold=Hold(INPUT_GATE))),)),),
)

_READ_ATTACHED: Final = Scenario(
    "READ_ATTACHED",
    "reads notes.txt among the attached files, then reports",
    (
        call(Tool("read", {"path": "{beside:attachments}/notes.txt"})),
        say("It says: {tool_result:-1|nothing}"),
    ),
)


def scripts(recipe: Recipe, more: tuple[Scenario, ...]) -> tuple[Scenario, ...]:
    """Return an agent's own scripts, and the shared ones in its words."""
    more = (*more, _ROUNDS, _WAIT_FOR_INPUT, _READ_ATTACHED)
    if not recipe.mcp_tool:
        return more
    steps = (call(Tool(recipe.mcp_tool, {"which": "first"})), say("Counted: {tool_result:-1|nothing}"))
    return (*more, Scenario("COUNT", "uses a tool of an MCP server, then reports", steps))
