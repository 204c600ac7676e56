"""An adapter that declares no duty: what the router does for its runs, or refuses."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.protocol.duties import ALL_DUTIES, is_set
from dragoman.protocol.errors import Reason
from dragoman.protocol.items import ItemLengths
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.server import Context
from dragoman.router.model.assignment import Dispatched, decode_place, encode_place
from dragoman.router.policy.duties import default_answer, rewritten
from dragoman.router.policy.event_redaction import EventRedactor
from dragoman.router.policy.output_limit import OutputLimit
from dragoman.router.runs import cancellation
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.router.harness import PATIENCE_S, Caller, Stream, config, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_processes import program
from tests.router.test_takeover import attached

DONE = json.dumps([{"end": "SUCCEEDED"}])
CLOSED = '{"properties": {"speed": {}}, "additionalProperties": false}'


@contextlib.asynccontextmanager
async def bare(folder: Path, **fields: Any) -> AsyncIterator[tuple[Caller, Sidecar]]:
    """A router in front of an adapter that declares no duty."""
    sidecar, address = Sidecar("fake", duties=fields.pop("duties", ()), **fields), f"unix:{folder}/a.sock"
    async with serving(sidecar, address), routing(config(folder, addresses=(address,))) as (_router, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield caller, sidecar


def execute(caller: Caller, **fields: Any) -> Stream:
    fields = {"adapter": "fake", "prompt": DONE, **fields}
    return Stream(caller.adapter.Execute(pb.ExecuteRequest(**fields)))


def codes(events: list[event_pb2.AgentEvent]) -> list[str]:
    return [event.notice.code for event in events if event.HasField("notice")]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("model", {"model": "m"}),
        ("system_prompt", {"system_prompt": "s"}),
        ("instructions", {"instructions": pb.Instructions(text="t")}),
        ("skills", {"skills": [pb.Skill(name="s")]}),
        ("mcp_servers", {"mcp_servers": [pb.McpServer(name="m")]}),
        ("config", {"config": {"speed": 1}}),
        ("permissions.auto_approve", {"permissions": event_pb2.Permissions(auto_approve=True)}),
        (
            "session.handle",
            {"session": pb.SessionSelector(handle=event_pb2.SessionHandle(adapter="fake", native_id="s"))},
        ),
    ],
)
async def test_what_an_adapter_does_not_declare_is_refused_before_it_gets_it(
    folder: Path, path: str, fields: dict[str, Any]
) -> None:
    async with bare(folder) as (caller, sidecar):
        error = await execute(caller, **fields).error()
        assert error.reason is Reason.NOT_SUPPORTED
        assert [item.path for item in error.violations] == [path]
        assert sidecar.requests("Execute") == []


async def test_a_missing_capability_is_refused_and_a_declared_one_is_no_longer_asked_for(folder: Path) -> None:
    declared, missing = event_pb2.FEATURE_PROMPT, event_pb2.FEATURE_FORK
    async with bare(folder, features=[declared]) as (caller, sidecar):
        error = await execute(caller, required_capabilities=[declared, missing]).error()
        assert error.reason is Reason.CAPABILITY_MISSING
        assert error.metadata == {"missing": "FEATURE_FORK"}
        later = pb.ExecuteRequest(adapter="fake", prompt=DONE).SerializeToString() + b"\xd2\x01\x02\x8f\x4e"
        error = await Stream(caller.adapter.Execute(pb.ExecuteRequest.FromString(later))).error()
        assert error.metadata == {"missing": "9999"}
        await execute(caller, required_capabilities=[declared]).rest()
        (got,) = sidecar.requests("Execute")
        assert not got.required_capabilities


async def test_a_setting_that_a_closed_schema_lacks_is_refused(folder: Path) -> None:
    async with bare(folder, schema=CLOSED) as (caller, sidecar):
        error = await execute(caller, config={"speed": 1, "height": 2}).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert [item.path for item in error.violations] == ["config.height"]
        await execute(caller, config={"speed": 1}).rest()
        assert len(sidecar.requests("Execute")) == 1


async def test_a_fallback_adapter_that_cannot_honour_the_request_is_skipped(folder: Path) -> None:
    first, second = Sidecar("one", features=[event_pb2.FEATURE_SYSTEM_PROMPT]), Sidecar("two", duties=())
    addresses = (f"unix:{folder}/1.sock", f"unix:{folder}/2.sock")
    async with (
        serving(first, addresses[0]),
        serving(second, addresses[1]),
        routing(config(folder, addresses=addresses)) as (_router, caller),
    ):
        for name in ("one", "two"):
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        fallback = pb.Fallback(adapters=["two"], on=[event_pb2.FAILURE_KIND_AUTH_REQUIRED])
        prompt = json.dumps([{"failed": "AUTH_REQUIRED"}])
        events = await execute(caller, adapter="one", prompt=prompt, system_prompt="s", fallback=fallback).rest()
        assert "fallback_refused" in codes(events)
        assert events[-1].result.failure.kind == event_pb2.FAILURE_KIND_AUTH_REQUIRED
        assert second.requests("Execute") == []


async def test_a_template_reaches_the_adapter_as_a_prompt(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        template = '[{"says": "{{agent.name}}{{context.absent}}"}, {"end": "SUCCEEDED"}]'
        stream = execute(caller, prompt=None, prompt_template=template, agent=pb.Agent(name="Ada {{runId}}"))
        events = await stream.rest()
        assert events[-1].result.summary == "Ada {{runId}}"
        assert codes(events) == ["template_value_missing"]
        (got,) = sidecar.requests("Execute")
        assert got.WhichOneof("task") == "prompt"


async def test_values_that_are_too_long_for_a_template_are_refused(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        fields = {"prompt": None, "prompt_template": "{{company.big}}" * 20, "company": {"big": "x" * 1_000_000}}
        error = await execute(caller, **fields).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert [item.path for item in error.violations] == ["prompt_template"]
        error = await execute(caller, prompt=None, prompt_template="{{agent}}", company={"n": float("inf")}).error()
        assert [item.path for item in error.violations] == ["prompt_template"]
        assert sidecar.requests("Execute") == []


async def test_an_adapter_that_declares_all_gets_the_request_as_it_came(folder: Path) -> None:
    async with bare(folder, duties=ALL_DUTIES) as (caller, sidecar):
        await execute(caller, prompt=None, prompt_template=DONE, model="m", required_capabilities=[9]).rest()
        (got,) = sidecar.requests("Execute")
        assert got.prompt_template == DONE
        assert got.model == "m"
        assert list(got.required_capabilities) == [9]


def test_a_request_with_neither_prompt_nor_template_gets_the_default_behind_what_is_handed_over() -> None:
    request = pb.ExecuteRequest(agent=pb.Agent(id="7", name="Ada"))
    request.session.fresh, request.session.handover = True, "Before {{runId}}."
    following, missing = rewritten(request, frozenset())
    assert following.prompt == "Before {{runId}}.\n\nYou are agent 7 (Ada). Continue your Dragoman work."
    assert not missing
    assert not is_set(following, "session.handover")
    assert following.session.fresh
    assert rewritten(request, frozenset([pb.DUTY_TEMPLATES]))[0] == request


def after(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration


SOON = after(0.2)


@pytest.mark.parametrize(
    ("limits", "steps", "kind"),
    [
        ({"wall": SOON}, [{"gate": "g"}], event_pb2.FAILURE_KIND_WALL_TIMEOUT),
        ({"start_up": SOON}, [{"gate": "g"}], event_pb2.FAILURE_KIND_START_TIMEOUT),
        ({"idle": SOON}, ["a", {"gate": "g"}], event_pb2.FAILURE_KIND_IDLE_TIMEOUT),
    ],
)
async def test_a_run_that_exceeds_a_limit_is_cancelled_and_has_timed_out(
    folder: Path, limits: dict[str, Any], steps: list[Any], kind: Any
) -> None:
    async with bare(folder) as (caller, sidecar):
        limits_of = event_pb2.Limits(grace=after(3), **limits)
        events = await execute(caller, prompt=json.dumps(steps), limits=limits_of).rest()
        check_stream(events)
        assert events[-1].result.outcome == event_pb2.OUTCOME_TIMED_OUT
        assert events[-1].result.failure.kind == kind
        (got,), (cancelled,) = sidecar.requests("Execute"), sidecar.requests("Cancel")
        assert not got.HasField("limits")
        assert cancelled.grace == after(3)


async def test_an_adapter_that_sends_no_result_in_time_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "_RESULT_S", 0.2)
    async with bare(folder) as (caller, sidecar):
        steps = [{"deaf": "g"}, {"gate": "never"}]
        limits = event_pb2.Limits(wall=SOON, grace=after(0))
        limits.grace.SetInParent()
        events = await execute(caller, prompt=json.dumps(steps), limits=limits).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_TIMED_OUT
        assert events[-1].result.failure.kind == event_pb2.FAILURE_KIND_WALL_TIMEOUT
        assert events[-1].origin == event_pb2.EVENT_ORIGIN_ROUTER
        sidecar.open("never")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let adapters not implement Cancel; set once the stream of a run is left by its reader."""
    event = asyncio.Event()
    execute_ = Sidecar.Execute

    async def unimplemented(_self: Sidecar, _request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")

    async def noted(self: Sidecar, request: pb.ExecuteRequest, context: Context) -> None:
        try:
            await execute_(self, request, context)
        except asyncio.CancelledError:
            event.set()
            raise

    monkeypatch.setattr(Sidecar, "Cancel", unimplemented)
    monkeypatch.setattr(Sidecar, "Execute", noted)
    return event


async def test_a_run_of_an_adapter_that_cannot_cancel_is_cancelled_by_the_router(
    folder: Path, left: asyncio.Event
) -> None:
    async with bare(folder) as (caller, sidecar):
        stream = execute(caller, run_id="r", prompt='[{"gate": "never"}]')
        await stream.until("started")
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"))
        result = (await stream.rest())[-1].result
        assert (answer.outcome, result.outcome) == (event_pb2.OUTCOME_CANCELLED, event_pb2.OUTCOME_CANCELLED)
        assert not answer.HasField("tree_confirmed_dead"), "nothing is known of it"
        assert await caller.adapter.Cancel(pb.CancelRequest(run_id="r")) == answer
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()
        sidecar.open("never")


async def test_an_orphan_of_an_adapter_that_cannot_cancel_is_ended(folder: Path, left: asyncio.Event) -> None:
    async with bare(folder) as (caller, sidecar):
        stream = execute(caller, run_id="r", prompt='[{"gate": "never"}]', orphan_after=SOON)
        await stream.until("started")
        stream.call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()
        assert (await attached(caller, "r", 1))[-1].result.outcome == event_pb2.OUTCOME_CANCELLED
        sidecar.open("never")


async def test_an_adapter_that_cannot_cancel_is_not_waited_for(folder: Path, left: asyncio.Event) -> None:
    async with bare(folder) as (caller, sidecar):
        limits = event_pb2.Limits(wall=SOON, grace=after(3600))
        events = await execute(caller, prompt='[{"gate": "never"}]', limits=limits).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_TIMED_OUT
        assert events[-1].result.failure.kind == event_pb2.FAILURE_KIND_WALL_TIMEOUT
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()
        sidecar.open("never")


async def test_a_run_that_succeeds_while_it_is_cancelled_has_succeeded(folder: Path) -> None:
    async with bare(folder) as (caller, _sidecar):
        steps = [{"deaf": "g"}, {"gate": "g"}, {"end": "SUCCEEDED"}]
        events = await execute(caller, prompt=json.dumps(steps), limits=event_pb2.Limits(wall=SOON)).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_cancel_without_a_grace_has_that_of_the_run(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        stream = execute(caller, run_id="r", prompt='[{"gate": "g"}]', limits=event_pb2.Limits(grace=after(7)))
        await stream.until("started")
        await caller.adapter.Cancel(pb.CancelRequest(run_id="r"))
        await stream.rest()
        assert [request.grace for request in sidecar.requests("Cancel")] == [after(7)]


@pytest.mark.parametrize("batching", [True, False])
async def test_output_beyond_the_limit_is_left_out(folder: Path, *, batching: bool) -> None:
    async with bare(folder, batching=batching) as (caller, _sidecar):
        steps = ["hello", "wörld", "!", {"end": "SUCCEEDED"}]
        events = await execute(caller, prompt=json.dumps(steps), limits=event_pb2.Limits(output_bytes=7)).rest()
        check_stream(events)
        texts = [event.text for event in events if event.HasField("text")]
        assert [(text.offset, text.delta) for text in texts] == [(0, "hello"), (5, "w"), (6, "")]
        assert codes(events) == ["output_cut"]
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_question_of_an_unattended_run_is_declined(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        events = await execute(caller, prompt='[{"ask": "q"}, {"end": "SUCCEEDED"}]').rest()
        check_stream(events)
        assert codes(events) == ["question_declined"]
        (resolved,) = [event.input_resolved for event in events if event.HasField("input_resolved")]
        assert resolved.resolution == event_pb2.INPUT_RESOLUTION_POLICY
        assert not resolved.responder
        (got,) = sidecar.requests("Execute")
        assert not got.HasField("permissions")


async def test_a_question_expires_or_is_answered_by_the_caller(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        permissions = event_pb2.Permissions(interactive=True, request_timeout=SOON)
        events = await execute(caller, prompt='[{"ask": "q"}, {"end": "SUCCEEDED"}]', permissions=permissions).rest()
        (resolved,) = [event.input_resolved for event in events if event.HasField("input_resolved")]
        assert resolved.resolution == event_pb2.INPUT_RESOLUTION_EXPIRED
        permissions.ClearField("request_timeout")
        stream = execute(caller, run_id="r", prompt='[{"ask": "p"}, {"end": "SUCCEEDED"}]', permissions=permissions)
        await stream.until("input_request")
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="p", responder="me"))
        events = await stream.rest()
        assert events[0].input_resolved.resolution == event_pb2.INPUT_RESOLUTION_ANSWERED
        assert events[0].input_resolved.responder == "me"
        assert len(sidecar.requests("Respond")) == 2


def test_a_permission_that_no_client_gives_is_rejected() -> None:
    asked = event_pb2.InputRequest(id="q", default_answer=event_pb2.InputAnswer(text="x"))
    assert default_answer(asked).text == "x"
    asked.options.add(id="yes", kind=event_pb2.INPUT_OPTION_KIND_ALLOW_ONCE)
    asked.options.add(id="no", kind=event_pb2.INPUT_OPTION_KIND_REJECT_ALWAYS)
    assert default_answer(asked).option_ids == ["no"]


async def test_a_limit_that_is_none_is_refused(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        limits = event_pb2.Limits(wall=duration_pb2.Duration(seconds=-1))
        error = await execute(caller, limits=limits).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert [item.path for item in error.violations] == ["limits.wall"]
        assert sidecar.requests("Execute") == []


def test_whether_only_its_router_can_follow_a_run_is_kept() -> None:
    for is_bound in (True, False):
        at = Dispatched("unix:/a", "i", is_bound)
        assert decode_place(encode_place(at, "r")) == (at, "r")


async def test_a_run_with_limits_is_not_recovered_by_another_router(folder: Path) -> None:
    named = manifest(folder, "fake", env={"SIDECAR_BARE": "1"})
    async with program(folder, manifests=[str(named)]) as (process, caller):
        limits = event_pb2.Limits(wall=after(60))
        await execute(caller, run_id="r", prompt='[{"gate": "g"}]', limits=limits).until("started")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        result = (await attached(caller, "r", 1))[-1].result
        assert result.outcome == event_pb2.OUTCOME_LOST
        assert "leaves limits" in result.failure.message


def test_what_is_cut_is_counted_or_moves_what_follows() -> None:
    limit = OutputLimit(4)
    whole = event_pb2.AgentEvent(text=event_pb2.Text(item_id="i", whole="abcdef"))
    limit.cut(whole, "text")
    assert (whole.text.whole, whole.text.truncated_bytes) == ("abcd", 2)
    log = event_pb2.AgentEvent(log=event_pb2.Log(text="�x", raw=b"\xffx"))
    limit.cut(log, "log")
    assert (log.log.text, log.log.raw, log.log.truncated_bytes) == ("", b"", 2)
    for stream, offset in ((1, 0), (2, 0), (1, 3)):
        output = event_pb2.AgentEvent()
        output.tool_output.tool_call_id, output.tool_output.text = "t", "abc"
        output.tool_output.stream, output.tool_output.offset = stream, offset  # type: ignore[assignment]
        limit.cut(output, "tool_output")
        assert (output.tool_output.text, output.tool_output.offset) == ("", 0)
    result = event_pb2.AgentEvent(tool_result=event_pb2.ToolResult(content="abc"))
    limit.cut(result, "tool_result")
    assert result.tool_result.truncated_bytes == 3


SECRET = "hunter2-secret-xyz"


def shown(events: Sequence[event_pb2.AgentEvent]) -> str:
    return "".join(event.text.delta for event in events if event.HasField("text"))


@pytest.mark.parametrize("batching", [True, False])
async def test_a_secret_of_the_request_is_redacted_wherever_it_is(folder: Path, *, batching: bool) -> None:
    async with bare(folder, batching=batching) as (caller, _sidecar):
        steps = ["a hunter2-", "secret-xyz b", *SECRET, " h", {"says": SECRET}, {"end": "SUCCEEDED"}]
        events = await execute(caller, prompt=json.dumps(steps), env={"API_TOKEN": SECRET}).rest()
        check_stream(events)
        assert shown(events) == "a [redacted] b[redacted] h"
        assert events[-1].result.summary == "[redacted]"
        assert events[-1].redacted


async def test_what_waits_for_its_end_comes_again_after_a_broken_stream(folder: Path) -> None:
    async with bare(folder) as (caller, sidecar):
        steps = ["a hunter2-", {"gate": "g"}, "secret-xyz b", {"end": "SUCCEEDED"}]
        stream = execute(caller, run_id="r", prompt=json.dumps(steps), env={"API_TOKEN": SECRET})
        before = await stream.until("started")
        sidecar.runs["r"].cut(Reason.SLOW_CONSUMER)
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.gate("called Attach").wait()
        sidecar.open("g")
        events = [*before, *await stream.rest()]
        check_stream(events)
        assert shown(events) == "a [redacted] b"


async def test_a_rejection_quotes_no_secret(folder: Path) -> None:
    async with bare(folder) as (caller, _sidecar):
        steps = [{"refuse": "INVALID_REQUEST", "words": f"wrong: {SECRET}"}]
        error = await execute(caller, prompt=json.dumps(steps), env={"API_TOKEN": SECRET}).error()
        assert error.reason is Reason.INVALID_REQUEST
        assert error.message == "wrong: [redacted]"


TEXT = f"He said hunter2 and {SECRET}{SECRET} hun"


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12), others=st.sets(st.integers(0, 12)))
def test_however_a_text_is_cut_no_secret_comes_through(cuts: list[int], others: set[int]) -> None:
    redacts = EventRedactor(Redactor([SECRET]))
    ends = [0, *sorted(cuts), len(TEXT)]
    events: list[event_pb2.AgentEvent] = []
    sequence = 0
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        sequence += 1
        piece = event_pb2.AgentEvent(sequence=sequence)
        piece.text.item_id, piece.text.offset, piece.text.delta = "i", start, TEXT[start:end]
        again = event_pb2.AgentEvent()
        again.CopyFrom(piece)
        events += redacts.take(piece)
        if not events or events[-1].sequence != sequence:  # it waits, and the stream breaks
            redacts.restart()
            events += [event for event in redacts.take(again) if event.sequence == sequence]
        if number in others:
            sequence += 1
            events += redacts.take(event_pb2.AgentEvent(sequence=sequence, usage=event_pb2.Usage()))
    events += redacts.take(event_pb2.AgentEvent(sequence=sequence + 1, result=event_pb2.Result()))
    assert [event.sequence for event in events] == list(range(1, sequence + 2))
    text, masked = shown(events), "He said hunter2 and [redacted][redacted] hun"
    assert SECRET[:6] not in text.replace("hunter2 ", "")
    assert "-secret-xyz" not in text
    if not others:
        assert text == masked
    lengths = ItemLengths()
    assert not any(lengths.take("text", event.text) for event in events if event.HasField("text"))


def test_whole_texts_and_output_of_tools_are_redacted_too() -> None:
    redacts = EventRedactor(Redactor([SECRET]))
    whole = event_pb2.AgentEvent(sequence=1, text=event_pb2.Text(item_id="i", whole=f"a {SECRET}"))
    assert redacts.take(whole)[0].text.whole == "a [redacted]"
    end = event_pb2.AgentEvent(sequence=2, text=event_pb2.Text(item_id="i", offset=2 + len(SECRET), delta="!"))
    assert redacts.take(end)[0].text.offset == len("a [redacted]")
    output = event_pb2.AgentEvent(sequence=3)
    output.tool_output.text, output.tool_output.raw = f"\ufffd{SECRET}", b"\xff" + SECRET.encode()
    (shown_output,) = redacts.take(output)
    assert (shown_output.tool_output.text, shown_output.tool_output.raw) == ("\ufffd[redacted]", b"")
    log = event_pb2.AgentEvent(sequence=4, log=event_pb2.Log(text=SECRET))
    assert redacts.take(log)[0].log.text == "[redacted]"
    copy = event_pb2.AgentEvent(input_request=event_pb2.InputRequest(id=SECRET, title=SECRET))
    assert redacts.take(copy)[0].input_request == event_pb2.InputRequest(id=SECRET, title="[redacted]")
