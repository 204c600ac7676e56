"""One run by itself: what it waits for before it tells anybody."""

import asyncio
import contextlib
from typing import Any, cast

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.holding import Holders
from dragoman.protocol.wire import join
from dragoman.router._domain.directory import Directory
from dragoman.router._domain.run_states import Step
from dragoman.router._domain.runs import RunRecord
from dragoman.router._local.clock import SystemClock
from dragoman.router._ports import Launcher, Processes
from dragoman.router._rpc import run as run_module
from dragoman.router._rpc import steering
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.run import Run
from dragoman.router._rpc.scene import Scene, Timing
from dragoman.router._store.writer import LoggedRun, Writer
from dragoman.v1 import event_pb2 as pb

SCENE = Scene(Directory(), cast("Launcher", None), SystemClock(), cast("Processes", None), Timing())


class Marking:
    """A writer that notes which sequences were to be told, and what had been told by then."""

    def __init__(self, run: Run) -> None:
        self.asked: list[tuple[int, int]] = []
        self._run = run
        self.is_taken = False
        self.written = asyncio.Event()

    async def flushed(self, _logged: object, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.written.wait(), timeout_s)
        return False

    def over(self, _logged: object) -> None: ...

    async def reserved(self, _logged: object, sequence: int) -> None:
        self.asked.append((sequence, self._run.fanout.last_sequence))

    def append(self, *_event: object) -> None: ...


def event(sequence: int, **body: Any) -> bytes:
    return pb.AgentEvent(sequence=sequence, run_id="r", attempt=1, **body).SerializeToString()


def followed() -> tuple[Run, Marking]:
    record = RunRecord(run_id="r", adapter="fake", number=1, accepted_at=0.0)
    run = Run(record, cast("Host", None), SCENE, lambda _run: None)
    run.step(Step.PINNED)
    marking = Marking(run)
    run.keep(cast("Writer", marking), cast("LoggedRun", marking))
    return run, marking


def result(sequence: int) -> bytes:
    return event(sequence, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))


async def test_how_a_run_ended_is_told_once_it_is_written() -> None:
    run, marking = followed()
    reader = run.fanout.reader()
    await run.take(event(1, started=pb.Started()))
    await run.take(result(2))
    assert await reader.read() == [event(1, started=pb.Started())]
    assert run.is_ending
    assert not run.over.is_set()
    run.lose("is gone")  # too late: it is known how it ended
    marking.written.set()
    await run.over.wait()
    assert await reader.read() == [result(2)]
    assert await reader.read() == []


async def test_a_loss_too_is_told_once_it_is_written() -> None:
    run, marking = followed()
    await run.take(event(1, started=pb.Started()))
    run.lose("is gone")
    assert run.fanout.last_sequence == 1
    marking.written.set()
    await run.over.wait()
    assert run.fanout.last_sequence == 2


async def test_a_log_that_fails_keeps_nobody_from_hearing_how_a_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_TOLD_S", 0.05)
    run, _marking = followed()
    await run.take(event(1, started=pb.Started()))
    await run.take(result(2))
    await run.over.wait()


async def test_the_end_of_a_run_that_another_router_has_taken_is_not_told() -> None:
    run, marking = followed()
    run.holders = Holders(0.0, lambda: None)
    await run.take(event(1, started=pb.Started()))
    await run.take(result(2))
    marking.is_taken = True
    marking.written.set()
    async with asyncio.timeout(9):
        await run.streams_end.wait()  # whoever follows it is to ask again, and will be sent there
    assert run.is_given_up
    assert run.fanout.last_sequence == 1
    assert run.refusal is not None
    assert run.refusal.reason is Reason.ADAPTER_UNAVAILABLE


async def test_a_cancel_of_what_turns_out_to_be_another_routers_run_says_so() -> None:
    run, marking = followed()
    run.unpin()
    run.holders = Holders(0.0, lambda: None)
    cancel = asyncio.ensure_future(steering.cancel(run, b"", SCENE))
    await asyncio.wait([cancel], timeout=0.05)
    assert run.is_ending, "no adapter had it"
    marking.is_taken = True
    marking.written.set()
    with pytest.raises(DragomanError) as failure:
        await asyncio.wait_for(cancel, 9)
    assert failure.value.reason is Reason.ADAPTER_UNAVAILABLE


async def test_each_event_of_a_batch_waits_for_the_mark() -> None:
    run, marking = followed()
    await run.take(event(1, started=pb.Started()))
    await run.take(join([event(number, text=pb.Text(delta="x")) for number in (2, 3)]))
    assert marking.asked == [(1, 0), (2, 1), (3, 2)]
    assert run.fanout.last_sequence == 3


async def test_a_run_that_its_router_leaves_beats_no_more() -> None:
    run, _ = followed()
    run.beat()
    assert run._beating is not None
    run._beating.cancel()
    run._beating = None
    run.streams_end.set()
    run.beat()
    assert run._beating is None


async def test_a_run_between_two_attempts_that_another_router_took_waits_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "_MOVED_S", 0.01)
    run, marking = followed()
    await run.take(event(1, started=pb.Started()))
    failed = pb.AgentEvent(sequence=2, result=pb.Result(outcome=pb.OUTCOME_FAILED))
    run.held_back = failed, failed.SerializeToString()
    marking.is_taken = True
    async with asyncio.timeout(5):
        await run.turn("", "it is tried again")
    assert run.is_given_up
    assert run.fanout.last_sequence == 1, "what follows is the other router's to tell"
