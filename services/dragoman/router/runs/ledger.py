"""One run's entry in the run log, as the run writes it."""

from typing import Final

from dragoman.router.runs.inputs import Durable
from dragoman.router.storage.database import BUSY_S
from dragoman.router.storage.writer import LoggedRun, Writer

_ASSIGNED_S: Final = BUSY_S + 1.0
"""The longest wait for an assignment to be stored before dispatch: longer than a lock of the database."""


class RunLedger:
    """One run's entry in the run log.

    Args:
        writer: stores what all runs of this router write.
        logged: the run, as the writer knows it.
    """

    def __init__(self, writer: Writer, logged: LoggedRun) -> None:
        self._writer = writer
        self._logged = logged

    @property
    def is_begun(self) -> bool:
        """Whether the log has the run."""
        return self._logged.is_begun

    @property
    def logged(self) -> int:
        """The last sequence that the log has, or never will have."""
        return self._logged.logged

    @property
    def is_taken(self) -> bool:
        """Whether another router has the run."""
        return self._logged.is_taken

    async def begin(self) -> None:
        """Wait until the log has the run, or is known to fail; a run whose ID is taken is superseded."""
        if not self.is_begun:
            await self._writer.begin(self._logged)

    def changed(self) -> None:
        """Have the run's row stored."""
        self._writer.backlog.changed(self._logged)

    def append(self, sequence: int, data: bytes, *, changes_row: bool = True) -> None:
        """Store an event, shortly; and the run's row if it changes that."""
        self._writer.backlog.append(self._logged, sequence, data, changes_row=changes_row)

    def skip(self, sequence: int) -> None:
        """Store that the events up to this one are missing."""
        self._writer.backlog.skip(self._logged, sequence)

    def finish(self, result: Durable) -> None:
        """Store the last event, soon."""
        self._writer.over(self._logged)
        self.append(result.sequence, result.data)

    def is_ready(self, sequence: int) -> bool:
        """Return whether ``may_publish`` has nothing to wait for."""
        return self._logged.may_publish(sequence) and not self._writer.backlog.is_crowded(self._logged)

    async def may_publish(self, sequence: int) -> None:
        """Wait until an event may be published: the log is not far behind."""
        await self._writer.room(self._logged, sequence)

    async def flushed(self, timeout_s: float) -> bool:
        """Wait until everything so far is stored; False if it is not in time, or another router has the run."""
        return await self._writer.flushed(self._logged, timeout_s)

    async def assigned(self) -> None:
        """Wait until the run's assignment is stored, or the log is known to fail."""
        self.changed()
        await self.begin()
        if not self._writer.failing:
            await self.flushed(_ASSIGNED_S)

    def remove(self) -> None:
        """Have the run deleted, as it never was."""
        self._writer.remove(self._logged)
