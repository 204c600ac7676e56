"""Writing the run log behind the runs: in batches, and never in their way.

Events wait in memory, bounded in bytes, and go to the store together every few milliseconds. While the store fails,
they wait longer, and the readers of their runs get a notice. When there are too many, the oldest are dropped, which
replays show as a gap.
"""

from collections.abc import Iterable
from typing import Final

from dragoman.protocol.limits import MIB
from dragoman.router.storage.backlog import Backlog
from dragoman.router.storage.logged import LoggedRun
from dragoman.router.storage.store import Store
from dragoman.router.storage.write_loop import WriteLoop

WAITING_BYTES: Final = 32 * MIB
"""The maximum size of the events that wait for the store."""


class Writer:
    """Writes the events of all runs of one router.

    Args:
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

    @property
    def is_closing(self) -> bool:
        """Whether what waits is written once more, and nothing after that."""
        return self._loop.is_closing

    def remark_failure(self) -> None:
        """Emit a notice that the store fails in each live run that has none yet."""
        self._loop.fails(self.failing)

    async def flushed(self, runs: Iterable[LoggedRun], timeout_s: float) -> bool:
        """Wait until everything of these runs up to now is written; False if it is not after ``timeout_s`` seconds.

        What comes meanwhile is not waited for, as runs that never pause would delay it for ever.
        """
        awaited = [(run, run.changes) for run in runs if run.is_due]

        def reached() -> bool:
            return all(not run.is_due or run.written >= changes for run, changes in awaited)

        if reached():
            return True
        self.backlog.urge()
        return await self.backlog.written.until(reached, timeout_s)

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
