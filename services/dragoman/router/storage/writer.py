"""Writing the run log behind the runs: in batches, and never in their way.

Events wait in memory, bounded in bytes, and go to the store together every few milliseconds. While the store fails,
they wait longer, and the readers of their runs get a notice. When there are too many, the oldest are dropped, which
replays show as a gap.
"""

from collections.abc import Callable, Sequence
from typing import Final

from dragoman.protocol.limits import MIB
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.backlog import Backlog
from dragoman.router.storage.logged import LoggedRun, RowState
from dragoman.router.storage.store import Store
from dragoman.router.storage.write_loop import WriteLoop

__all__ = ["LoggedRun", "Writer"]

WAITING_BYTES: Final = 32 * MIB
"""The maximum size of the events that wait for the store."""
STALLED_S: Final = 15.0
"""How long an event waits for a store that neither writes nor fails: longer than a failure takes."""


class Writer:
    """Writes the events of all runs of one router.

    Args:
        store: the store.
        waiting_bytes: the maximum size of the events that wait for it.
    """

    def __init__(self, store: Store, *, waiting_bytes: int = WAITING_BYTES) -> None:
        self.backlog = Backlog(waiting_bytes)
        """The runs, with their events that wait for the store."""
        self._loop = WriteLoop(store, self.backlog)

    @property
    def failing(self) -> str:
        """Why the store fails; empty while it does not."""
        return self._loop.failing

    def follow(
        self,
        stored: StoredRun,
        snapshot: Callable[[], StoredRun],
        remark: Callable[[str, str], None],
        lost: Callable[[], None],
        *,
        is_begun: bool,
    ) -> LoggedRun:
        """Begin to write a run.

        Args:
            stored: its row in the store, or the one to insert.
            snapshot: see ``LoggedRun``.
            remark: as above.
            lost: as above.
            is_begun: whether the store has it already.
        """
        state = RowState.STORED if is_begun else RowState.NEW
        at = stored.logged
        run = LoggedRun(stored, snapshot, remark, lost, state=state, last=at, logged=at, size=stored.size)
        self.backlog.add(run)
        return run

    async def begin(self, run: LoggedRun) -> bool:
        """Insert a run, before its id is published; False if its id is taken.

        While the store fails the run is inserted later, and whether the id is taken is not known.
        """
        self.backlog.changed(run)
        self.backlog.urge()
        await self.backlog.written.until(lambda: run.state is not RowState.NEW or bool(self._loop.failing))
        if run.state is RowState.NEW:
            self._loop.fails(self._loop.failing)
        return not run.is_taken

    def remove(self, run: LoggedRun) -> None:
        """Delete a run that never was, as soon as the store does that: no new run with its id is inserted before."""
        self.backlog.remove(run)
        self.backlog.urge()

    async def room(self, run: LoggedRun, sequence: int) -> None:
        """Wait while many events of this run, or of all, wait for the store, so that their adapters wait too.

        Not while the store fails: then events are dropped, see ``append``, and runs continue, until they are as far
        ahead of the store as a router may be.
        """
        if not run.may_publish(sequence):
            self.backlog.urge()
            await self.backlog.written.until(lambda: run.may_publish(sequence))

        def has_room() -> bool:
            return not self.backlog.is_crowded(run) or bool(self._loop.failing) or self._loop.is_closing

        if has_room():
            return
        self.backlog.hurry.set()
        await self.backlog.written.until(has_room, STALLED_S)

    def over(self, run: LoggedRun) -> None:
        """Note that only the run's result follows, or nothing; what waits is still written."""
        run.is_over = True
        self.backlog.hurry.set()
        self.backlog.changed(run)

    async def flushed(self, run: LoggedRun, timeout_s: float) -> bool:
        """Wait until everything of a run up to now is written; False if it is not after ``timeout_s`` seconds.

        Nothing of a run that cannot be stored waits. One that another router has is never written: False at once.
        """
        return await self._caught_up([run], timeout_s) and not run.is_taken

    async def flushed_all(self, timeout_s: float) -> bool:
        """Wait until everything of all runs up to now is written; False if it is not after ``timeout_s`` seconds.

        What comes meanwhile is not waited for, as runs that never pause would delay it for ever.
        """
        return await self._caught_up([run for run in self.backlog if run.is_due], timeout_s)

    async def run(self) -> None:
        """Write until cancelled, or closed."""
        await self._loop.run()

    def replaced(self) -> None:
        """Note that the store's database was deleted or replaced while it was in use."""
        self._loop.is_replaced = True
        self.backlog.work.set()

    async def close(self) -> None:
        """Write what waits, once; what cannot be written then is lost."""
        self._loop.is_closing = True
        self.backlog.urge()
        self.backlog.written.check()

    async def _caught_up(self, runs: Sequence[LoggedRun], timeout_s: float) -> bool:
        awaited = [(run, run.changes) for run in runs if run.is_changed]

        def reached() -> bool:
            return all(not run.is_due or run.written >= changes for run, changes in awaited)

        if reached():
            return True
        self.backlog.urge()
        return await self.backlog.written.until(reached, timeout_s)
