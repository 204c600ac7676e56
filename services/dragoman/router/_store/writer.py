"""Writing the run log behind the runs' backs: in batches, never in their way, and honest about what it lost.

Events wait in memory, bounded in bytes, and go to the store together every few milliseconds. Where the store fails,
they wait for longer and it is tried again; who follows a run is told so. When there are too many, the oldest are
let go, which the log tells as a gap, never in silence.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog
from dragoman.protocol.limits import MIB
from dragoman.router._domain.reservation import next_reserved
from dragoman.router._domain.stored import StoredEvents, StoredRun
from dragoman.router._store.database import StoreError
from dragoman.router._store.logged import ROW_BYTES, WRITE_BYTES, LoggedRun, has_all, rows_of
from dragoman.router._store.store import Store

__all__ = ["LoggedRun", "Writer"]

GATHER_S: Final = 0.02
"""Events of so long go together."""
WAITING_BYTES: Final = 32 * MIB
"""What may wait for the store."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

_log = structlog.get_logger("dragoman.router")


class Writer:
    """Writes the events of all runs of one router.

    Args:
        store: where.
        waiting_bytes: what may wait for it.
    """

    def __init__(self, store: Store, *, waiting_bytes: int = WAITING_BYTES) -> None:
        self._store = store
        self._most = waiting_bytes
        self._waiting_bytes = 0
        self._runs: dict[str, LoggedRun] = {}
        self._removing: dict[str, tuple[str, LoggedRun | None]] = {}
        """Runs that never were, and may be in the store: by their ids, their owner's name and what is left here."""
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._written = asyncio.Condition()
        self._failing = ""
        self._closing = False

    @property
    def failing(self) -> str:
        """Why the store fails; empty while it does not."""
        return self._failing

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
            stored: what the store has of it, or is to have.
            snapshot: see ``LoggedRun``.
            remark: as above.
            lost: as above.
            is_begun: whether the store has it already.
        """
        replaced = self._runs.get(stored.run_id)
        if replaced is not None:
            self._let_go(replaced)
            replaced.is_taken = True
        run = LoggedRun(stored, snapshot, remark, lost, is_begun=is_begun, last=stored.logged)
        self._runs[stored.run_id] = run
        return run

    async def begin(self, run: LoggedRun) -> bool:
        """Write that there is a run, before anybody hears of it; False if its id is taken.

        Where the store fails it is written later, and nobody can tell whether the id was taken.
        """
        await self.removed(run.stored.run_id)
        if run.is_gone or run.is_begun or run.is_late:
            return not run.is_taken
        if run.stored.run_id in self._removing:
            self._begin_later(run)
            return True
        try:
            is_new = await self._begin(run)
        except StoreError as error:
            if not error.is_lasting:  # else it is perhaps the fault of this run alone, and found out
                self._fails(error)
            self._begin_later(run)
            return True
        if not is_new:
            self._let_go(run)
        return is_new

    def _begin_later(self, run: LoggedRun) -> None:
        if not run.is_gone:
            run.is_late = True
            self.changed(run)

    def remove(self, run_id: str, owner: str) -> None:
        """Have a run forgotten that never was: it is not begun any more, or taken out of the store again.

        The store is tried until it does that, and a new run with this id is not begun before.

        Args:
            run_id: the run.
            owner: in whose name it was kept; what others keep by this id stays.
        """
        run = self._runs.get(run_id)
        if run is not None:
            self._let_go(run)
            if not run.is_begun and not run.is_late and not run.is_beginning:
                return  # the store never heard of it
        self._removing[run_id] = owner, run
        self._work.set()

    def is_removing(self, run_id: str) -> bool:
        """Tell whether what the store has of a run is about to be forgotten, as it never was."""
        return run_id in self._removing

    def is_writing(self, run_id: str) -> bool:
        """Tell whether there is a run with this id that the store may not know of yet."""
        run = self._runs.get(run_id)
        return run is not None and not run.is_begun

    async def removed(self, run_id: str) -> None:
        """Wait until a run that never was is forgotten, or the store is known to fail."""

        def reached() -> bool:
            return run_id not in self._removing or bool(self._failing)

        if not reached():
            self._hurry.set()
            async with self._written:
                await self._written.wait_for(reached)

    def append(self, run: LoggedRun, sequence: int, data: bytes) -> None:
        """Take the run's next event; sequences that are left out are known to be lost."""
        if self._runs.get(run.stored.run_id) is not run:
            return  # another router has it, or it cannot be kept
        run.waiting.append((sequence, data))
        run.waiting_bytes += len(data)
        run.last = sequence
        self._waiting_bytes += len(data)
        while self._waiting_bytes > self._most and self._drop_oldest():
            pass
        if self._waiting_bytes > ROW_BYTES:
            self._hurry.set()
        self.changed(run)

    def changed(self, run: LoggedRun) -> None:
        """Say that something about a run is to be written."""
        run.changes += 1
        self._work.set()

    def over(self, run: LoggedRun) -> None:
        """Say that only its result follows, or nothing; what waits is still written."""
        run.is_over = True
        if not run.is_begun and not run.is_beginning:
            run.is_late = True  # it was over before anybody began it: it is in the log all the same
        self._hurry.set()
        self.changed(run)

    async def reserved(self, run: LoggedRun, sequence: int) -> None:
        """Wait until a sequence may be told to others, or no more is written of the run: see ``is_gone``."""

        def reached() -> bool:
            return run.is_gone or run.told_up_to is None or sequence <= run.told_up_to

        if reached():
            return
        run.wanted = max(run.wanted, sequence)
        self._hurry.set()
        self.changed(run)
        async with self._written:
            await self._written.wait_for(reached)

    async def flushed(self, run: LoggedRun, timeout_s: float) -> bool:
        """Wait until what there is of a run now is written; False if it is not after ``timeout_s`` seconds.

        Of a run that cannot be kept nothing waits. One that another router has is never written: False at once.
        """
        return await self._caught_up([run], timeout_s) and not run.is_taken

    async def flushed_all(self, timeout_s: float) -> bool:
        """Wait until what there is of all runs now is written; False if it is not after ``timeout_s`` seconds.

        What comes while this waits is not waited for: runs that never pause would hold it up for ever.
        """
        return await self._caught_up([run for run in self._runs.values() if self._is_to_write(run)], timeout_s)

    async def _caught_up(self, runs: Sequence[LoggedRun], timeout_s: float) -> bool:
        wanted = [(run, run.changes) for run in runs if run.is_changed]

        def reached() -> bool:
            return all(run.is_gone or run.written >= changes for run, changes in wanted)

        return await self._until(reached, timeout_s)

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        if reached():
            return True
        self._hurry.set()
        self._work.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._written:
                await self._written.wait_for(reached)
                return True
        return False

    async def run(self) -> None:
        """Write until cancelled, or closed."""
        pause_s = 0.0
        while not (self._closing and not self._has_work()):
            if not self._has_work():
                self._work.clear()
                await self._work.wait()
            if not pause_s:
                await self._gather()
            try:
                await self._write()
            except StoreError as error:
                if error.is_lasting and await self._set_aside():
                    self._works()  # it was the fault of single runs
                    continue
                pause_s = min(max(pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                self._fails(error)
                await self._wake()
                if self._closing:
                    return
                await asyncio.sleep(pause_s)
            except Exception as error:  # noqa: BLE001 - one run must not keep all others from being written
                _log.error("run log not written", failure=type(error).__name__)
                await self._set_aside()
            else:
                pause_s = 0.0
                self._works()

    async def _set_aside(self) -> bool:
        """Write the runs one by one, and keep those no longer that cannot be written for a reason of their own.

        Returns:
            Whether all others are written.
        """
        for run in list(self._runs.values()):
            if not run.is_begun and not run.is_late:
                continue
            try:
                await self._write([run])
            except StoreError as error:
                if not error.is_lasting:
                    return False
                await self._abandon(run)
            except Exception:  # noqa: BLE001 - as above
                await self._abandon(run)
        return True

    async def _abandon(self, run: LoggedRun) -> None:
        _log.error("run no longer kept: it cannot be written", run_id=run.stored.run_id)
        self._let_go(run)
        if not run.is_over:
            run.remark("log_gap", "The run log cannot keep this run; what follows is told, and not kept.")
        await self._wake()

    async def close(self) -> None:
        """Write what waits, once; what cannot be written then is lost."""
        self._closing = True
        self._hurry.set()
        self._work.set()

    def _has_work(self) -> bool:
        to_write = any(self._is_to_write(run) for run in self._runs.values())
        return to_write or any(not _is_beginning(run) for _, run in self._removing.values())

    @staticmethod
    def _is_to_write(run: LoggedRun) -> bool:
        return run.is_changed and (run.is_begun or run.is_late)

    async def _gather(self) -> None:
        self._hurry.clear()
        if not self._closing and self._waiting_bytes < ROW_BYTES:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), GATHER_S)

    async def _write(self, some: Sequence[LoggedRun] | None = None) -> None:
        await self._remove_all()
        wanted = list(self._runs.values()) if some is None else some
        await self._write_begun(wanted)
        # After what the store knows: one that it does not take must not keep the others from being written.
        late = [run for run in wanted if run.is_late]
        for run in late:
            if not run.is_gone and run.stored.run_id not in self._removing:
                await self._begin_late(run)
        await self._write_begun(late)
        await self._wake()

    async def _write_begun(self, runs: Sequence[LoggedRun]) -> None:
        taken = [run for run in runs if run.is_begun and run.is_changed and not run.is_gone]
        if taken:
            await self._write_down(taken)

    async def _remove_all(self) -> None:
        """Forget the runs that never were, but for those that the store is still being told of."""
        for run_id, (owner, run) in list(self._removing.items()):
            if _is_beginning(run):
                continue
            try:
                await self._store.remove(run_id, owner)
            except StoreError as error:
                if not error.is_lasting:
                    raise
                _log.error("run log keeps a run that never was", run_id=run_id, why=str(error))
            except Exception as error:  # noqa: BLE001 - one run must not keep all others from being written
                _log.error("run log keeps a run that never was", run_id=run_id, why=type(error).__name__)
            del self._removing[run_id]
            await self._wake()

    async def _begin_late(self, run: LoggedRun) -> None:
        is_new = await self._begin(run)
        run.is_late = False
        if not is_new and not run.is_gone:
            await self._give_up(run)

    async def _write_down(self, taken: Sequence[LoggedRun]) -> None:
        rows = self._rows(taken)
        after = {run.stored.run_id: self._after(run, rows[run.stored.run_id]) for run in taken}
        upto = {run.stored.run_id: self._upto(run, rows[run.stored.run_id]) for run in taken}
        lost = await self._store.write([row for item in rows.values() for row in item], list(after.values()))
        for run in taken:
            if run.is_gone:
                continue
            run.stored = after[run.stored.run_id]
            last, run.written = upto[run.stored.run_id]
            self._forget(run, last)
            if run.stored.run_id in lost:
                await self._give_up(run)
            elif run.is_over and not run.is_changed and self._runs.get(run.stored.run_id) is run:
                del self._runs[run.stored.run_id]

    def _rows(self, runs: Sequence[LoggedRun]) -> dict[str, list[StoredEvents]]:
        """Return what is written next of these runs; who has little does not wait for who has much."""
        left, rows = WRITE_BYTES, {}
        for run in sorted(runs, key=lambda item: item.waiting_bytes):
            rows[run.stored.run_id] = rows_of(run, left)
            left -= _size(rows[run.stored.run_id])
        return rows

    def _upto(self, run: LoggedRun, rows: list[StoredEvents]) -> tuple[int, int]:
        """Return the last event and the last change that are written with these rows."""
        return (run.last, run.changes) if has_all(run, rows) else (rows[-1].last, run.written)

    async def _wake(self) -> None:
        async with self._written:
            self._written.notify_all()

    async def _begin(self, run: LoggedRun) -> bool:
        run.stored, run.is_beginning = self._not_ahead(run, self._next(run), []), True
        try:
            is_new = await self._store.begin(run.stored)
        except BaseException as error:
            if run.sure_up_to is None and (not isinstance(error, StoreError) or error.is_perhaps_done):
                run.sure_up_to = run.stored.reserved
            raise
        finally:
            run.is_beginning = False
            self._work.set()  # what came meanwhile had to wait
        if is_new:
            run.is_begun = True
        else:
            run.is_taken = True
        return is_new

    def _next(self, run: LoggedRun) -> StoredRun:
        now = run.snapshot()
        reserved = next_reserved(run.stored.reserved, max(run.last, run.wanted))
        return replace(now, reserved=reserved, logged=run.stored.logged, size=run.stored.size)

    def _after(self, run: LoggedRun, rows: list[StoredEvents]) -> StoredRun:
        after = self._not_ahead(run, self._next(run), rows)
        logged = rows[-1].last if rows else run.stored.logged
        return replace(after, logged=logged, size=run.stored.size + _size(rows))

    def _not_ahead(self, run: LoggedRun, now: StoredRun, rows: list[StoredEvents]) -> StoredRun:
        """Return what is told of a run with these rows; it is not ahead of them, least of all that it is over."""
        told = run.stored
        return now if has_all(run, rows) else replace(now, state=told.state, finished_at=told.finished_at)

    def _forget(self, run: LoggedRun, written: int) -> None:
        """Let go of what was written; more may have come, or gone, meanwhile."""
        while run.waiting and run.waiting[0][0] <= written:
            _, data = run.waiting.popleft()
            run.waiting_bytes -= len(data)
            self._waiting_bytes -= len(data)
        if run.dropped <= written:
            run.dropped = 0

    def _drop_oldest(self) -> bool:
        """Let go of one event; False if all that wait are results, which nothing could follow to tell of a gap."""
        droppable = [run for run in self._runs.values() if len(run.waiting) > run.is_over]
        if not droppable:
            return False
        run = max(droppable, key=lambda item: item.waiting_bytes)
        sequence, data = run.waiting.popleft()
        if not run.dropped:
            run.remark("log_gap", "The run log cannot keep up; some events are not kept, which it tells as a gap.")
        run.dropped = sequence
        run.waiting_bytes -= len(data)
        self._waiting_bytes -= len(data)
        return True

    def _let_go(self, run: LoggedRun) -> None:
        self._waiting_bytes -= run.waiting_bytes
        run.waiting.clear()
        run.waiting_bytes = 0
        run.is_gone = True
        if self._runs.get(run.stored.run_id) is run:
            del self._runs[run.stored.run_id]

    async def _give_up(self, run: LoggedRun) -> None:
        self._let_go(run)
        run.is_taken = True
        if not run.is_over:
            run.lost()
        await self._wake()  # now that it is known there, nobody tells what was waited for

    def _fails(self, error: StoreError) -> None:
        if not self._failing:
            _log.warning("run log fails", why=str(error))
        self._failing = str(error)
        for run in self._runs.values():
            if not run.is_behind and not run.is_over:
                run.is_behind = True
                run.remark(
                    "log_unavailable", "The run log cannot be written; the run goes on, and it is tried again."
                )

    def _works(self) -> None:
        if self._failing:
            self._failing = ""
            _log.info("run log works again")
        for run in self._runs.values():
            if run.is_behind:
                run.is_behind = False
                run.remark("log_recovered", "The run log is written again.")


def _size(rows: Sequence[StoredEvents]) -> int:
    return sum(len(row.data) for row in rows if row.data is not None)


def _is_beginning(run: LoggedRun | None) -> bool:
    return run is not None and run.is_beginning
