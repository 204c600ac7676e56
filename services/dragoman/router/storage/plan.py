"""What is written next, without I/O: ``plan`` makes the writes, the store executes them, ``apply`` notes that."""

from collections.abc import Iterable, Sequence

from dragoman.router.model.stored import StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.batches import UnpackedEvents
from dragoman.router.storage.logged import WRITE_BYTES, LoggedRun, RowState, rows_of
from msgspec import Struct
from msgspec.structs import replace


class Write(Struct, frozen=True):
    """One run's part of a transaction."""

    run: LoggedRun
    row: StoredRun | StoredProgress
    """Its row as it is then, or only what changes of it."""
    events: Sequence[StoredEvents | UnpackedEvents]
    upto: int
    """The last sequence that is written then."""
    changes: int
    """How many of the run's changes are written then."""

    def apply(self) -> int:
        """Note that the store has it; return the size of the events that no longer wait."""
        run, row = self.run, self.row
        run.logged, run.size, run.written = row.logged, row.size, self.changes
        if isinstance(row, StoredRun):
            run.stored = row
        return run.trim(self.upto)


def plan(runs: Iterable[LoggedRun], budget: int = WRITE_BYTES) -> list[Write]:
    """Return the writes of one transaction, for the stored runs that have changed.

    Args:
        runs: the runs; a small one does not wait for a large one.
        budget: the maximum size of all events, unless a run's first one alone is larger.
    """
    writes = []
    changed = (run for run in runs if run.state is RowState.STORED and run.is_changed)
    for run in sorted(changed, key=lambda run: run.waiting_bytes):
        events, size = rows_of(run, budget)
        writes.append(_write(run, events, size))
        budget -= size
    return writes


def insertion(run: LoggedRun) -> StoredRun:
    """Return the row of a new run, before its events: so it does not say that the run is over if there are any."""
    row = replace(run.snapshot(), logged=run.logged, size=run.size)
    return replace(row, state=run.stored.state, finished_at=run.stored.finished_at) if run.waiting else row


def _write(run: LoggedRun, events: Sequence[StoredEvents | UnpackedEvents], size: int) -> Write:
    is_complete = not run.waiting or bool(events and events[-1].last >= run.waiting[-1][0])
    logged, size = events[-1].last if events else run.logged, run.size + size
    if not is_complete:
        # Its row must not be ahead of the stored events: above all, it does not say that the run is over.
        return Write(run, _progress(run, logged, size), events, logged, run.written)
    row = replace(run.snapshot(), logged=logged, size=size) if run.is_row_changed else _progress(run, logged, size)
    return Write(run, row, events, run.last, run.changes)


def _progress(run: LoggedRun, logged: int, size: int) -> StoredProgress:
    return StoredProgress(run.stored.run_id, run.stored.owner, logged, size)
