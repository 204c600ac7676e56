"""The runs that are written, and the events that wait for the store, bounded in bytes."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from dragoman.router.model.tasks import Conditions
from dragoman.router.storage.logged import GATHERED_BYTES, WRITE_BYTES, WRITE_RUNS, LoggedRun, RowState, WaitingEvent

_GAP: Final = "The run log cannot keep up; some events are not persisted and will be replaced by a gap in replays."


class Backlog:
    """The runs of one router, and their events that wait for the store.

    Args:
        most: the maximum size of all events that wait.
    """

    def __init__(self, most: int) -> None:
        self._runs: dict[str, LoggedRun] = {}
        self._changed: dict[LoggedRun, None] = {}
        """Those of which something is to be written, perhaps."""
        self.most = most
        self.work = asyncio.Event()
        """Set when there is something to write."""
        self.soon = asyncio.Event()
        """Set when there is more to write than events."""
        self.hurry = asyncio.Event()
        """Set when the writer must not wait for more."""
        self.written = Conditions()
        """Checked after each step of the writer."""
        self.size = 0
        """Bytes of events that wait."""
        self.lost = 0
        """How many events are not in the log, and never will be."""

    def __iter__(self) -> Iterator[LoggedRun]:
        return iter(list(self._runs.values()))

    def urge(self) -> None:
        """Have everything written at once."""
        self.hurry.set()
        self.soon.set()
        self.work.set()

    async def until(self, reached: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Have everything written at once unless a condition holds, and wait for it; False if it takes too long."""
        if not reached():
            self.urge()
        return await self.written.until(reached, timeout_s)

    def due(self) -> list[LoggedRun]:
        """Return the runs of which the writer has something to write: first those of whose rows others may wait."""
        due = [run for run in self._changed if run.is_due]
        self._changed = dict.fromkeys(due)
        if len(due) > WRITE_RUNS:
            # Neighbours in the database are written together.
            due.sort(key=lambda run: (not run.is_row_changed, run.stored.run_id))
        return due

    def find(self, run_id: str) -> LoggedRun | None:
        """Return the run with this id."""
        return self._runs.get(run_id)

    def add(self, run: LoggedRun) -> None:
        """Add a run, in place of one with its id."""
        replaced = self._runs.get(run.stored.run_id)
        if replaced is not None:
            replaced.supersede()
            self.release(replaced)
        self._runs[run.stored.run_id] = run

    def remove(self, run: LoggedRun) -> None:
        """Have a run deleted that never was; a new one may have its id from now on."""
        is_unknown = run.state is RowState.NEW and not run.is_tried
        self.release(run)
        run.state, run.is_over = RowState.DROPPED if is_unknown else RowState.REMOVED, True
        self.changed(run)
        self.written.check()

    def is_removing(self, run_id: str) -> bool:
        """Return whether a run with this id is to be deleted, and may still be in the store."""
        return any(run.state is RowState.REMOVED and run.stored.run_id == run_id for run in self.due())

    def release(self, run: LoggedRun) -> None:
        """Remove a run of which no more is written, with its events."""
        self.size -= run.waiting_bytes
        run.waiting.clear()
        run.waiting_bytes = 0
        if self._runs.get(run.stored.run_id) is run:
            del self._runs[run.stored.run_id]

    def append(self, run: LoggedRun, sequence: int, data: bytes, *, changes_row: bool = True) -> None:
        """Add a run's next event; skipped sequences are known to be lost.

        The run's row is written with it if the event changes more than the run's end.
        """
        if run.is_gone:
            return  # another router has it, or it cannot be stored
        run.waiting.append(WaitingEvent(sequence, data))
        run.waiting_bytes += len(data)
        run.last = sequence
        self.size += len(data)
        while self.size > self.most and self._drop_oldest():
            pass
        if run.waiting_bytes > GATHERED_BYTES or self.size > WRITE_BYTES:
            self.urge()
        self.changed(run, in_row=changes_row)

    def skip(self, run: LoggedRun, sequence: int) -> None:
        """Note that a run's events up to this one are missing."""
        if not run.is_gone and sequence > run.last:
            self.lost += sequence - run.last
            run.last = run.dropped = sequence
            self.changed(run)

    def changed(self, run: LoggedRun, *, in_row: bool = True) -> None:
        """Note that what waits of a run is to be written, and its row unless no more than its end has changed."""
        run.changes += 1
        if in_row:
            run.row_change = run.changes
            self.soon.set()
        self._changed[run] = None
        self.work.set()

    def is_writing(self, run_id: str) -> bool:
        """Return whether there is a run with this id that may not be in the store yet."""
        run = self._runs.get(run_id)
        return run is not None and not run.is_begun

    def _drop_oldest(self) -> bool:
        """Drop one event; False if all that wait are results, behind which no event could report the gap."""
        droppable = [run for run in self._runs.values() if len(run.waiting) > run.is_over]
        if not droppable:
            return False
        run = max(droppable, key=lambda item: item.waiting_bytes)
        oldest = run.waiting.pop(0)
        if not run.dropped:
            run.remark("log_gap", _GAP)
        run.dropped = max(run.dropped, oldest.sequence)
        run.waiting_bytes -= len(oldest.data)
        self.size -= len(oldest.data)
        self.lost += 1
        return True
