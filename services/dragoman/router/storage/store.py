"""The run log in its database: runs and their events, beside tables for leases, sessions, agents and spending."""

import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Final, cast

from dragoman.protocol.limits import MIB
from dragoman.router.model.stored import RunQuery, StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.agent_table import ActiveTable, AgentTable
from dragoman.router.storage.batches import unpack
from dragoman.router.storage.database import Database, Statement, Table, Value
from dragoman.router.storage.lease_table import LeaseTable
from dragoman.router.storage.rows import RUN_COLUMNS, addition, insertion, runs_sql, stored_run, update
from dragoman.router.storage.session_table import SessionTable
from dragoman.router.storage.spending_table import LOCK, SpendingTable, written

_RUN: Final = f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id"  # noqa: S608 - constants
_AT_TASK: Final = (
    f"SELECT {RUN_COLUMNS} FROM runs WHERE company_id = :company_id AND agent_id = :agent_id AND task_key = :task_key"  # noqa: S608 - constants
    " AND finished_at IS NULL"
)
_FREE: Final = "digest IS NULL AND finished_at IS NOT NULL"
"""What is true of a run that no adapter ever had: its ID may be used again."""
_PAGE_ROWS: Final = 64
_PAGE_BYTES: Final = 64 * 1024
"""Rows of events that are read at once: so many, and no more once they have so many bytes."""
_BEHIND: Final = (
    # The rows of a run are found by their first sequence. One that begins before the next event and has it is the
    # last of those, or a few before it: rows overlap where a transaction whose answer was lost was repeated after
    # events had been dropped.
    "run_id = :run_id AND last > :after AND first >= COALESCE((SELECT min(first) FROM (SELECT first FROM events"
    " WHERE run_id = :run_id AND first <= :after ORDER BY first DESC LIMIT 8) AS before), 0)"
)
_SIZES: Final = (
    f"SELECT first, COALESCE(length(data), 0) AS size FROM events WHERE {_BEHIND} ORDER BY first LIMIT :size"  # noqa: S608 - constants
)
_SUMS: Final = f"SELECT first, size, sum(size) OVER (ORDER BY first) AS upto FROM ({_SIZES}) AS sizes"  # noqa: S608 - constants
_PAGE: Final = (
    # Only the data that is returned is read: a database knows sizes without that.
    f"SELECT first, last, data FROM events WHERE {_BEHIND}"  # noqa: S608 - constants
    f" AND first <= (SELECT max(first) FROM ({_SUMS}) AS sums WHERE upto - size < :most) ORDER BY first LIMIT :size"
)
_FORGOTTEN_AT_ONCE: Final = 200
_FREED_AT_ONCE: Final = 32 * MIB
"""Bytes after which no more runs are forgotten at once: SQLite writes nothing else meanwhile."""
_FINISHED: Final = "FROM runs WHERE finished_at IS NOT NULL"
_OLDEST: Final = (
    f"SELECT finished_at, run_id, bytes, (SELECT CAST(sum(bytes) AS bigint) {_FINISHED}) AS kept {_FINISHED}"
    " ORDER BY finished_at, run_id LIMIT :size"
)
_UP_TO: Final = f"{_FINISHED} AND (finished_at, run_id) <= (:finished_at, :run_id)"
_FORGET_EVENTS: Final = f"DELETE FROM events WHERE run_id IN (SELECT run_id {_UP_TO})"  # noqa: S608 - constants
_FORGET_RUNS: Final = f"DELETE {_UP_TO}"


