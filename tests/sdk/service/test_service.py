"""AdapterService in front of an adapter of a few lines, over a real connection."""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from typing import Any

import grpc
import pytest
import structlog
from dragoman.protocol.errors import Reason, invalid
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.protocol.wire import unroll
from dragoman.sdk import AdapterInfo, Run, capabilities
from dragoman.sdk._serving.service import AdapterServicer
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from msgspec.structs import replace

from tests.sdk.running import kinds
from tests.sdk.serving import (
    CANCELLED,
    DEADLINE_S,
    SUCCEEDED,
    Scripted,
    Stream,
    fifty,
    held,
    nothing,
    refusal,
    seconds,
    serving,
    until,
    until_cancelled,
    until_the_last,
)


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


# What it is.


async def test_describe() -> None:
    scripted = Scripted()
    async with serving(scripted) as sidecar:
        described = await sidecar.stub.Describe(api.DescribeRequest())
        again = await sidecar.stub.Describe(api.DescribeRequest(adapter="scripted_local"))
        assert described == again
        assert (described.adapter, described.version, described.revision) == ("scripted", "1.2.3", 1)
        assert described.pid > 0
        assert len(described.instance_id) >= 16
        assert json.loads(described.config_schema_json) == {"type": "object", "title": scripted.info.label}
        assert not described.capabilities.HasField("max_concurrent_runs")


async def test_describe_says_how_many_runs_may_be_at_once() -> None:
    scripted = Scripted()
    scripted.info = replace(scripted.info, capabilities=capabilities(pb.FEATURE_PROMPT, max_concurrent_runs=3))
    async with serving(scripted) as sidecar:
        described = await sidecar.stub.Describe(api.DescribeRequest())
        assert described.capabilities.max_concurrent_runs == 3


@pytest.mark.parametrize("feature", [pb.FEATURE_PROMPT, pb.FEATURE_ATTACHMENTS, pb.FEATURE_ARTIFACTS])
async def test_a_run_has_files_where_any_can_be(feature: pb.Feature.ValueType) -> None:
    scripted = Scripted()
    scripted.info = replace(scripted.info, capabilities=capabilities(feature))
    has_files = []

    async def look(run: Run) -> pb.Result:
        has_files.append(run.files is not None)
        return await nothing(run)

    scripted.script = look
    async with serving(scripted) as sidecar:
        await sidecar.execute()
    assert has_files == [feature != pb.FEATURE_PROMPT]


@pytest.mark.parametrize(
    ("levels", "status"),
    [
        ([], api.TEST_STATUS_PASS),
        (["info"], api.TEST_STATUS_PASS),
        (["info", "warning"], api.TEST_STATUS_WARN),
        (["warning", "error", "info"], api.TEST_STATUS_FAIL),
    ],
)
async def test_environment_checks_are_summed_up(levels: list[str], status: int) -> None:
    async with serving(Scripted()) as sidecar:
        answer = await sidecar.stub.TestEnvironment(api.TestEnvironmentRequest(env=dict.fromkeys(levels, "")))
        assert answer.status == status
        assert answer.mode == api.TEST_MODE_QUICK
        assert answer.adapter == "scripted"
        assert answer.HasField("tested_at")


async def test_detect_and_models() -> None:
    async with serving(Scripted()) as sidecar:
        (found,) = (await sidecar.stub.Detect(api.DetectRequest(env={"PATH": "/bin/x"}))).detections
        assert (found.adapter, found.label, found.executable) == ("scripted", "Scripted", "/bin/x")
        assert found.HasField("detected_at")
        models = await sidecar.stub.ListModels(api.ListModelsRequest())
        assert models.source == api.MODEL_SOURCE_STATIC


