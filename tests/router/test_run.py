"""One run by itself: what it waits for before it publishes."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.wire import join
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.registry import AdapterRecord
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.run_record import RunRecord, adapter_lost
from dragoman.router.model.tasks import Tasks
from dragoman.router.runs import actor, cancellation
from dragoman.router.runs.actor import Run, RunHost
from dragoman.router.runs.inputs import Abandoned, Accepted, Assigned, AttemptFailed, Declined
from dragoman.router.runs.intake import EventIntake
from dragoman.router.runs.state import Superseded, is_over
from dragoman.router.storage.ledger import RunLedger
from dragoman.router.system import SystemClock
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

from tests.router.runs.unlogged import take

CLOCK = SystemClock()
BACKEND = cast("AdapterBackend", SimpleNamespace(record=AdapterRecord(AdapterSpec("fake", Source.ADDRESS), 0)))


class Marking:
    """An entry that notes which sequences were to be published, and what had been published by then."""

    is_taken = is_begun = False
    logged = 0

    def __init__(self, run: Run) -> None:
        self.asked: list[tuple[int, int]] = []
        self.skipped: list[int] = []
        self._run = run
        self.written = asyncio.Event()

    async def flushed(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.written.wait(), timeout_s)
        return False

    def over(self) -> None: ...

    def is_ready(self, _sequence: int) -> bool:
        return False

    async def may_publish(self, sequence: int) -> None:
        self.asked.append((sequence, self._run.fanout.last_sequence))

    def append(self, *_event: object, **_how: object) -> None: ...

    def skip(self, sequence: int) -> None:
        self.skipped.append(sequence)


def event(sequence: int, **body: Any) -> bytes:
    return pb.AgentEvent(sequence=sequence, run_id="r", attempt=1, **body).SerializeToString()


def followed() -> tuple[Run, Marking, EventIntake]:
    record = RunRecord(run_id="r", adapter="fake", accepted_at=0.0)
    run = Run(record, BACKEND, RunHost(CLOCK, Tasks()))
    marking = Marking(run)
    run.ledger = cast("RunLedger", marking)
    run.send(Assigned(Dispatched("unix:/a", "i")))
    run.send(Accepted())
    return run, marking, EventIntake(run, CLOCK)


def result(sequence: int) -> bytes:
    return event(sequence, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))


async def test_the_result_is_published_once_it_is_written() -> None:
    run, marking, intake = followed()
    reader = run.fanout.reader()
    await take(intake, event(1, started=pb.Started()))
    await take(intake, result(2))
    assert await reader.read() == [event(1, started=pb.Started())]
    assert run.is_ending
    assert not is_over(run.state)
    run.send(Abandoned(adapter_lost("fake", "is gone")))  # too late: it is known how it ended
    marking.written.set()
    assert await run.until(is_over, 9)
    assert await reader.read() == [result(2)]
    assert await reader.read() == []


async def test_a_gap_of_the_adapter_is_stored_as_what_is_missing() -> None:
    _run, marking, intake = followed()
    await take(intake, event(1, started=pb.Started()))
    await take(intake, event(0, gap=pb.Gap(from_sequence=2, to_sequence=90_000, reason=pb.GAP_REASON_EVICTED)))
    assert marking.skipped == [90_000], "the log, which events are never far ahead of, need not wait for these"
    await take(intake, event(90_001, text=pb.Text(delta="x", item_id="i")))


async def test_a_loss_too_is_published_once_it_is_written() -> None:
    run, marking, intake = followed()
    await take(intake, event(1, started=pb.Started()))
    run.send(Abandoned(adapter_lost("fake", "is gone")))
    assert run.fanout.last_sequence == 1
    marking.written.set()
    assert await run.until(is_over, 9)
    assert run.fanout.last_sequence == 2


async def test_a_log_that_fails_keeps_no_reader_from_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "_STORED_S", 0.05)
    run, _marking, intake = followed()
    await take(intake, event(1, started=pb.Started()))
    await take(intake, result(2))
    assert await run.until(is_over, 9)


async def test_the_result_of_a_run_that_another_router_claimed_is_not_published() -> None:
    run, marking, intake = followed()
    await take(intake, event(1, started=pb.Started()))
    await take(intake, result(2))
    marking.is_taken = True
    marking.written.set()
    async with asyncio.timeout(9):
        await run.streams_end.wait()  # its readers are to ask again, and will be sent there
    assert isinstance(run.state, Superseded)
    assert run.fanout.last_sequence == 1
    assert run.refusal is not None
    assert run.refusal.reason is Reason.ADAPTER_UNAVAILABLE


async def test_a_cancel_of_what_turns_out_to_be_another_routers_run_says_so() -> None:
    run, marking, _intake = followed()
    run.send(Declined())
    cancel = asyncio.ensure_future(cancellation.cancel(run, adapter_pb2.CancelRequest()))
    await asyncio.wait([cancel], timeout=0.05)
    assert run.is_ending, "no adapter had it"
    marking.is_taken = True
    marking.written.set()
    with pytest.raises(DragomanError) as failure:
        await asyncio.wait_for(cancel, 9)
    assert failure.value.reason is Reason.ADAPTER_UNAVAILABLE


async def test_each_event_of_a_batch_waits_for_the_mark() -> None:
    run, marking, intake = followed()
    await take(intake, event(1, started=pb.Started()))
    (batch,) = join([event(number, text=pb.Text(offset=number - 2, delta="x")) for number in (2, 3)])
    await take(intake, batch)
    assert marking.asked == [(1, 0), (2, 1), (3, 2)]
    assert run.fanout.last_sequence == 3


async def test_a_run_that_its_router_leaves_beats_no_more() -> None:
    run, _, _ = followed()
    run.notices.beat(lambda: True)
    assert run.notices._heartbeat is not None
    run.end_streams()
    assert run.notices._heartbeat is None


async def test_a_run_between_two_attempts_that_another_router_took_waits_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor, "_STORED_S", 0.01)
    run, marking, intake = followed()
    await take(intake, event(1, started=pb.Started()))
    failed = pb.AgentEvent(sequence=2, result=pb.Result(outcome=pb.OUTCOME_FAILED, failure=pb.Failure(message="x")))
    run.send(AttemptFailed(failed, failed.SerializeToString()))
    marking.is_taken = True
    async with asyncio.timeout(5):
        await run.end_attempt("", "it is tried again")
    assert isinstance(run.state, Superseded)
    assert run.fanout.last_sequence == 1, "what follows is for the other router to publish"
