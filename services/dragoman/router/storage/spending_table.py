"""What runs have spent of the operator's budgets, in the run log's database.

A run's row of an account has what it has used so far, so that it may be written again and again. Some time after the
run's end, or once the run is deleted, its rows are added to the one of the account that is of no run, so that there
are few to add up.
"""

from typing import Final, cast

from dragoman.router.model.spending import AMOUNTS, Account, Spent
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import Row, Statement, Table, Value
from msgspec.structs import asdict

_COLUMNS: Final = ", ".join(AMOUNTS)
_SUMS: Final = ", ".join(f"CAST(COALESCE(sum({name}), 0) AS bigint)" for name in AMOUNTS)
_KEY: Final = "run_id, budget, value, since"
_LARGER: Final = ", ".join(
    f"{name} = CASE WHEN excluded.{name} > spending.{name} THEN excluded.{name} ELSE spending.{name} END"
    for name in AMOUNTS
)
"""A router that could not read what the one before has counted must not lower it."""
_WRITE: Final = (
    f"INSERT INTO spending ({_KEY}, until, {_COLUMNS})"  # noqa: S608 - constants
    f" SELECT :run_id, :budget, :value, :since, :until, {', '.join(f':{name}' for name in AMOUNTS)}"
    " WHERE EXISTS (SELECT 1 FROM runs WHERE run_id = :run_id AND owner = :owner{condition})"
    f" ON CONFLICT ({_KEY}) DO UPDATE SET {_LARGER}"
)
_FOLD: Final = (
    f"INSERT INTO spending ({_KEY}, until, {_COLUMNS})"  # noqa: S608 - constants
    f" SELECT '', budget, value, since, until, {_COLUMNS} FROM spending WHERE run_id = :run_id"
    f" ON CONFLICT ({_KEY}) DO UPDATE SET"
    f" {', '.join(f'{name} = spending.{name} + excluded.{name}' for name in AMOUNTS)}"
)
_FOLDED: Final = "DELETE FROM spending WHERE run_id = :run_id"
LOCK: Final = (
    "INSERT INTO settings (name, value) VALUES ('retention', CAST('' AS blob))"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
"""Of several routers one at a time adds up what runs have spent, each run's amounts once, and deletes old runs."""
_ENDED: Final = (
    "SELECT DISTINCT run_id FROM spending WHERE run_id > '' AND NOT EXISTS (SELECT 1 FROM runs"
    " WHERE runs.run_id = spending.run_id AND (finished_at IS NULL OR finished_at >= :before))"
    " ORDER BY run_id LIMIT :size"
)
_FOLDED_AT_ONCE: Final = 200
_IN_ACCOUNT: Final = "budget = :budget AND value = :value AND since = :since"


def written(run: StoredRun, *, is_new: bool) -> list[Statement]:
    """Return the statements that write what a run has spent, if it is its owner's.

    They follow the one that inserts a new run's row. They precede the one that updates another one, and write nothing
    once its end is written: its amounts may be in the row of no run by then.
    """
    sql = _WRITE.format(condition="" if is_new else " AND finished_at IS NULL")
    return [
        (sql, {"run_id": run.run_id, "owner": run.owner, **asdict(account), **asdict(spent)})
        for account, spent in run.spent.items()
    ]


class SpendingTable(Table):
    """What is spent."""

    async def spent(self, account: Account) -> Spent:
        """Return what runs have spent in an account."""
        sql = f"SELECT {_SUMS} FROM spending WHERE {_IN_ACCOUNT}"  # noqa: S608 - constants
        values: dict[str, Value] = {"budget": account.budget, "value": account.value, "since": account.since}
        return _spent((await self._database.fetch(sql, values))[0])

    async def values(self, budget: str, since: int, after: str | None, size: int) -> list[tuple[str, Spent]]:
        """Return the values that have spent something of a budget, in order, with what they have.

        Args:
            budget: the budget's key.
            since: when the period began.
            after: only those that follow this one; ``None`` for all.
            size: at most so many.
        """
        which = "budget = :budget AND since = :since" + ("" if after is None else " AND value > :after")
        sql = f"SELECT value, {_SUMS} FROM spending WHERE {which} GROUP BY value ORDER BY value LIMIT :size"  # noqa: S608 - constants
        values: dict[str, Value] = {"budget": budget, "since": since, "size": size}
        values |= {} if after is None else {"after": after}
        return [(str(row[0]), _spent(row[1:])) for row in await self._database.fetch(sql, values)]

    async def fold(self, *, before: float) -> int:
        """Add what some runs that ended before a time, or were deleted, have spent to the rows of no run.

        Args:
            before: seconds since the epoch; so long ago that no write of their end can be under way.

        Returns:
            How many runs these were.
        """
        rows = await self._database.fetch(_ENDED, {"before": before, "size": _FOLDED_AT_ONCE})
        if rows:
            folded = [(sql, {"run_id": run_id}) for (run_id,) in rows for sql in (_FOLD, _FOLDED)]
            await self._database.execute([(LOCK, {}), *folded])
        return len(rows)

    async def delete_ended(self, *, before: float) -> int:
        """Delete what was spent in periods that ended before a time, in seconds since the epoch; return how much."""
        sql = "DELETE FROM spending WHERE until > 0 AND until < :before"
        return await self._change(sql, {"before": int(before)})


def _spent(row: Row) -> Spent:
    return Spent(*(cast("int", amount) for amount in row))
