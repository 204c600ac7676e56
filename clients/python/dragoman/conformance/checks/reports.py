"""What an agent reports beside its words: tool calls, tokens, cost, reasoning, plans, files, nested agents."""

from decimal import Decimal, InvalidOperation
from pathlib import Path

from dragoman.conformance.check import Skip, check, expect
from dragoman.conformance.kit import Kit, gate, within
from dragoman.conformance.streams import Stream, is_kind
from dragoman.protocol.texts import enum_name
from dragoman.v1 import event_pb2 as pb

_MODEL = "MOCK_READ"
_INPUT, _OUTPUT = 11, 7
_MODELS = {"conformance-small": (11, 7), "conformance-large": (5, 3)}
"""What the calls of two models use: input and output tokens."""
_COST = "0.25"
_ARRIVES_WITHIN_S = 5.0
_LIVE = {pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_AWAITING_PERMISSION, pb.TOOL_STATUS_RUNNING}
_ENDED = {
    *(pb.TOOL_STATUS_COMPLETED, pb.TOOL_STATUS_FAILED, pb.TOOL_STATUS_DENIED),
    *(pb.TOOL_STATUS_CANCELLED, pb.TOOL_STATUS_TIMED_OUT),
}
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
    statuses = {result.status for result in ended}
    expect(
        statuses <= _ENDED, f"a tool result has the status {_status(statuses - _ENDED)}, which is not that of an end"
    )
    if kit.setup.agent == "script":
        done = {pb.TOOL_STATUS_COMPLETED}
        expect(statuses == done, f"the result of a tool that succeeded has the status {_status(statuses - done)}")


@check("tools.failed")
async def failed(kit: Kit) -> None:
    """Let a tool fail."""
    stream = await kit.run(kit.request("failing=conformance", "say=done"))
    ended = stream.of("tool_result")
    if not (ended or stream.of("tool_call") or kit.has(pb.FEATURE_TOOL_START)):
        raise Skip("FEATURE_TOOL_START is not declared, and no tool call is reported")
    expect(ended, "a tool call that failed has no result")
    statuses = {result.status for result in ended}
    expect(
        statuses == {pb.TOOL_STATUS_FAILED}, f"the result of a tool that failed has the status {_status(statuses)}"
    )
    denied = any(result.HasField("is_error") and not result.is_error for result in ended)
    expect(not denied, "is_error of a tool that failed is false")


def _status(statuses: set[pb.ToolStatus.ValueType]) -> str:
    """Return the names of statuses, for people."""
    return ", ".join(enum_name(pb.ToolStatus.DESCRIPTOR, status, "TOOL_STATUS_") for status in sorted(statuses))


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


async def _before_gate(kit: Kit, *steps: str, kind: str, fault: str) -> Stream:
    """Return the stream of a run whose agent waits after the steps, once an event of a kind came meanwhile."""
    with gate(kit) as path:
        stream = kit.execute(kit.request(*steps, f"wait={path}", "say=done"))
        async with within(kit, _ARRIVES_WITHIN_S, fault):
            await stream.until(is_kind(kind))
    return await stream.rest()


@check("tools.start")
async def start(kit: Kit) -> None:
    """Have an agent wait after the start of a tool call."""
    steps = ("call=conformance",)
    stream = await _before_gate(kit, *steps, kind="tool_call", fault="a tool call is not reported while it runs")
    status = stream.of("tool_call")[0].status
    expect(status in _LIVE, f"while a tool runs, its status is {_status({status})}")


@check("tools.output")
async def output(kit: Kit) -> None:
    """Have a tool print something, and wait."""
    steps = ("call=conformance", "output=a word of the tool")
    stream = await _before_gate(
        kit, *steps, kind="tool_output", fault="the output of a tool does not arrive meanwhile"
    )
    calls = {call.id for call in stream.of("tool_call")}
    pieces = stream.of("tool_output")
    expect("a word of the tool" in "".join(piece.text for piece in pieces), "the output of the tool is another one")
    expect({piece.tool_call_id for piece in pieces} <= calls, "tool_output.tool_call_id is that of no tool call")


