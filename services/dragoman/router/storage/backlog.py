"""The runs that are written, and the events that wait for the store, bounded in bytes."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from dragoman.router.storage.logged import ROW_BYTES, LoggedRun, RowState

_GAP: Final = "The run log cannot keep up; some events are not persisted and will be replaced by a gap in replays."


class Signals:
    """Wakes the write loop, and those that wait for what it writes."""

    def __init__(self) -> None:
        self.work = asyncio.Event()
        """Set when there is something to write."""
        self.hurry = asyncio.Event()
        """Set when it must not wait for more."""
        self.written = asyncio.Condition()
        """Notified after each step of the write loop."""

    def urge(self) -> None:
        """Have everything written soon."""
        self.hurry.set()
        self.work.set()

    async def wake(self) -> None:
        """Wake those that wait for what is written."""
        async with self.written:
            self.written.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a condition that the write loop brings about."""
        async with self.written:
            await self.written.wait_for(reached)


class Backlog:
    """The runs of one router, and their events that wait for the store.

    Args:
        most: the maximum size of all events that wait.
        signals: wakes the write loop.
    """

    def __init__(self, most: int, signals: Signals) -> None:
        self._runs: dict[str, LoggedRun] = {}
        self._most = most
        self._signals = signals
        self.size = 0
        """Bytes of events that wait."""

    def __iter__(self) -> Iterator[LoggedRun]:
        return iter(list(self._runs.values()))

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

    def release(self, run: LoggedRun) -> None:
        """Remove a run with its events; if it is not gone yet, it is dropped."""
        if not run.is_gone:
            run.state = RowState.DROPPED
        self.size -= run.waiting_bytes
        run.waiting.clear()
        run.waiting_bytes = 0
        self.discard(run)

    def discard(self, run: LoggedRun) -> None:
        """Remove a run of which everything is written."""
        if self._runs.get(run.stored.run_id) is run:
            del self._runs[run.stored.run_id]

    def append(self, run: LoggedRun, sequence: int, data: bytes, *, changes_row: bool = True) -> None:
        """Add a run's next event; skipped sequences are known to be lost."""
        if self._runs.get(run.stored.run_id) is not run:
            return  # another router has it, or it cannot be stored
        run.waiting.append((sequence, data))
        run.waiting_bytes += len(data)
        run.last = sequence
        self.size += len(data)
        while self.size > self._most and self._drop_oldest():
            pass
        if self.size > ROW_BYTES:
            self._signals.hurry.set()
        if changes_row:
            self.changed(run)
        else:
            run.changes += 1
            self._signals.work.set()

    def skip(self, run: LoggedRun, sequence: int) -> None:
        """Note that a run's events up to this one are missing."""
        if self._runs.get(run.stored.run_id) is run and sequence > run.last:
            run.last = run.dropped = sequence
            self.changed(run)

    def changed(self, run: LoggedRun) -> None:
        """Note that a run's row is to be written, and what waits before."""
        run.changes += 1
        run.row_change = run.changes
        self._signals.work.set()

    def is_writing(self, run_id: str) -> bool:
        """Return whether there is a run with this id that may not be in the store yet."""
        run = self._runs.get(run_id)
        return run is not None and not run.is_begun

    def is_crowded(self, run: LoggedRun) -> bool:
        """Return whether many events of this run, or of all, wait."""
        return not run.is_gone and (run.waiting_bytes > self._most // 8 or self.size > self._most // 2)

    def _drop_oldest(self) -> bool:
        """Drop one event; False if all that wait are results, behind which no event could report the gap."""
        droppable = [run for run in self._runs.values() if len(run.waiting) > run.is_over]
        if not droppable:
            return False
        run = max(droppable, key=lambda item: item.waiting_bytes)
        sequence, data = run.waiting.popleft()
        if not run.dropped:
            run.remark("log_gap", _GAP)
        run.dropped = max(run.dropped, sequence)
        run.waiting_bytes -= len(data)
        self.size -= len(data)
        return True
