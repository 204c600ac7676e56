"""The task that writes the run log: plan, execute, apply, again and again, and what happens when the store fails."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from dragoman.protocol.backoff import Backoff
from dragoman.protocol.logs import Logger
from dragoman.router.storage.backlog import Backlog
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.logged import ROW_BYTES, LoggedRun, RowState
from dragoman.router.storage.plan import plan
from dragoman.router.storage.store import Store

GATHER_S: Final = 0.1
"""How long events wait for others, to be written together."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_UNSTORABLE: Final = "This run can no longer be persisted. Events continue to stream but will not be replayable."
_FAILING: Final = "The run log is not writable; the run continues and writes are retried."

_log = Logger("dragoman.router")


class WriteLoop:
    """Writes the backlog to the store.

    Args:
        store: the store.
        backlog: the runs.
    """

    def __init__(self, store: Store, backlog: Backlog) -> None:
        self._store = store
        self._backlog = backlog
        self.failing = ""
        """Why the store fails; empty while it does not."""
        self.is_closing = False
        """Whether the loop ends once everything is written, or the store fails."""
        self.is_replaced = False
        """Whether the database was deleted or replaced, so that a new one is to be opened."""

    async def run(self) -> None:
        """Write until cancelled, or closed."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while self._has_work() or not self.is_closing:
            if not self._has_work():
                self._backlog.work.clear()
                await self._backlog.work.wait()
            if not backoff.failures:
                await self._gather()
            try:
                await self._write(self._backlog.due())
            except StoreError as error:
                if error.is_lasting and await self._write_one_by_one():
                    self._works()  # it was the fault of single runs
                    continue
                pause_s = backoff.next_s()
                self.fails(str(error))
                self.is_replaced |= error.is_replaced
                self._backlog.written.check()
                if self.is_closing:
                    return
                await asyncio.sleep(pause_s)
            except Exception as error:  # noqa: BLE001 - one run must not keep all others from being written
                _log.error("run log write failed", failure=type(error).__name__)
                await self._write_one_by_one()
            else:
                backoff.reset()
                self._works()

    def _has_work(self) -> bool:
        return self.is_replaced or bool(self._backlog.due())

    async def _gather(self) -> None:
        if not self.is_closing and self._backlog.size < ROW_BYTES:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._backlog.hurry.wait()
        # Cleared only now: a request that came before the wait is as urgent as one that comes within it.
        self._backlog.hurry.clear()

    async def _write(self, runs: Sequence[LoggedRun]) -> None:
        if self.is_replaced:
            await self._reopen()
        for run in runs:
            if run.state is RowState.REMOVED:
                changes = run.changes
                await self._store.remove(run.stored.run_id, run.stored.owner)
                run.written = changes
        await self._execute(runs)
        self._backlog.written.check()

    async def _execute(self, runs: Iterable[LoggedRun]) -> None:
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
            self._backlog.size -= write.apply()
            run.state = RowState.STORED
            if run.is_over and not run.is_changed:
                self._backlog.release(run)
        for run in [write.run for write in writes if write.run.stored.run_id in refused]:
            if run.state is RowState.NEW and await self._store.begin(run.stored):
                run.state = RowState.STORED  # in the place of one that no adapter had; what is new follows
            elif not run.is_gone:
                self._give_up(run)

    def _give_up(self, run: LoggedRun) -> None:
        run.supersede()
        self._backlog.release(run)
        if not run.is_over:
            run.lost()
        self._backlog.written.check()  # now that this is known, nothing is published that was waited for

    async def _write_one_by_one(self) -> bool:
        """Write each run by itself, and drop those that cannot be written for a reason of their own.

        Returns:
            Whether all others are written.
        """
        for run in self._backlog.due():
            try:
                await self._write([run])
            except StoreError as error:
                if not error.is_lasting:
                    return False
                self._drop(run)
            except Exception:  # noqa: BLE001 - as above
                self._drop(run)
        return True

    def _drop(self, run: LoggedRun) -> None:
        _log.error("run no longer persisted", run_id=run.stored.run_id)
        run.state = RowState.DROPPED
        self._backlog.release(run)
        if not run.is_over:
            run.remark("log_gap", _UNSTORABLE)
        self._backlog.written.check()

    async def _reopen(self) -> None:
        """Open the database that took the place of the one before, and insert the runs again.

        Their events that were written before are missing there, which the log shows as a gap.
        """
        await self._store.reopen()
        self.is_replaced = False
        _log.warning("run log was deleted or replaced; writing a new one")
        for run in self._backlog:
            if run.state is RowState.STORED:
                run.state = RowState.NEW
            self._backlog.changed(run)

    def fails(self, why: str) -> None:
        """Note that the store fails, and emit a notice in each live run."""
        if not self.failing:
            _log.warning("run log unavailable", why=why)
        self.failing = why
        for run in self._backlog:
            if not run.is_behind and not run.is_over:
                run.is_behind = True
                run.remark("log_unavailable", _FAILING)

    def _works(self) -> None:
        if not self.failing:
            return
        self.failing = ""
        _log.info("run log recovered")
        for run in self._backlog:
            if run.is_behind:
                run.is_behind = False
                run.remark("log_recovered", "The run log is writable again.")
