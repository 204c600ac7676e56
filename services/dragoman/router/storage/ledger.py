"""One run's entry in the run log, as the run writes it."""

from typing import Final

from dragoman.router.storage.database import BUSY_S
from dragoman.router.storage.logged import LoggedRun, RowState
from dragoman.router.storage.writer import Writer

_ASSIGNED_S: Final = BUSY_S + 1.0
"""The longest wait for an assignment to be stored before dispatch: longer than a lock of the database."""
STALLED_S: Final = 15.0
"""How long an event waits for a store that neither writes nor fails: longer than a failure takes."""


class RunLedger:
    """One run's entry in the run log.

    Args:
        writer: stores what all runs of this router write.
        entry: the run, as the writer sees it.
    """

    def __init__(self, writer: Writer, entry: LoggedRun) -> None:
        self._writer = writer
        self._backlog = writer.backlog
        self.entry = entry

    @property
    def is_begun(self) -> bool:
        """Whether the log has the run."""
        return self.entry.is_begun

    @property
    def logged(self) -> int:
        """The last sequence that the log has, or never will have."""
        return self.entry.logged

    @property
    def is_taken(self) -> bool:
        """Whether another router has the run."""
        return self.entry.is_taken

    async def begin(self) -> None:
        """Wait until the log has the run, before its id is published; a run whose id is taken is superseded.

        While the log fails the run is inserted later, and whether the id is taken is not known.
        """
        if self.is_begun:
            return
        self.changed()
        self._backlog.urge()
        await self._backlog.written.until(lambda: self.entry.state is not RowState.NEW or bool(self._writer.failing))
        if self.entry.state is RowState.NEW:
            self._writer.fails(self._writer.failing)

    def changed(self) -> None:
        """Have the run's row stored."""
        self._backlog.changed(self.entry)

    def append(self, sequence: int, data: bytes, *, changes_row: bool = True) -> None:
        """Store an event, shortly; and the run's row if it changes that."""
        self._backlog.append(self.entry, sequence, data, changes_row=changes_row)

    def skip(self, sequence: int) -> None:
        """Store that the events up to this one are missing."""
        self._backlog.skip(self.entry, sequence)

    def over(self) -> None:
        """Note that only the run's result follows, or nothing; what waits is still written."""
        self.entry.is_over = True
        self.changed()
        self._backlog.urge()

    def is_ready(self, sequence: int) -> bool:
        """Return whether ``may_publish`` has nothing to wait for."""
        return self.entry.may_publish(sequence) and not self._backlog.is_crowded(self.entry)

    async def may_publish(self, sequence: int) -> None:
        """Wait while many events of this run, or of all, wait for the store, so that their adapters wait too.

        Not while the store fails: then events are dropped, see ``Backlog.append``, and runs continue, until they are
        as far ahead of the store as a router may be.
        """
        if not self.entry.may_publish(sequence):
            self._backlog.urge()
            await self._backlog.written.until(lambda: self.entry.may_publish(sequence))
        if not self._has_room():
            self._backlog.urge()
            await self._backlog.written.until(self._has_room, STALLED_S)

    def _has_room(self) -> bool:
        return not self._backlog.is_crowded(self.entry) or bool(self._writer.failing) or self._writer.is_closing

    async def flushed(self, timeout_s: float) -> bool:
        """Wait until everything so far is stored; False if it is not in time, or another router has the run.

        Nothing of a run that cannot be stored waits. One that another router has is never written: False at once.
        """
        return await self._writer.flushed([self.entry], timeout_s) and not self.is_taken

    async def assigned(self) -> None:
        """Wait until the run's assignment is stored, or the log is known to fail."""
        self.changed()
        await self.begin()
        if not self._writer.failing:
            await self.flushed(_ASSIGNED_S)

    def remove(self) -> None:
        """Have the run deleted, as it never was: no new run with its id is inserted before."""
        self._backlog.remove(self.entry)
        self._backlog.urge()
