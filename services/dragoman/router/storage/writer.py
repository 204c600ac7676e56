"""Writing the run log behind the runs: in batches, and never in their way.

Events wait in memory, bounded in bytes, and go to the store together some times a second: plan, execute, apply,
again and again. While the store fails, they wait longer, and the readers of their runs get a notice. When there are
too many, the oldest are dropped, which replays show as a gap.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from dragoman.protocol.backoff import Backoff
from dragoman.protocol.limits import MIB
from dragoman.protocol.logs import Logger
from dragoman.router.storage.backlog import Backlog
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.logged import WRITE_BYTES, WRITE_RUNS, LoggedRun, RowState
from dragoman.router.storage.plan import plan
from dragoman.router.storage.store import Store

WAITING_BYTES: Final = 32 * MIB
"""The maximum size of the events that wait for the store."""
EVENTS_S: Final = 0.4
"""How long events wait for more of them, so that runs with few have several written together."""
GATHER_S: Final = 0.1
"""How long what has changed waits for other changes then."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_UNSTORABLE: Final = "This run can no longer be persisted. Events continue to stream but will not be replayable."
_FAILING: Final = "The run log is not writable; the run continues and writes are retried."

_log = Logger("dragoman.router")


class Writer:
    """Writes the events of all runs of one router.

    Args:
        waiting_bytes: the maximum size of the events that wait for the store.
    """

    def __init__(self, store: Store, *, waiting_bytes: int = WAITING_BYTES) -> None:
        self._store = store
        self.backlog = Backlog(waiting_bytes)
        """The runs, with their events that wait for the store."""
        self.failing = ""
        """Why the store fails; empty while it does not."""
        self.is_closing = False
        """Whether the loop ends once everything is written, or the store fails."""

    async def flushed(self, runs: Iterable[LoggedRun], timeout_s: float) -> bool:
        """Wait until everything of these runs up to now is written; False if it is not after ``timeout_s`` seconds.

        What comes meanwhile is not waited for, as runs that never pause would delay it for ever.
        """
        awaited = [(run, run.changes) for run in runs if run.is_due]

        def reached() -> bool:
            return all(not run.is_due or run.written >= changes for run, changes in awaited)

        return await self.backlog.until(reached, timeout_s)

    async def close(self) -> None:
        """Write what waits, once; what cannot be written then is lost."""
        self.is_closing = True
        self.backlog.urge()
        self.backlog.written.check()

    async def run(self) -> None:
        """Write until cancelled, or closed."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while (due := self.backlog.due()) or not self.is_closing:
            if not due:
                self.backlog.work.clear()
                await self.backlog.work.wait()
            if not backoff.failures:
                await self._gather()
            try:
                await self._write(self.backlog.due())
            except StoreError as error:
                pause_s = backoff.next_s()
                self.fails(str(error))
                self.backlog.written.check()
                if self.is_closing:
                    return
                await asyncio.sleep(pause_s)
            else:
                backoff.reset()
                self._works()

    async def _gather(self) -> None:
        if not self.is_closing and self.backlog.size < WRITE_BYTES:
            for event, wait_s in ((self.backlog.soon, EVENTS_S), (self.backlog.hurry, GATHER_S)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await event.wait()
        # Cleared only now: a request that came before the wait is as urgent as one that comes within it.
        self.backlog.soon.clear()
        self.backlog.hurry.clear()

    async def _write(self, runs: Sequence[LoggedRun]) -> None:
        for first in range(0, len(runs), WRITE_RUNS):
            await self._step(runs[first : first + WRITE_RUNS])
            self.backlog.written.check()

    async def _step(self, runs: Sequence[LoggedRun]) -> None:
        """Write some runs together; if that fails by a fault of theirs, one by one, and drop those that have it.

        Raises:
            StoreError: the store fails.
        """
        try:
            await self._execute(runs)
        except Exception as error:
            if isinstance(error, StoreError) and not error.is_lasting:
                raise
            if len(runs) > 1:
                for run in runs:
                    await self._step([run])
                return
            (run,) = runs
            _log.error("run no longer persisted", run_id=run.stored.run_id, failure=type(error).__name__)
            run.state = RowState.DROPPED
            self.backlog.release(run)
            if not run.is_over:
                run.remark("log_gap", _UNSTORABLE)

    async def _execute(self, runs: Sequence[LoggedRun]) -> None:
        for run in runs:
            if run.state is RowState.REMOVED:
                changes = run.changes
                await self._store.remove(run.stored.run_id, run.stored.owner)
                run.written = changes
        writes = plan(runs)
        if not writes:
            return
        events = [row for write in writes for row in write.events]
        new = [write.run for write in writes if write.run.state is RowState.NEW]
        for run in new:
            run.is_tried = True
        refused = await self._store.write(events, [write.row for write in writes], {run.stored.run_id for run in new})
        for write in writes:
            run = write.run
            if run.is_gone or run.stored.run_id in refused:
                continue
            self.backlog.size -= write.apply()
            run.state = RowState.STORED
            if run.is_over and not run.is_changed:
                self.backlog.release(run)
        for run in [write.run for write in writes if write.run.stored.run_id in refused]:
            if run.state is RowState.NEW and await self._store.begin(run.stored):
                run.state = RowState.STORED  # in the place of one that no adapter had; what is new follows
            elif not run.is_gone:
                run.supersede()
                self.backlog.release(run)
                if not run.is_over:
                    run.lost()

    def fails(self, why: str) -> None:
        """Note that the store fails, and emit a notice in each live run."""
        if not self.failing:
            _log.warning("run log unavailable", why=why)
        self.failing = why
        for run in self.backlog:
            if not run.is_behind and not run.is_over:
                run.is_behind = True
                run.remark("log_unavailable", _FAILING)

    def _works(self) -> None:
        if not self.failing:
            return
        self.failing = ""
        _log.info("run log recovered")
        for run in self.backlog:
            if run.is_behind:
                run.is_behind = False
                run.remark("log_recovered", "The run log is writable again.")