async def test_another_adapters_name_is_not_found_everywhere() -> None:
    async with serving(Scripted()) as sidecar:
        stub = sidecar.stub
        calls: list[Awaitable[object]] = [
            stub.Describe(api.DescribeRequest(adapter="scriptet")),
            stub.Detect(api.DetectRequest(adapter="scriptet")),
            stub.TestEnvironment(api.TestEnvironmentRequest(adapter="scriptet")),
            stub.Cancel(api.CancelRequest(adapter="scriptet")),
            stub.Respond(api.RespondRequest(adapter="scriptet")),
            stub.ListModels(api.ListModelsRequest(adapter="scriptet")),
            stub.ListSkills(api.ListSkillsRequest(adapter="scriptet")),
            stub.SyncSkills(api.SyncSkillsRequest(adapter="scriptet")),
            sidecar.execute(api.ExecuteRequest(adapter="scriptet")),
            Stream(stub.Attach(api.AttachRequest(adapter="scriptet"))).rest(),
        ]
        for call in calls:
            error = await refusal(call)
            assert error.reason is Reason.ADAPTER_NOT_FOUND
            assert error.metadata["did_you_mean"] == "scripted"


async def test_what_an_adapter_does_not_have_is_unimplemented() -> None:
    async with serving(Scripted()) as sidecar:
        calls: list[Awaitable[object]] = [
            sidecar.stub.ListSkills(api.ListSkillsRequest()),
            sidecar.stub.SyncSkills(api.SyncSkillsRequest()),
        ]
        for call in calls:
            error = await refusal(call)
            assert error.reason is Reason.NOT_IMPLEMENTED
            assert error.code is grpc.StatusCode.UNIMPLEMENTED


