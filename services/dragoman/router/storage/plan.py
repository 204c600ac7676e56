"""What is written next, without I/O: ``plan`` makes the writes, the store executes them, ``apply`` notes that."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dragoman.router.model.stored import StoredEvents, StoredRun
from dragoman.router.storage.logged import WRITE_BYTES, LoggedRun, RowState, rows_of


@dataclass(frozen=True, slots=True)
class Write:
    """One run's part of a transaction."""

    run: LoggedRun
    row: StoredRun
    """Its row as it is then."""
    events: Sequence[StoredEvents]
    upto: int
    """The last sequence that is written then."""
    changes: int
    """How many of the run's changes are written then."""

    def apply(self) -> int:
        """Note that the store has it; return the size of the events that no longer wait."""
        self.run.stored, self.run.written = self.row, self.changes
        return self.run.trim(self.upto)


def plan(runs: Iterable[LoggedRun], budget: int = WRITE_BYTES) -> list[Write]:
    """Return the writes of one transaction, for the stored runs that have changed.

    Args:
        runs: the runs; a small one does not wait for a large one.
        budget: the maximum size of all events, unless a run's first one alone is larger.
    """
    writes = []
    changed = (run for run in runs if run.state is RowState.STORED and run.is_changed)
    for run in sorted(changed, key=lambda run: run.waiting_bytes):
        events = rows_of(run, budget)
        writes.append(_write(run, events))
        budget -= _size(events)
    return writes


def insertion(run: LoggedRun) -> StoredRun:
    """Return the row of a new run, before its events."""
    return _not_ahead(run, _present(run), is_complete=not run.waiting)


def _write(run: LoggedRun, events: Sequence[StoredEvents]) -> Write:
    is_complete = not run.waiting or bool(events and events[-1].last >= run.waiting[-1][0])
    row = _not_ahead(run, _present(run), is_complete=is_complete)
    logged = events[-1].last if events else run.stored.logged
    upto, changes = (run.last, run.changes) if is_complete else (events[-1].last, run.written)
    return Write(run, replace(row, logged=logged, size=run.stored.size + _size(events)), events, upto, changes)


def _present(run: LoggedRun) -> StoredRun:
    return replace(run.snapshot(), logged=run.stored.logged, size=run.stored.size)


def _not_ahead(run: LoggedRun, row: StoredRun, *, is_complete: bool) -> StoredRun:
    """Return a row that is not ahead of the stored events: above all, it does not say that the run is over."""
    return row if is_complete else replace(row, state=run.stored.state, finished_at=run.stored.finished_at)


def _size(events: Iterable[StoredEvents]) -> int:
    return sum(len(row.data) for row in events if row.data is not None)
