"""What an agent reports beside its words: tool calls and their results, tokens."""

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import Kit
from dragoman.v1 import event_pb2 as pb

_MODEL = "MOCK_READ"
_INPUT, _OUTPUT = 11, 7
_COUNTING = {pb.FEATURE_PER_CALL_USAGE, pb.FEATURE_PER_MODEL_USAGE}


@check("tools.results")
async def results(kit: Kit) -> None:
    """Let a tool call run to its end. Whether the IDs fit is another rule's: it looks at every stream."""
    stream = await kit.run(kit.request("tool=conformance", "say=done", model=_MODEL))
    calls = {call.id: call for call in stream.of("tool_call")}
    ended = stream.of("tool_result")
    if not (calls or ended or kit.has(pb.FEATURE_TOOL_START)):
        raise Skip("FEATURE_TOOL_START is not declared, and no tool call is reported")
    expect(calls, "a tool call of the agent is in no event")
    expect(all(call.name for call in calls.values()), "a tool call has no name")
    expect(len(ended) >= len(calls), f"{len(calls)} tool calls, and {len(ended)} results")
    expect(all(result.status for result in ended), "a tool result has no status")


async def _tokens(kit: Kit, step: str) -> list[pb.TokenCounts]:
    """Return all token counts that a run reports.

    Raises:
        Skip: it reports none, and the adapter does not declare that it would.
    """
    stream = await kit.run(kit.request(step, "say=done", model="MOCK_TEXT"))
    reports = [*stream.of("usage"), *([stream.result.usage] if stream.result.HasField("usage") else [])]
    counts = [report.tokens for report in reports if report.HasField("tokens")]
    counts += [item.tokens for report in reports for item in report.models if item.HasField("tokens")]
    if not counts and not any(kit.has(feature) for feature in _COUNTING):
        raise Skip("the adapter reports no tokens, and declares no feature that needs them")
    expect(counts, "tokens that the agent reports are in no usage, neither of an event nor of the result")
    return counts


@check("usage.reported")
async def reported(kit: Kit) -> None:
    """Report tokens."""
    counts = await _tokens(kit, f"usage={_INPUT},{_OUTPUT}")
    if kit.setup.agent == "script":
        found = [(count.input, count.output) for count in counts]
        expect((_INPUT, _OUTPUT) in found, f"{found} where {_INPUT} input and {_OUTPUT} output tokens are due")
    else:
        expect(any(count.input and count.output for count in counts), "input or output tokens are missing")


@check("usage.absent")
async def absent(kit: Kit) -> None:
    """Report input tokens alone."""
    if kit.setup.agent == "model":
        raise Skip("a scripted model reports every count")
    counts = await _tokens(kit, f"usage={_INPUT},")
    present = [count for count in counts if count.HasField("output")]
    expect(not present, f"output tokens are {[count.output for count in present]}, although none were reported")