async def test_health_is_reported() -> None:
    async with serving(Scripted()) as sidecar:
        health: Any = health_pb2_grpc.HealthStub(sidecar.channel)  # its types lack its methods
        for service in ("", "dragoman.v1.AdapterService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


# A run.


async def test_a_run_streams_to_its_result() -> None:
    async def script(run: Run) -> pb.Result:
        assert run.accepted == "accepted session="
        run.started(pb.Started(notes=["begun"]))
        run.emit(pb.AgentEvent(text=pb.Text(item_id="i", delta="hello")))
        return SUCCEEDED

    async with serving(Scripted(script)) as sidecar:
        call = sidecar.begin(api.ExecuteRequest())
        events = await call.rest()
        assert kinds(events) == ["started", "text", "result"]
        metadata = dict(await call.call.initial_metadata())
        assert metadata[RUN_ID_METADATA_KEY] == events[0].run_id
        assert events[0].run_id.startswith("run-")
        assert events[0].started.instance_id == (await sidecar.stub.Describe(api.DescribeRequest())).instance_id


async def test_the_id_is_returned_before_the_first_event() -> None:
    go = asyncio.Event()

    async def script(run: Run) -> pb.Result:
        await go.wait()
        return await nothing(run)

    async with serving(Scripted(script)) as sidecar:
        call = sidecar.begin(api.ExecuteRequest(run_id="mine"))
        assert dict(await call.call.initial_metadata())[RUN_ID_METADATA_KEY] == "mine"
        go.set()
        await call.rest()


@pytest.mark.parametrize("run_id", ["-x", "a b", "x" * 129, "ü", "a/b", ".hidden", "a\n"])
async def test_wrong_run_ids(run_id: str) -> None:
    async with serving(Scripted()) as sidecar:
        error = await refusal(sidecar.execute(api.ExecuteRequest(run_id=run_id)))
        assert error.reason is Reason.INVALID_REQUEST
        assert [item.path for item in error.violations] == ["run_id"]


async def test_a_refused_request_makes_no_run() -> None:
    adapter = Scripted(refuse=invalid("config.x", "is wrong"))
    async with serving(adapter) as sidecar:
        error = await refusal(sidecar.execute(api.ExecuteRequest(run_id="r")))
        assert error.reason is Reason.INVALID_REQUEST
        assert adapter.runs == []
        assert (await refusal(sidecar.attach("r"))).reason is Reason.RUN_NOT_FOUND
        adapter.refuse = None
        assert len(await sidecar.execute(api.ExecuteRequest(run_id="r"))) == 2, "the id is free"


NOT_HONOURED: dict[str, tuple[api.ExecuteRequest, Reason, str]] = {
    "fallback": (api.ExecuteRequest(fallback=api.Fallback()), Reason.NOT_SUPPORTED, "fallback"),
    "admission": (api.ExecuteRequest(admission=api.Admission()), Reason.NOT_SUPPORTED, "admission"),
    "a session by key": (
        api.ExecuteRequest(session=api.SessionSelector(key=api.SessionKey())),
        Reason.NOT_SUPPORTED,
        "session.key",
    ),
    "a session of a run": (
        api.ExecuteRequest(session=api.SessionSelector(resume_run_id="r")),
        Reason.NOT_SUPPORTED,
        "session.resume_run_id",
    ),
}


@pytest.mark.parametrize("case", NOT_HONOURED)
async def test_what_is_not_honoured_is_refused(case: str) -> None:
    request, reason, path = NOT_HONOURED[case]
    async with serving(Scripted()) as sidecar:
        error = await refusal(sidecar.execute(request))
        assert error.reason is reason
        assert [item.path for item in error.violations] == [path]


async def test_batches_are_granted_to_who_asks() -> None:
    async with serving(Scripted(fifty)) as sidecar:
        assert (await sidecar.stub.Describe(api.DescribeRequest())).batching
        messages = await sidecar.execute(api.ExecuteRequest(run_id="r", batching=api.Batching()))
        assert [kind for kind in kinds(messages) if kind != "batch"] == ["started", "result"]
        single = await sidecar.execute(api.ExecuteRequest(run_id="r"))
        assert len(single) == 52, "nothing changes for a reader that did not ask"
        assert [event for message in messages for event in unroll(message)] == single
        for after in range(53):
            request = api.AttachRequest(run_id="r", after_sequence=after, batching=api.Batching())
            messages = await Stream(sidecar.stub.Attach(request), after).rest()
            # In the middle of what was one batch, too; at the end the result comes again.
            assert [event for message in messages for event in unroll(message)] == single[min(after, 51) :]
            assert len(messages) == (2 if after < 51 else 1) + (not after)


async def test_missing_capabilities_are_named_even_unknown_ones() -> None:
    async with serving(Scripted()) as sidecar:
        request = api.ExecuteRequest(required_capabilities=[pb.FEATURE_PROMPT, pb.FEATURE_RESUME])
        request.MergeFromString(b"\xd2\x01\x02\xe7\x07")  # required_capabilities: 999, of a later revision
        error = await refusal(sidecar.execute(request))
        assert error.reason is Reason.CAPABILITY_MISSING
        assert error.metadata["missing"] == "FEATURE_RESUME, 999"
        ok = api.ExecuteRequest(required_capabilities=[pb.FEATURE_PROMPT])
        assert len(await sidecar.execute(ok)) == 2


# The same id again.


async def test_the_same_request_joins_its_run_and_another_is_refused() -> None:
    adapter = Scripted(until_cancelled)
    async with serving(adapter) as sidecar:
        request = held("r")
        request.env["A"], request.env["B"] = "1", "2"
        first = sidecar.begin(request)
        await first.until("started")
        same = api.ExecuteRequest(run_id="r", labels={"other": "label"}, auth_token="t")
        same.env["B"], same.env["A"] = "2", "1"
        second = sidecar.begin(same)
        await second.until("started")
        other = held("r")
        other.prompt = "something else"
        error = await refusal(sidecar.execute(other))
        assert error.reason is Reason.RUN_ID_REUSED
        assert error.metadata["run_id"] == "r"
        await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        assert (await first.until("result")) == (await second.until("result"))
        assert len(adapter.runs) == 1
        assert kinds(await sidecar.execute(same)) == ["started", "state", "result"], "it is not run again"
        assert len(adapter.runs) == 1


async def test_a_router_begins_the_next_attempt_of_a_run_that_is_over_here() -> None:
    async with serving(Scripted()) as sidecar:
        first = await sidecar.execute(api.ExecuteRequest(run_id="r"))
        last = first[-1].sequence
        relay = api.Relay(first_sequence=last + 1, first_attempt=2)
        following = api.ExecuteRequest(run_id="r", relay=relay)
        again = [event async for event in sidecar.stub.Execute(following)]
        assert [event.sequence for event in again] == list(range(last + 1, last + 1 + len(first)))
        assert {event.attempt for event in again} == {2}
        assert [event async for event in sidecar.stub.Execute(following)] == again, "the same attempt is the same run"


async def test_a_session_has_one_run_at_a_time() -> None:
    def resuming(session: str) -> api.ExecuteRequest:
        handle = pb.SessionHandle(native_id=session)
        request = held()
        request.session.handle.CopyFrom(handle)
        return request

    async with serving(Scripted(until_cancelled)) as sidecar:
        first = sidecar.begin(resuming("s-1"))
        run_id = (await first.until("started")).run_id
        error = await refusal(sidecar.execute(resuming("s-1")))
        assert error.reason is Reason.SESSION_BUSY
        assert error.metadata["run_id"] == run_id
        for other in (resuming("s-2"), held()):
            await sidecar.begin(other).until("started")
        await sidecar.stub.Cancel(api.CancelRequest(run_id=run_id))
        await sidecar.begin(resuming("s-1")).until("started")


async def test_two_runs_at_once_do_not_mix() -> None:
    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        for number in range(50):
            run.emit(pb.AgentEvent(text=pb.Text(item_id="i", delta=f"{run.run_id}-{number} ")))
            await asyncio.sleep(0)
        return SUCCEEDED

    async with serving(Scripted(script)) as sidecar:
        streams = await asyncio.gather(*(sidecar.execute(api.ExecuteRequest(run_id=name)) for name in "abc"))
        for name, events in zip("abc", streams, strict=True):
            assert "".join(event.text.delta for event in events) == "".join(f"{name}-{n} " for n in range(50))


# Attach.


async def test_attach_from_every_sequence() -> None:
    async with serving(Scripted(fifty)) as sidecar:
        everything = await sidecar.execute(api.ExecuteRequest(run_id="r"))
        assert len(everything) == 52
        for after in range(52):
            assert await sidecar.attach("r", after) == (everything[after:] or everything[-1:])
        error = await refusal(sidecar.attach("r", 53))
        assert error.reason is Reason.SEQUENCE_AHEAD
        assert error.metadata["last_sequence"] == "52"
        assert (await refusal(sidecar.attach("unknown"))).reason is Reason.RUN_NOT_FOUND


async def test_attach_replays_then_marks_then_goes_on_live() -> None:
    adapter = Scripted(until_cancelled)
    async with serving(adapter) as sidecar:
        first = sidecar.begin(held("r"))
        await first.until("started")
        run = adapter.runs[0]
        for number in (1, 2):
            request = pb.InputRequest(id=f"q{number}", kind=pb.INPUT_KIND_TEXT, title="?")
            run.inputs.open(request)
        run.inputs.answer("q1", pb.InputAnswer(text="t"), "")
        last = run.event_buffer.last_sequence
        joined = sidecar.follow("r", last)
        copy, mark = await joined.read(), await joined.read()
        assert copy is not None
        assert mark is not None
        assert (copy.sequence, copy.input_request.id) == (0, "q2")
        assert (mark.sequence, mark.replay_done.last_sequence) == (0, last)
        replay = sidecar.follow("r")
        assert (await replay.until("replay_done")).replay_done.last_sequence == last
        await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        live = await joined.rest()
        assert kinds(live) == ["state", "input_resolved", "result"]
        assert [event.sequence for event in live] == list(range(last + 1, last + 4))
        assert await replay.rest() == live


async def test_what_is_no_longer_kept_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        for _ in range(40):
            run.emit(pb.AgentEvent(message=pb.Message(text="x" * (MAX_EVENT_BYTES - 8192))))
        return SUCCEEDED

    async with serving(Scripted(script)) as sidecar:
        call = sidecar.begin(held("r"))  # not read: it is dropped, and the run goes on
        await call.call.initial_metadata()
        await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        call.cancel()
        first, *others = await sidecar.attach("r")
        assert first.gap.from_sequence == 1
        assert others[0].sequence == first.gap.to_sequence + 1
        assert others[-1].sequence == 42
        again = await sidecar.execute(held("r"))
        assert again[0].gap == first.gap


# Who holds a run.


async def test_a_run_that_no_client_holds_is_cancelled_at_once() -> None:
    adapter = Scripted(until_cancelled)
    async with serving(adapter) as sidecar:
        call = sidecar.begin(api.ExecuteRequest(run_id="r"))
        await call.until("started")
        call.cancel()
        await asyncio.wait_for(adapter.runs[0].finished.wait(), DEADLINE_S)
        assert adapter.runs[0].cancellation.reason == "no client is attached"


async def test_a_caller_who_left_before_the_first_byte_leaves_nothing() -> None:
    """Between acceptance and the first byte no one reads, and the run must be held, and released, nevertheless."""

    class Gone:
        def invocation_metadata(self) -> None:
            """Return no metadata."""

        async def send_initial_metadata(self, _: object) -> None:
            raise asyncio.CancelledError

    adapter = Scripted(until_cancelled)
    servicer = AdapterServicer(adapter)
    gone: Any = Gone()
    with pytest.raises(asyncio.CancelledError):
        await servicer.Execute(api.ExecuteRequest(run_id="r"), gone)
    await asyncio.sleep(0)  # the run's own task begins
    await asyncio.wait_for(adapter.runs[0].finished.wait(), DEADLINE_S)
    assert adapter.runs[0].cancellation.reason == "no client is attached"


async def test_orphan_after_gives_time_to_come_back() -> None:
    adapter = Scripted(until_cancelled)
    async with serving(adapter) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        holders = adapter.runs[0].keepalive
        assert holders is not None
        call.cancel()
        await until(lambda: holders.count == 0)
        assert bool(holders._timer), "its time runs"
        back = sidecar.follow("r", 1, hold=True)
        await back.until("replay_done")
        watching = sidecar.follow("r", 1)
        await watching.until("replay_done")
        assert holders.count == 1, "who only watches does not hold"
        assert not bool(holders._timer), "its time does not run any more"
        holders._orphan_after_s = 0.2
        back.cancel()
        await asyncio.wait_for(adapter.runs[0].finished.wait(), DEADLINE_S)
        assert kinds(await watching.rest()) == ["state", "result"]


async def test_negative_boundless_and_long_orphan_after() -> None:
    async with serving(Scripted()) as sidecar:
        for value in (-5, 10**9):
            request = api.ExecuteRequest(orphan_after=duration_pb2.Duration(seconds=value))
            refused = await refusal(sidecar.execute(request))
            assert [one.path for one in refused.violations] == ["orphan_after"]
        await sidecar.execute(api.ExecuteRequest(orphan_after=duration_pb2.Duration(seconds=10**8)))


# Cancel.


async def test_cancel_answers_once_the_result_is_recorded() -> None:
    adapter = Scripted(until_cancelled)
    async with serving(adapter) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        answer = await sidecar.stub.Cancel(api.CancelRequest(run_id="r", reason="enough"))
        result = await call.until("result")
        assert answer.outcome == result.result.outcome == pb.OUTCOME_CANCELLED
        assert answer.result_sequence == result.sequence
        assert answer.tree_confirmed_dead
        again = await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        assert again == answer
        states = [event for event in await sidecar.attach("r") if event.HasField("state")]
        assert [event.state.reason for event in states] == ["enough"]


async def test_cancel_after_the_end_returns_the_real_outcome() -> None:
    async with serving(Scripted()) as sidecar:
        await sidecar.execute(api.ExecuteRequest(run_id="r"))
        answer = await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        assert (answer.outcome, answer.result_sequence) == (pb.OUTCOME_SUCCEEDED, 2)
        assert not answer.HasField("tree_confirmed_dead"), "it has no process"
        assert (await refusal(sidecar.stub.Cancel(api.CancelRequest(run_id="x")))).reason is Reason.RUN_NOT_FOUND


async def test_a_cancel_with_an_impossible_grace_is_refused_and_changes_nothing() -> None:
    async with serving(Scripted(until_cancelled)) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        for grace in (seconds(-1), duration_pb2.Duration(seconds=1, nanos=-5), seconds(10**12)):
            error = await refusal(sidecar.stub.Cancel(api.CancelRequest(run_id="r", grace=grace)))
            assert (error.reason, error.violations[0].path) == (Reason.INVALID_REQUEST, "grace")
        answer = await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        assert answer.outcome == pb.OUTCOME_CANCELLED
        assert kinds(await call.rest()) == ["state", "result"], "only the last one was a cancel"


async def test_a_second_cancel_shortens_the_first() -> None:
    async with serving(Scripted(until_the_last)) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        slow = sidecar.stub.Cancel(api.CancelRequest(run_id="r", grace=seconds(1000)))
        await call.until("state")
        fast = await sidecar.stub.Cancel(api.CancelRequest(run_id="r", grace=seconds(0)), timeout=DEADLINE_S)
        assert await slow == fast
        assert kinds(await call.rest()) == ["result"], "and says nothing new"


async def test_leaving_a_cancel_does_not_undo_it() -> None:
    wished, go = asyncio.Event(), asyncio.Event()

    async def slow(run: Run) -> pb.Result:
        run.started(pb.Started())
        await run.cancellation.changed.wait()
        wished.set()
        await go.wait()
        return CANCELLED

    adapter = Scripted(slow)
    async with serving(adapter) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        cancel = sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
        pending = asyncio.ensure_future(refusal(cancel))
        await asyncio.wait_for(wished.wait(), DEADLINE_S)
        pending.cancel()
        cancel.cancel()
        go.set()
        assert (await call.until("result")).result.outcome == pb.OUTCOME_CANCELLED


# Respond.


async def asks(run: Run) -> pb.Result:
    run.started(pb.Started())
    option = pb.InputOption(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE)
    resolution = await run.ask(pb.InputRequest(id="q", kind=pb.INPUT_KIND_PERMISSION, options=[option]))
    return pb.Result(outcome=pb.OUTCOME_SUCCEEDED, summary=",".join(resolution.answer.option_ids))


async def test_an_answer_reaches_the_agent() -> None:
    async with serving(Scripted(asks)) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("input_request")
        yes = pb.InputAnswer(option_ids=["yes"])
        answered = await sidecar.stub.Respond(
            api.RespondRequest(run_id="r", request_id="q", answer=yes, responder="me")
        )
        resolved = await call.until("input_resolved")
        assert answered.sequence == resolved.sequence
        assert resolved.input_resolved.responder == "me"
        assert (await call.until("result")).result.summary == "yes"
        assert (await sidecar.stub.Respond(api.RespondRequest(run_id="r", request_id="q", answer=yes))) == answered


async def test_answers_that_come_to_nothing() -> None:
    async with serving(Scripted(asks)) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("input_request")
        cases = [
            ("x", "q", pb.InputAnswer(), Reason.RUN_NOT_FOUND),
            ("r", "x", pb.InputAnswer(), Reason.REQUEST_NOT_FOUND),
            ("r", "q", pb.InputAnswer(option_ids=["no"]), Reason.INVALID_ANSWER),
        ]
        for run_id, request_id, answer, reason in cases:
            request = api.RespondRequest(run_id=run_id, request_id=request_id, answer=answer)
            assert (await refusal(sidecar.stub.Respond(request))).reason is reason


class Limited(Scripted):
    """Reports rate limits, or what its request names as the reason why not."""

    def describe(self) -> AdapterInfo:
        return replace(self.info, capabilities=capabilities(pb.FEATURE_PROMPT, pb.FEATURE_QUOTA))

    async def get_quota(self, request: api.GetQuotaRequest) -> api.GetQuotaResponse:
        if request.env:
            failure = pb.Failure(kind=pb.FAILURE_KIND_AUTH_REQUIRED, message=f"no {request.env['API_KEY']}")
            return api.GetQuotaResponse(failure=failure)
        return api.GetQuotaResponse(windows=[pb.RateLimit(window="five_hour", used_percent=42)] * 100)


async def test_rate_limits() -> None:
    async with serving(Limited()) as sidecar:
        answer = await sidecar.stub.GetQuota(api.GetQuotaRequest())
        assert (len(answer.windows), answer.HasField("read_at")) == (64, True)
        failed = await sidecar.stub.GetQuota(api.GetQuotaRequest(env={"API_KEY": "a1b2-c3d4-e5f6-g7h8"}))
        assert (failed.failure.message, failed.HasField("read_at")) == ("no [redacted]", False)


async def test_rate_limits_that_are_not_declared() -> None:
    async with serving(Scripted()) as sidecar:
        error = await refusal(sidecar.stub.GetQuota(api.GetQuotaRequest()))
        assert error.reason is Reason.NOT_IMPLEMENTED
