"""One run by itself: what it waits for before it tells anybody."""

from typing import Any, cast

from dragoman.protocol.wire import join
from dragoman.router._domain.runs import RunRecord
from dragoman.router._local.clock import SystemClock
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.run import Run
from dragoman.router._store.writer import LoggedRun, Writer
from dragoman.v1 import event_pb2 as pb


class Marking:
    """A writer that notes which sequences were to be told, and what had been told by then."""

    def __init__(self, run: Run) -> None:
        self.asked: list[tuple[int, int]] = []
        self._run = run

    async def reserved(self, _logged: object, sequence: int) -> None:
        self.asked.append((sequence, self._run.fanout.last_sequence))

    def append(self, *_event: object) -> None: ...


def event(sequence: int, **body: Any) -> bytes:
    return pb.AgentEvent(sequence=sequence, run_id="r", attempt=1, **body).SerializeToString()


async def test_each_event_of_a_batch_waits_for_the_mark() -> None:
    record = RunRecord(run_id="r", adapter="fake", number=1, accepted_at=0.0)
    run = Run(record, cast("Host", None), SystemClock(), lambda _run: None)
    marking = Marking(run)
    run.keep(cast("Writer", marking), cast("LoggedRun", object()))
    await run.take(event(1, started=pb.Started()))
    await run.take(join([event(number, text=pb.Text(delta="x")) for number in (2, 3)]))
    assert marking.asked == [(1, 0), (2, 1), (3, 2)]
    assert run.fanout.last_sequence == 3
