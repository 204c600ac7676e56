"""One run's entry in the run log, as the run writes it."""

import sys

from dragoman.router.runs.inputs import Durable
from dragoman.router.storage.database import BUSY_S
from dragoman.router.storage.writer import LoggedRun, Writer

_ASSIGNED_S = BUSY_S + 1.0
"""The longest wait for an assignment to be stored before dispatch: longer than a lock of the database."""


class RunLedger:
    """One run's entry in the run log; without a writer it accepts everything and stores nothing.

    Args:
        writer: stores what all runs of this router write.
        logged: the run, as the writer knows it.
    """

    def __init__(self, writer: Writer | None = None, logged: LoggedRun | None = None) -> None:
        self._entry = (writer, logged) if writer is not None and logged is not None else None

    @property
    def is_begun(self) -> bool:
        """Whether the log has the run."""
        return self._entry is not None and self._entry[1].is_begun

    @property
    def logged(self) -> int:
        """The last sequence that the log has, or never will have."""
        return sys.maxsize if self._entry is None else self._entry[1].logged

    @property
    def is_taken(self) -> bool:
        """Whether another router has the run."""
        return self._entry is not None and self._entry[1].is_taken

    async def begin(self) -> None:
        """Wait until the log has the run, or is known to fail; a run whose ID is taken is superseded."""
        if self._entry is not None and not self._entry[1].is_begun:
            writer, logged = self._entry
            await writer.begin(logged)

    def changed(self) -> None:
        """Have the run's row stored."""
        if self._entry is not None:
            writer, logged = self._entry
            writer.backlog.changed(logged)

    def append(self, sequence: int, data: bytes, *, changes_row: bool = True) -> None:
        """Store an event, shortly; and the run's row if it changes that."""
        if self._entry is not None:
            writer, logged = self._entry
            writer.backlog.append(logged, sequence, data, changes_row=changes_row)

    def skip(self, sequence: int) -> None:
        """Store that the events up to this one are missing."""
        if self._entry is not None:
            writer, logged = self._entry
            writer.backlog.skip(logged, sequence)

    def finish(self, result: Durable) -> None:
        """Store the last event, soon."""
        if self._entry is not None:
            writer, logged = self._entry
            writer.over(logged)
            writer.backlog.append(logged, result.sequence, result.data)

    def is_ready(self, sequence: int) -> bool:
        """Return whether ``may_publish`` has nothing to wait for."""
        if self._entry is None:
            return True
        writer, logged = self._entry
        return logged.may_publish(sequence) and not writer.backlog.is_crowded(logged)

    async def may_publish(self, sequence: int) -> None:
        """Wait until an event may be published: the log is not far behind."""
        if self._entry is not None:
            writer, logged = self._entry
            await writer.room(logged, sequence)

    async def flushed(self, timeout_s: float) -> bool:
        """Wait until everything so far is stored; False if it is not in time, or another router has the run."""
        if self._entry is None:
            return True
        writer, logged = self._entry
        return await writer.flushed(logged, timeout_s)

    async def assigned(self) -> None:
        """Wait until the run's assignment is stored, or the log is known to fail."""
        self.changed()
        await self.begin()
        if self._entry is not None and not self._entry[0].failing:
            await self.flushed(_ASSIGNED_S)

    def remove(self) -> None:
        """Have the run deleted, as it never was."""
        if self._entry is not None:
            writer, logged = self._entry
            writer.remove(logged)
