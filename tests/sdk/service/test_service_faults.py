"""AdapterService when things go wrong or get large: faults, slow readers, forgetting, drain."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import msgspec
import pytest
import structlog
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.limits import MAX_REQUEST_BYTES, MIB
from dragoman.sdk import Run, capabilities
from dragoman.sdk._serving import runs as _runs
from dragoman.sdk._serving import service as _service
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.sdk.running import kinds
from tests.sdk.serving import (
    CANCELLED,
    DEADLINE_S,
    SUCCEEDED,
    Scripted,
    fifty,
    held,
    refusal,
    serving,
    until,
    until_cancelled,
    until_the_last,
)


@pytest.fixture
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


# When an adapter fails.

LEAK = "do-not-leak-4711"


def raising(error: BaseException, *, after_start: bool) -> Scripted:
    async def script(run: Run) -> pb.Result:
        if after_start:
            run.started(pb.Started())
            run.emit(pb.AgentEvent(text=pb.Text(item_id="i", delta="so far")))
        raise error

    return Scripted(script)


@pytest.mark.parametrize("after_start", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError(LEAK), DragomanError(Reason.INTERNAL, LEAK), asyncio.CancelledError(LEAK)], ids=repr
)
async def test_an_adapter_that_raises_ends_its_run_without_a_word_of_it(
    error: BaseException, after_start: bool, logged: list[structlog.typing.EventDict]
) -> None:
    async with serving(raising(error, after_start=after_start)) as sidecar:
        events = await sidecar.execute(api.ExecuteRequest(run_id="r"))
        assert kinds(events) == (["started", "text", "result"] if after_start else ["started", "result"])
        result = events[-1].result
        assert result.outcome == pb.OUTCOME_FAILED
        assert (result.failure.kind, result.failure.code) == (pb.FAILURE_KIND_INTERNAL, "adapter_failed")
        assert not any(LEAK.encode() in event.SerializeToString() for event in events)
        assert len(await sidecar.execute(api.ExecuteRequest(run_id="other"))) >= 2, "others are not harmed"
    assert LEAK not in repr(logged)
    (exception,) = {line["exception"] for line in logged if line["event"] == "adapter failed"}
    assert exception == type(error).__name__


async def test_unknown_changes_do_not_hide_why_no_attempt_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def script(_: Run) -> pb.Result:
        failure = pb.Failure(kind=pb.FAILURE_KIND_NOT_INSTALLED, message="There is no such program.")
        return pb.Result(outcome=pb.OUTCOME_FAILED, failure=failure)

    adapter = Scripted(script)
    adapter.info = msgspec.structs.replace(adapter.info, capabilities=capabilities(pb.FEATURE_CHANGES))
    monkeypatch.setattr(adapter, "workspace_of", lambda _: str(tmp_path / "absent"))
    async with serving(adapter) as sidecar:
        events = await sidecar.execute(api.ExecuteRequest(track_changes=True))
        assert kinds(events) == ["started", "result"]
        assert events[-1].result.failure.kind == pb.FAILURE_KIND_NOT_INSTALLED
        assert (await refusal(sidecar.stub.GetChanges(api.GetChangesRequest(run_id=events[0].run_id)))).reason is (
            Reason.CHANGES_UNKNOWN
        )


async def test_an_adapter_without_a_result_fails() -> None:
    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        return None  # type: ignore[return-value]  # it should not

    async with serving(Scripted(script)) as sidecar:
        assert (await sidecar.execute())[-1].result.failure.kind == pb.FAILURE_KIND_INTERNAL


@pytest.mark.parametrize("name", ["accept", "detect", "test_environment", "list_models"])
async def test_a_fault_elsewhere_is_an_incident(
    name: str, monkeypatch: pytest.MonkeyPatch, logged: list[structlog.typing.EventDict]
) -> None:
    adapter = Scripted()

    def fail(*_: object) -> None:
        raise RuntimeError(LEAK)

    monkeypatch.setattr(adapter, name, fail)
    async with serving(adapter) as sidecar:
        stub = sidecar.stub
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "accept": sidecar.execute,
            "detect": lambda: stub.Detect(api.DetectRequest()),
            "test_environment": lambda: stub.TestEnvironment(api.TestEnvironmentRequest()),
            "list_models": lambda: stub.ListModels(api.ListModelsRequest()),
        }
        error = await refusal(calls[name]())
        assert error.reason is Reason.INTERNAL
        assert error.metadata["incident"] in repr(logged)
        assert LEAK not in str(error) + repr(error.details)
    assert LEAK not in repr(logged)


async def test_no_payload_and_no_secret_is_logged(logged: list[structlog.typing.EventDict]) -> None:
    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        run.emit(pb.AgentEvent(text=pb.Text(item_id="i", delta="the words of the agent")))
        return SUCCEEDED

    async with serving(Scripted(script)) as sidecar:
        request = api.ExecuteRequest(run_id="r", prompt="the words of the caller", auth_token="token-4711-4711")
        request.env["A_SECRET"] = "secret-4711"
        await sidecar.execute(request)
        await until(lambda: any(line["event"] == "rpc ended" for line in logged))
    text = repr(logged)
    assert "words" not in text
    assert "4711" not in text
    assert [line["event"] for line in logged] == [
        "call allowed",
        "rpc started",
        "run accepted",
        "run ended",
        "rpc ended",
    ]


# Size and speed.


async def test_a_prompt_of_a_megabyte() -> None:
    adapter = Scripted()
    prompt = "ü" * (MIB // 2)
    async with serving(adapter) as sidecar:
        await sidecar.execute(api.ExecuteRequest(prompt=prompt))
        assert adapter.runs[0].request.prompt == prompt


async def test_a_request_beyond_16_mib() -> None:
    async with serving(Scripted()) as sidecar:
        fits = api.ExecuteRequest(prompt="x" * (MAX_REQUEST_BYTES - 64))
        assert len(await sidecar.execute(fits)) == 2
        ours = await refusal(sidecar.execute(api.ExecuteRequest(prompt="x" * MAX_REQUEST_BYTES)))
        assert ours.reason is Reason.MESSAGE_TOO_LARGE
        theirs = await refusal(sidecar.execute(api.ExecuteRequest(prompt="x" * (MAX_REQUEST_BYTES + 2 * MIB))))
        assert theirs.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await sidecar.execute()) == 2, "and the connection lives"


async def test_a_slow_reader_is_dropped_and_harms_no_other() -> None:
    step = asyncio.Semaphore(0)

    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        for _ in range(30):
            await step.acquire()
            run.emit(pb.AgentEvent(message=pb.Message(text="x" * (MIB // 2))))
        return SUCCEEDED

    async with serving(Scripted(script)) as sidecar:
        fast = sidecar.begin(held("r"))
        await fast.until("started")
        slow = sidecar.follow("r")  # is never read, until it is over
        read = []
        step.release()
        while (event := await fast.read()) is not None:
            read.append(event)
            step.release()
        assert read[-1].result.outcome == pb.OUTCOME_SUCCEEDED
        assert [event.sequence for event in read] == list(range(2, 33))
        error = await refusal(slow.rest())
        assert error.reason is Reason.SLOW_CONSUMER
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        last = int(error.metadata["last_sequence"])
        rest = await sidecar.attach("r", last)
        assert kinds(rest)[-1] == "result"


async def test_finished_runs_are_forgotten_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runs, "MAX_RETAINED_RUNS", 3)
    async with serving(Scripted(fifty)) as sidecar:
        for number in range(5):
            await sidecar.execute(api.ExecuteRequest(run_id=f"r{number}"))
        for number in range(5):
            known = number >= 2
            answer = sidecar.attach(f"r{number}")
            assert (len(await answer) == 52) if known else (await refusal(answer)).reason is Reason.RUN_NOT_FOUND
        monkeypatch.setattr(_runs, "_RETAINED_BYTES", 1)
        await sidecar.execute(api.ExecuteRequest(run_id="last"))
        assert [run.run_id for run in sidecar.server.servicer._runs] == ["last"], "the last one is always kept"


async def test_a_run_is_forgotten_after_its_time_and_its_id_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_runs, "RETAIN_FINISHED_S", 0.0)
    adapter = Scripted()
    async with serving(adapter) as sidecar:
        await sidecar.execute(api.ExecuteRequest(run_id="r"))
        await until(lambda: not list(sidecar.server.servicer._runs))
        await sidecar.execute(api.ExecuteRequest(run_id="r", prompt="another"))
        assert len(adapter.runs) == 2


# Drain.


async def test_drain_ends_runs_and_their_readers_get_the_result() -> None:
    adapter = Scripted(until_cancelled)
    async with serving(adapter) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        drained = asyncio.ensure_future(sidecar.server.servicer.drain(5))
        assert (await call.until("result")).result.outcome == pb.OUTCOME_CANCELLED
        await asyncio.wait_for(drained, DEADLINE_S)
        error = await refusal(sidecar.execute(api.ExecuteRequest(run_id="late")))
        assert error.reason is Reason.DRAINING
        assert error.retry_after_s is not None
        assert (await refusal(sidecar.attach("r"))).reason is Reason.DRAINING
        assert adapter.runs[0].cancellation.reason == "the adapter is shutting down"


async def test_drain_ends_even_a_run_that_ignores_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_service, "_DRAIN_MARGIN_S", 0.1)

    async def deaf(run: Run) -> pb.Result:
        run.started(pb.Started())
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(Scripted(deaf)) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        await asyncio.wait_for(sidecar.server.servicer.drain(0), DEADLINE_S)
        assert (await call.until("result")).result.failure.kind == pb.FAILURE_KIND_INTERNAL


async def test_drain_does_not_wait_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_service, "_FLUSH_S", 0.1)

    async def script(run: Run) -> pb.Result:
        run.started(pb.Started())
        for _ in range(12):  # more than the connection buffers, less than a reader may be behind
            run.emit(pb.AgentEvent(message=pb.Message(text="x" * (MIB // 2))))
        await run.cancellation.changed.wait()
        return CANCELLED

    adapter = Scripted(script)
    async with serving(adapter) as sidecar:
        stalled = sidecar.begin(held("r"))
        await until(lambda: bool(adapter.runs) and adapter.runs[0].event_buffer.last_sequence == 13)
        await asyncio.wait_for(sidecar.server.servicer.drain(0), DEADLINE_S)
        error = await refusal(stalled.rest())
        assert error.reason is Reason.DRAINING
        assert "last_sequence" in error.metadata


async def test_a_second_drain_hurries_the_first() -> None:
    async with serving(Scripted(until_the_last)) as sidecar:
        call = sidecar.begin(held("r"))
        await call.until("started")
        slow = asyncio.ensure_future(sidecar.server.servicer.drain(1000))
        await call.until("state")
        await asyncio.wait_for(sidecar.server.servicer.drain(0), DEADLINE_S)
        await asyncio.wait_for(slow, DEADLINE_S)


def test_logging_is_ours_alone() -> None:
    """grpc and asyncio log through the standard library; nothing here may have made them talk."""
    assert logging.getLogger("dragoman").handlers == []
