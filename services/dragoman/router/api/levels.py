"""What is to be measured of a router beside its calls."""

from collections import Counter
from collections.abc import Iterator

from dragoman.protocol.observer import Level, Observer
from dragoman.protocol.texts import enum_name
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.runs.actor import Run
from dragoman.router.runs.admission import AdmissionController
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.runs.state import Superseded
from dragoman.router.storage.run_log import RunLog
from dragoman.v1 import event_pb2, router_pb2


class RunsWatched:
    """Reports the runs that end, and reads the levels of the router.

    Args:
        runs: the runs.
        adapters: the adapters.
        admission: has the queues and circuit breakers.
        run_log: the run log.
    """

    def __init__(
        self, runs: RunRegistry, adapters: AdapterPool, admission: AdmissionController, run_log: RunLog
    ) -> None:
        self._runs = runs
        self._adapters = adapters
        self._admission = admission
        self._run_log = run_log
        self._events: Counter[str] = Counter()
        self.observer = Observer()

    def ended(self, run: Run) -> None:
        """Report a run that is over, or another router's, and end its span here."""
        record = run.record
        run.span.end(record.result)
        self._events[record.adapter] += _events(run)
        if isinstance(run.state, Superseded):
            return  # that router reports its end
        outcome = "REJECTED"
        if record.result is not None:
            outcome = enum_name(event_pb2.Outcome.DESCRIPTOR, record.result.outcome, "OUTCOME_")
        duration_s = max(0.0, (record.finished_at or record.accepted_at) - record.accepted_at)
        self.observer.run_ended(record.adapter, outcome, duration_s)

    def levels(self) -> Iterator[Level]:
        """Yield the present levels."""
        live = self._runs.live()
        entries = self._adapters.entries()
        types = [entry.adapter for entry in entries]
        yield Level("live_runs", "Runs that have not ended.", {**dict.fromkeys(types, 0), **_by_adapter(live)})
        queued = {type_: self._admission.limiter.queued(type_) for type_ in types}
        yield Level("queued_runs", "Runs that wait for a slot of their adapter.", queued)
        now, opened = self._admission.clock.time(), self._admission.breakers.opened
        breakers = {type_: len(opened(type_, now)) for type_ in types}
        yield Level("open_breakers", "Circuit breakers that are open: one for each login and model.", breakers)
        takes_runs = (router_pb2.ADAPTER_STATE_READY, router_pb2.ADAPTER_STATE_IDLE)
        usable = {entry.adapter: float(entry.state in takes_runs) for entry in entries}
        yield Level("adapter_usable", "Whether runs of an adapter can be started.", usable)
        events = self._events.copy()
        for run in live:
            events[run.record.adapter] += _events(run)
        yield Level("events", "Events of runs, without those that are not kept.", events, is_total=True)
        backlog, writer = self._run_log.writer.backlog, self._run_log.writer
        yield Level("run_log_waiting_bytes", "Events that are not in the run log yet.", {"": backlog.size})
        yield Level(
            "run_log_failing", "Whether the run log cannot be written now.", {"": float(bool(writer.failing))}
        )
        yield Level("run_log_lost_events", "Events that are gaps in replays.", {"": backlog.lost}, is_total=True)


def _by_adapter(runs: list[Run]) -> Counter[str]:
    return Counter(run.record.adapter for run in runs)


def _events(run: Run) -> int:
    return run.record.last_sequence - run.inherited_events