class Store(Table):
    """Runs and their events, and the other tables."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.leases = LeaseTable(database)
        self.sessions = SessionTable(database)
        self.agents = AgentTable(database)
        self.active = ActiveTable(database)
        self.spending = SpendingTable(database)

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await self._database.open()

    async def reclaim(self) -> None:
        """Give back the space of what was forgotten, and leave nothing of it that could be read."""
        await self._database.reclaim()

    async def close(self) -> None:
        """Let go of the database."""
        await self._database.close()

    async def setting(self, name: str, fresh: bytes) -> bytes:
        """Return a value that all routers share; ``fresh`` becomes it if there is none."""
        sql = "INSERT INTO settings (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING"
        await self._change(sql, {"name": name, "value": fresh})
        rows = await self._database.fetch("SELECT value FROM settings WHERE name = :name", {"name": name})
        return cast("bytes", rows[0][0])

    async def begin(self, run: StoredRun) -> bool:
        """Insert a new run; False if there is another one with its id: it takes the place of one no adapter had."""
        statement = insertion(run)
        if await self._change(*statement):
            return True
        *_, changed = await self._database.execute([*_removal(_FREE, {"run_id": run.run_id}), statement])
        return changed > 0

    async def run(self, run_id: str) -> StoredRun | None:
        """Return a run; ``None`` if there is none."""
        rows = await self._database.fetch(_RUN, {"run_id": run_id})
        return stored_run(rows[0]) if rows else None

    async def runs(self, query: RunQuery, *, before: tuple[float, str] | None, size: int) -> list[StoredRun]:
        """Return runs, newest first.

        Args:
            query: which.
            before: time and id of the last one of the page before.
            size: at most so many.
        """
        found: list[StoredRun] = []
        while len(found) < size:
            sql, values = runs_sql(query, before, size)
            rows = [stored_run(row) for row in await self._database.fetch(sql, values)]
            found += [run for run in rows if query.matches(run.state.run)]  # also by what is in no column
            if len(rows) < size:
                break
            before = (rows[-1].accepted_at, rows[-1].run_id)
        return found[:size]

    async def at_task(self, company_id: str, agent_id: str, task_key: str) -> list[StoredRun]:
        """Return the live runs of one agent at one task, of all routers; in no order."""
        values = {"company_id": company_id, "agent_id": agent_id, "task_key": task_key}
        return [stored_run(row) for row in await self._database.fetch(_AT_TASK, values)]

    async def write(
        self,
        events: Sequence[StoredEvents],
        runs: Sequence[StoredRun | StoredProgress],
        new: Container[str] = (),
    ) -> list[str]:
        """Write the rows of runs, their events, and what they have spent, in one transaction.

        Nothing is written of runs that have another owner by now: a router that was thought to be dead must not
        overwrite what its successor writes.

        Args:
            events: to add; of ``runs``.
            runs: as they are now.
            new: the ids of those that are to be inserted.

        Returns:
            The ids of runs that have another owner, or are forgotten; or if they are new, of those whose id is taken.
        """
        owners = {run.run_id: run.owner for run in runs}
        if not self._database.locking:
            # No other transaction comes between, which could read a run's row and not yet its events.
            runs = [run for run in runs if isinstance(run, StoredRun) or not run.may_lag]
        runs = sorted(runs, key=lambda run: run.run_id)  # see ``Database.locking``
        rows = (insertion(run) if isinstance(run, StoredRun) and run.run_id in new else update(run) for run in runs)
        added = (addition(item, owners[item.run_id]) for item in events)
        whole = [run for run in runs if isinstance(run, StoredRun) and run.spent]
        spent = [one for run in whole if run.run_id not in new for one in written(run, is_new=False)]
        begun = (one for run in whole if run.run_id in new for one in written(run, is_new=True))
        counts = (await self._database.execute(itertools.chain(spent, rows, added, begun)))[len(spent) :]
        refused = {run.run_id for run, changed in zip(runs, counts, strict=False) if not changed}
        unchanged = {item.run_id for item, changed in zip(events, counts[len(runs) :], strict=False) if not changed}
        for run_id in unchanged - {run.run_id for run in runs}:
            # Either they were there, as the answer to the same write was lost, or the run is another owner's.
            found = await self.run(run_id)
            if found is None or found.owner != owners[run_id]:
                refused.add(run_id)
        return list(refused)

    async def events(self, run_id: str, after: int) -> list[StoredEvents]:
        """Return the next events behind a sequence, in order; none at the end of what is kept.

        The first may begin at or before ``after``.
        """
        values: dict[str, Value] = {"run_id": run_id, "after": after, "size": _PAGE_ROWS, "most": _PAGE_BYTES}
        rows = await self._database.fetch(_PAGE, values)
        return [
            StoredEvents(run_id, first, last, None if data is None else list(unpack(data)))
            for first, last, data in cast("list[tuple[int, int, bytes | None]]", rows)
        ]

    async def remove(self, run_id: str, owner: str) -> None:
        """Delete a run and its events, if it is still this owner's."""
        await self._database.execute(_removal("owner = :owner", {"run_id": run_id, "owner": owner}))

    async def delete_old(self, *, before: float, most_bytes: int) -> int:
        """Delete finished runs that are too old, and the oldest of those that are too many; at most some at once.

        Args:
            before: what ended before this, in seconds since the epoch, goes.
            most_bytes: what may be kept.

        Returns:
            How many went; 0 if no more has to.
        """
        # The sum and the rows are of one moment: of several routers that do this at once, none takes too much.
        rows = await self._database.fetch(_OLDEST, {"size": _FORGOTTEN_AT_ONCE})
        kept = cast("int", rows[0][3]) if rows else 0
        number = freed = 0
        for finished_at, _, size, _ in cast("list[tuple[float, str, int, int]]", rows):
            if (finished_at >= before and kept - freed <= most_bytes) or freed > _FREED_AT_ONCE:
                break
            number, freed = number + 1, freed + size
        if number:
            values = {"finished_at": rows[number - 1][0], "run_id": rows[number - 1][1]}
            await self._database.execute([(LOCK, {}), (_FORGET_EVENTS, values), (_FORGET_RUNS, values)])
        return number


def _removal(condition: str, values: Mapping[str, Value]) -> list[Statement]:
    """Return the statements that delete a run with its events, if it meets a condition."""
    which = f"SELECT run_id FROM runs WHERE run_id = :run_id AND {condition}"  # noqa: S608 - constants
    return [(f"DELETE FROM {table} WHERE run_id IN ({which})", values) for table in ("events", "spending", "runs")]  # noqa: S608 - constants
