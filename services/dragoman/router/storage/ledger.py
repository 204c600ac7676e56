"""One run's entry in the run log, as the run writes it."""

from typing import Final

from dragoman.router.storage.database import BUSY_S
from dragoman.router.storage.logged import LoggedRun, RowState
from dragoman.router.storage.writer import Writer

_ASSIGNED_S: Final = BUSY_S + 1.0
"""The longest wait for an assignment to be stored before dispatch: longer than a lock of the database."""
STALLED_S: Final = 15.0
"""How long an event waits for a store that neither writes nor fails: longer than a failure takes."""


class RunLedger(LoggedRun, kw_only=True):
    """One run's entry in the run log. Made by ``RunLog.follow``."""

    writer: Writer
    """Stores what all runs of this router write."""

    @property
    def is_crowded(self) -> bool:
        """Whether many events of this run, or of all, wait."""
        backlog = self.writer.backlog
        return (self.waiting_bytes > backlog.most // 64 or backlog.size > backlog.most // 16) and not self.is_gone

    async def begin(self) -> None:
        """Wait until the log has the run, before its id is published; a run whose id is taken is superseded.

        While the log fails the run is inserted later, and whether the id is taken is not known.
        """
        if self.is_begun:
            return
        self.changed()
        await self.writer.backlog.until(lambda: self.state is not RowState.NEW or bool(self.writer.failing))
        if self.state is RowState.NEW:
            self.writer.fails(self.writer.failing)

    def changed(self) -> None:
        """Have the run's row stored."""
        self.writer.backlog.changed(self)

    def append(self, sequence: int, data: bytes, *, changes_row: bool = True) -> None:
        """Store an event, shortly; and the run's row if it changes that."""
        self.writer.backlog.append(self, sequence, data, changes_row=changes_row)

    def skip(self, sequence: int) -> None:
        """Store that the events up to this one are missing."""
        self.writer.backlog.skip(self, sequence)

    def over(self) -> None:
        """Note that only the run's result follows, or nothing; what waits is still written."""
        self.is_over = True
        self.changed()
        self.writer.backlog.urge()

    def is_ready(self, sequence: int) -> bool:
        """Return whether ``may_publish`` has nothing to wait for."""
        return self.is_publishable(sequence) and not self.is_crowded

    async def may_publish(self, sequence: int) -> None:
        """Wait while many events of this run, or of all, wait for the store, so that their adapters wait too.

        Not while the store fails: then events are dropped, see ``Backlog.append``, and runs continue, until they are
        as far ahead of the store as a router may be.
        """
        await self.writer.backlog.until(lambda: self.is_publishable(sequence))
        await self.writer.backlog.until(self._has_room, STALLED_S)

    def _has_room(self) -> bool:
        return not self.is_crowded or bool(self.writer.failing) or self.writer.is_closing

    async def flushed(self, timeout_s: float) -> bool:
        """Wait until everything so far is stored; False if it is not in time, or another router has the run.

        Nothing of a run that cannot be stored waits. One that another router has is never written: False at once.
        """
        return await self.writer.flushed([self], timeout_s) and not self.is_taken

    async def assigned(self) -> None:
        """Wait until the run's assignment is stored, or the log is known to fail."""
        self.changed()
        await self.begin()
        if not self.writer.failing:
            await self.flushed(_ASSIGNED_S)

    def remove(self) -> None:
        """Have the run deleted, as it never was: no new run with its id is inserted before."""
        self.writer.backlog.remove(self)
        self.writer.backlog.urge()
