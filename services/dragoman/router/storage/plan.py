"""What is written next, without I/O: ``plan`` makes the writes, the store executes them, ``apply`` notes that."""

import bisect
from collections.abc import Iterable, Sequence
from typing import Final

from dragoman.router.model.stored import StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.logged import NOTED, WRITE_BYTES, LoggedRun, RowState, rows_of
from dragoman.v1 import router_pb2
from msgspec import Struct
from msgspec.structs import replace

_NO_STATE: Final = router_pb2.GetRunResponse()
"""In place of what the store has: it takes a kilobyte and a half, and only the first write of a run looks at it."""


class Write(Struct, frozen=True):
    """One run's part of a transaction."""

    run: LoggedRun
    row: StoredRun | StoredProgress
    """Its row as it is then, or only what changes of it."""
    events: Sequence[StoredEvents]
    upto: int
    """The last sequence that is written then."""
    changes: int
    """How many of the run's changes are written then."""

    def apply(self) -> int:
        """Note that the store has it; return the size of the events that no longer wait."""
        run, row = self.run, self.row
        run.logged, run.size, run.written = row.logged, row.size, self.changes
        if isinstance(row, StoredRun):
            run.stored = replace(row, state=_NO_STATE)
        if isinstance(row, StoredRun) or not row.may_lag:
            run.noted = row.logged
        count = bisect.bisect_right(run.waiting, self.upto, key=lambda event: event.sequence)
        size = sum([len(event.data) for event in run.waiting[:count]])
        del run.waiting[:count]
        run.waiting_bytes -= size
        if run.dropped <= self.upto:
            run.dropped = 0
        return size


def plan(runs: Iterable[LoggedRun], budget: int = WRITE_BYTES) -> list[Write]:
    """Return the writes of one transaction, for the runs that have changed.

    Args:
        runs: the runs; a small one does not wait for a large one.
        budget: the maximum size of all events, unless a run's first one alone is larger.
    """
    writes = []
    changed = [run for run in runs if run.is_changed and not run.is_gone]
    changed.sort(key=lambda run: run.waiting_bytes)
    for run in changed:
        events, size = rows_of(run, budget)
        writes.append(_write(run, events, size))
        budget -= size
    return writes


def _write(run: LoggedRun, events: Sequence[StoredEvents], size: int) -> Write:
    logged, size = events[-1].last if events else run.logged, run.size + size
    is_complete, is_new = not run.waiting or logged >= run.waiting[-1].sequence, run.state is RowState.NEW
    may_lag = bool(events) and logged <= run.noted + NOTED
    row: StoredRun | StoredProgress = StoredProgress(run.stored.run_id, run.stored.owner, logged, size, may_lag)
    if is_new or (is_complete and run.is_row_changed):
        row = replace(run.snapshot(), logged=logged, size=size)
    if is_complete:
        return Write(run, row, events, run.last, run.changes)
    if isinstance(row, StoredRun):
        # It must not be ahead of the stored events: above all, it does not say that the run is over.
        row = replace(row, state=run.stored.state, finished_at=run.stored.finished_at)
    return Write(run, row, events, logged, run.written)
