"""Runs for unit tests: made without a server, read back as a reader would, on clocks that only tests turn."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from dragoman.protocol.order import OrderChecker
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.sdk._run.run import Run
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

T = TypeVar("T")


def make_run(request: api.ExecuteRequest | None = None, secrets: Iterable[str] = (), *, started: bool = True) -> Run:
    """Return a run; its first attempt is open unless said otherwise. Needs a running loop."""
    run_request = request or api.ExecuteRequest()
    run_request.run_id = run_request.run_id or "run-1"
    run = Run(run_request, None, adapter="fake", instance_id="instance-1")
    run.redactor = Redactor(secrets)
    if started:
        run.started(pb.Started())
    return run


async def written(run: Run) -> list[pb.AgentEvent]:
    """Return all durable events so far, in order, as they are on the wire; the order is checked."""
    reader = run.event_buffer.reader()
    events: list[pb.AgentEvent] = []
    while reader.last_sequence < run.event_buffer.last_sequence:
        events += map(pb.AgentEvent.FromString, await reader.read())
    reader.close()
    checker = OrderChecker()
    checker.observe_all(events)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    if run.finished.is_set():
        checker.finish()
    return events


def kinds(events: Iterable[pb.AgentEvent]) -> list[str]:
    """Return the kinds of events."""
    return [event.WhichOneof("body") or "" for event in events]


class _InstantSelector(selectors.SelectSelector):
    """Lets time pass instead of waiting."""

    def __init__(self, loop: "TravelLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits, and nothing is due: a deadlock"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


class TravelLoop(asyncio.SelectorEventLoop):
    """A loop that is always at the next timer's time, at once. For code that waits for timers alone."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_InstantSelector(self))
        self._clock_resolution = 1e-6  # far from zero a float has no nanoseconds

    def time(self) -> float:
        return self.now


def travel(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in a loop of its own where waiting takes no time."""

    async def body() -> T:
        return await work()

    with asyncio.Runner(loop_factory=TravelLoop) as runner:
        return runner.run(body())