@check("reports.text-deltas")
async def text_deltas(kit: Kit) -> None:
    """Have an agent wait in the middle of a message."""
    if kit.setup.agent == "model":
        stream = await kit.run(kit.request(model="MOCK_SLOW"))
        expect(sum(bool(text.delta) for text in stream.of("text")) > 1, "a slow message does not arrive in pieces")
        return
    steps = ("piece=one half of a message ",)
    stream = await _before_gate(
        kit, *steps, kind="text", fault="half a message does not arrive while the agent waits"
    )
    expect(any(text.delta for text in stream.of("text")), "no text has a delta")


@check("reports.thinking")
async def thinking(kit: Kit) -> None:
    """Have an agent think."""
    stream = await kit.run(kit.request("think=a word of reasoning", "say=done", model="MOCK_THINKING"))
    words = "".join(piece.delta or piece.whole for piece in stream.of("thinking"))
    due = "a word of reasoning" if kit.setup.agent == "script" else "short answer"
    expect(due in words, "the agent's reasoning is in no thinking event")


@check("reports.plan")
async def plan(kit: Kit) -> None:
    """Have an agent plan."""
    stream = await kit.run(kit.request("plan=a step of the plan", "say=done"))
    entries = [entry.content for item in stream.of("plan") for entry in item.entries]
    expect(entries == ["a step of the plan"], f"the entries of the plan are {entries}")


@check("reports.file-changes")
async def file_changes(kit: Kit) -> None:
    """Have an agent create a file."""
    path = kit.path("changed")
    request = kit.request(f"change={path}", "say=done", model=f"MOCK_WRITE path={path.name}")
    if kit.setup.agent == "model":
        path = Path(request.workspace.cwd) / path.name
        request.permissions.auto_approve = True
    stream = await kit.run(request)
    due = str(path)
    found = [change.path for change in stream.of("file_change")]
    expect(due in found, f"the changed file {due} is in no file_change; found {found}")
    expect(all(change.operation for change in stream.of("file_change")), "a file_change has no operation")


@check("reports.subagents")
async def subagents(kit: Kit) -> None:
    """Have a nested agent and the agent itself speak."""
    stream = await kit.run(kit.request("nested=of the nested agent", "say=of the agent itself"))
    nested, own = (
        [event for event in stream.events if words in (event.text.whole or event.text.delta)]
        for words in ("of the nested agent", "of the agent itself")
    )
    expect(nested and own, "what a nested agent or the agent itself says is in no text")
    expect(all(event.lineage.subagent_id for event in nested), "what a nested agent says has no lineage.subagent_id")
    expect(not any(event.lineage.subagent_id for event in own), "what the agent itself says has a lineage")


async def _of_models(kit: Kit) -> Stream:
    steps = [f"model={name},{inputs},{outputs}" for name, (inputs, outputs) in _MODELS.items()]
    return await kit.run(kit.request(*steps, "say=done", model="MOCK_TEXT"))


@check("usage.per-call")
async def per_call(kit: Kit) -> None:
    """Have two models called."""
    stream = await _of_models(kit)
    calls = [usage.tokens for usage in stream.of("usage") if usage.scope == pb.USAGE_SCOPE_CALL]
    found = [(tokens.input, tokens.output) for tokens in calls]
    if kit.setup.agent == "model":
        expect(any(found), "no usage of scope CALL has tokens")
        return
    due = list(_MODELS.values())
    expect(found == due, f"usage of scope CALL has input and output tokens {found}, where {due} are due")


@check("usage.per-model")
async def per_model(kit: Kit) -> None:
    """Have two models called."""
    result = (await _of_models(kit)).result
    found = {item.model: (item.tokens.input, item.tokens.output) for item in result.usage.models}
    if kit.setup.agent == "model":
        expect(found, "result.usage.models is empty")
        return
    expect(found == _MODELS, f"result.usage.models has {found}, where {_MODELS} is due")


@check("usage.cost")
async def cost(kit: Kit) -> None:
    """Report a cost."""
    found = (await kit.run(kit.request(f"cost={_COST}", "say=done"))).result.usage.cost
    try:
        is_it = Decimal(found.amount) == Decimal(_COST)
    except InvalidOperation:
        is_it = False
    expect(is_it and found.currency == "USD", f"the cost is {found.amount!r} {found.currency!r}; {_COST} USD is due")
