"""What is asked of a long log is found by an index: nothing is read through or sorted for it."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

import pytest
from dragoman.router.model.stored import RunQuery
from dragoman.router.storage.database import Database, Row, Statement, Value
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store

_HISTORY = """
INSERT INTO runs (run_id, accepted_at, finished_at, adapter, agent_id, company_id, task_key, outcome, digest, state,
    logged, bytes, owner, lease_until, place, orphan_after)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 4000)
SELECT 'r' || n, n, CASE WHEN n % 40 = 0 THEN NULL ELSE n + 1 END, 'process', 'a' || n % 3, 'c', 't' || n % 40,
    CASE WHEN n % 40 = 0 THEN 0 ELSE 1 END, NULL, CAST('STATE' AS blob), 5, 100, 'one', 0, '{}', 0
FROM numbers
""".replace("STATE", "x" * 200)
_SESSIONS = """
INSERT INTO sessions (company_id, agent_id, adapter, task_key, used_at, state)
SELECT company_id, agent_id, adapter, run_id, accepted_at, state FROM runs
"""
_EVENTS = "INSERT INTO events (run_id, first, last, data) SELECT run_id, 1, 5, CAST('e' AS blob) FROM runs"
_LAST = (2000.0, "r2000")
_Asking = Callable[[Store], Awaitable[object]]


class Explained:
    """A database that first says how it would do what it is asked."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.locking = database.locking
        self.plans: list[str] = []

    async def open(self) -> None:
        await self.database.open()

    async def reclaim(self) -> None:
        await self.database.reclaim()

    async def close(self) -> None:
        await self.database.close()

    async def fetch(self, sql: str, values: Mapping[str, Value]) -> list[Row]:
        await self._explain(sql, values)
        return await self.database.fetch(sql, values)

    async def execute(self, statements: Iterable[Statement]) -> list[int]:
        statements = list(statements)
        for sql, values in statements:
            await self._explain(sql, values)
        return await self.database.execute(statements)

    async def _explain(self, sql: str, values: Mapping[str, Value]) -> None:
        how = "EXPLAIN QUERY PLAN" if isinstance(self.database, SqliteDatabase) else "EXPLAIN"
        rows = await self.database.fetch(f"{how} {sql}", values)
        self.plans.append("\n".join(str(row[-1]) for row in rows))


@pytest.fixture
async def explained(database: Database) -> AsyncIterator[Explained]:
    """A log with much history and few live runs; PostgreSQL knows that, as it looks by itself."""
    await database.open()
    await database.execute([(_HISTORY, {}), (_EVENTS, {}), (_SESSIONS, {})])
    if not isinstance(database, SqliteDatabase):
        await database.execute([("ANALYZE", {})])
    yield Explained(database)
    await database.close()


def listing(before: tuple[float, str] | None = None, **filters: object) -> _Asking:
    query = RunQuery(**filters)  # type: ignore[arg-type]  # fields of many types
    return lambda store: store.runs(query, before=before, size=20)


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        pytest.param(lambda store: store.at_task("c", "a1", "t0"), "runs_live_by_task", id="live-at-a-task"),
        pytest.param(listing(live_only=True), "runs_live_by_time", id="live"),
        pytest.param(listing(_LAST, live_only=True), "runs_live_by_time", id="live-next-page"),
        pytest.param(listing(task_key="t0"), "runs_by_task", id="of-a-task"),
        pytest.param(listing(_LAST, task_key="t0"), "runs_by_task", id="of-a-task-next-page"),
        pytest.param(listing(), "runs_by_time", id="all"),
        pytest.param(listing(_LAST), "runs_by_time", id="all-next-page"),
    ],
)
async def test_it_is_found_by_an_index(explained: Explained, ask: _Asking, index: str) -> None:
    await ask(Store(explained))
    plan = explained.plans[0]
    assert re.search(rf"\b{index}\b", plan), plan
    assert not re.search(r"Seq Scan|TEMP B-TREE|\bSCAN runs$", plan), plan
    assert "Sort" not in plan, plan


@pytest.mark.parametrize("limits", [(50.0, 1 << 40), (0.0, 385_000)], ids=["by-age", "by-size"])
async def test_what_is_to_be_forgotten_is_found_by_an_index(explained: Explained, limits: tuple[float, int]) -> None:
    assert await Store(explained).delete_old(before=limits[0], most_bytes=limits[1]) > 40
    look, _lock, events, runs = explained.plans
    assert re.search("COVERING INDEX runs_finished|Index Only Scan using runs_finished", look), look
    assert not re.search("TEMP B-TREE|Sort", look), look
    for plan in (events, runs):
        assert re.search(r"\bruns_finished\b", plan), plan
        assert not re.search("Seq Scan on runs|SCAN runs$", plan), plan


async def test_sessions_that_are_to_be_forgotten_are_found_by_an_index(explained: Explained) -> None:
    assert await Store(explained).sessions.delete_unused(before=50.0) > 40
    (plan,) = explained.plans
    assert re.search(r"\bsessions_by_time\b", plan), plan
