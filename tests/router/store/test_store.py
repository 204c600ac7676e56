"""What the run log keeps, in SQLite and in PostgreSQL: the same tests for both."""

import asyncio
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import yoyo
from dragoman.protocol.limits import MIB
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.stored import RunQuery, SessionId, StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.database import Database, Row, Statement, StoreError, Value
from dragoman.router.storage.postgres import PostgresDatabase
from dragoman.router.storage.session_table import session_name
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2
from msgspec.structs import replace

from tests.router.store.databases import new_postgres

KEY = SessionId("company", "agent", "process", "task")


def a_run(run_id: str = "r", **fields: object) -> StoredRun:
    summary = router_pb2.RunSummary(run_id=run_id, adapter="process", agent_id="a", company_id="c", task_key="t")
    state = router_pb2.GetRunResponse(run=summary)
    run = StoredRun(run_id, 1.0, "process", state, owner="one", lease_until=50.0)
    return replace(run, **fields)


def ended(run_id: str, at: float, size: int = 0) -> StoredRun:
    run = a_run(run_id, finished_at=at, size=size)
    run.state.run.result.outcome = pb.OUTCOME_SUCCEEDED
    return run


async def kept(store: Store, run_id: str = "r") -> StoredRun:
    found = await store.run(run_id)
    assert found is not None
    return found


async def test_a_run_is_kept_as_it_is(store: Store) -> None:
    run = a_run(digest=b"\x00\xff", assignment=Dispatched("unix:/s", "i"), router="unix:/r", orphan_after=2.5)
    assert await store.begin(run)
    assert await store.run("r") == run
    assert await store.run("another") is None


async def test_an_id_is_taken_once(store: Store) -> None:
    began = await asyncio.gather(*(store.begin(a_run(owner=str(number))) for number in range(5)))
    assert sorted(began) == [False, False, False, False, True]


async def test_events_come_back_in_order_from_anywhere(store: Store) -> None:
    await store.begin(a_run())
    batches = [StoredEvents("r", first, first + 9, [bytes([first])]) for first in range(1, 100, 10)]
    for batch in reversed(batches):
        assert await store.write([batch], [a_run(logged=batch.last)]) == []
    assert await store.events("r", 0) == batches
    assert await store.events("r", 10) == batches[1:]
    assert await store.events("r", 15) == batches[1:]
    assert await store.events("r", 100) == []


async def test_what_is_read_at_once_is_bounded_in_bytes(store: Store) -> None:
    await store.begin(a_run())
    batches = [StoredEvents("r", number, number, [bytes(MIB // 48 - 3)]) for number in range(1, 10)]
    batches[2] = StoredEvents("r", 3, 3, None)
    batches[6] = StoredEvents("r", 7, 7, [bytes(3 * MIB // 16)])
    await store.write(batches, [a_run(logged=9)])
    pages, after = [], 0
    while page := await store.events("r", after):
        pages.append([row.first for row in page])
        after = page[-1].last
    assert pages == [[1, 2, 3, 4, 5], [6, 7], [8, 9]]


async def test_a_page_costs_the_same_wherever_it_begins(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "runs.db")
    store = Store(database)
    await store.open()
    await store.begin(a_run())
    rows = [StoredEvents("r", first, first + 9, [bytes(1000)]) for first in range(1, 10_000, 10)]
    await store.write(rows, [a_run(logged=10_000)])
    assert database._connection is not None
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    database._connection.set_progress_handler(step, 1)
    costs = []
    for after in (100, 9_000):
        steps = 0
        assert len(await store.events("r", after)) == 64
        costs.append(steps)
    database._connection.set_progress_handler(None, 1)
    await store.close()
    assert costs[1] < 2 * costs[0], costs


async def test_rows_that_overlap_as_a_write_in_doubt_was_repeated_without_dropped_events_are_read(
    store: Store,
) -> None:
    await store.begin(a_run())
    await store.write([StoredEvents("r", 1, 5, [b"a"]), StoredEvents("r", 6, 6, [b"b"])], [a_run(logged=6)])
    again = [StoredEvents("r", 1, 3, None), StoredEvents("r", 4, 12, [b"c"]), StoredEvents("r", 13, 13, [b"d"])]
    await store.write(again, [a_run(logged=13)])
    for after in range(13):
        known = after
        for row in await store.events("r", after):
            if row.last > known:
                assert row.first <= known + 1, f"a gap after {known}, read from {after}"
                known = row.last
        assert known == 13


async def test_what_was_not_written_is_reported(store: Store) -> None:
    await store.begin(a_run())
    await store.write([StoredEvents("r", 1, 7, None)], [a_run(logged=7)])
    assert await store.events("r", 0) == [StoredEvents("r", 1, 7, None)]


async def test_writing_again_what_was_perhaps_written_changes_nothing(store: Store) -> None:
    await store.begin(a_run())
    batch = StoredEvents("r", 1, 2, [b"first"])
    await store.write([batch], [a_run()])
    await store.write([replace(batch, events=[b"again"])], [a_run()])
    assert await store.events("r", 0) == [batch]


async def test_what_came_while_the_write_was_in_doubt_is_written_too(store: Store) -> None:
    await store.begin(a_run())
    await store.write([StoredEvents("r", 1, 3, [b"first three"])], [a_run(logged=3)])
    await store.write([StoredEvents("r", 1, 5, [b"all five"])], [a_run(logged=5)])
    assert await store.events("r", 0) == [StoredEvents("r", 1, 5, [b"all five"])]


async def test_a_run_that_was_perhaps_begun_is_begun_again_by_its_owner(store: Store) -> None:
    assert await store.begin(a_run())
    assert await store.begin(a_run())
    assert not await store.begin(a_run(owner="two"))


async def test_a_run_that_no_adapter_ever_had_makes_room_for_another_one(store: Store) -> None:
    await store.begin(a_run(digest=b"one"))
    over = replace(ended("r", 5.0), digest=None, logged=10_001)
    await store.write([StoredEvents("r", 1, 10_000, None), StoredEvents("r", 10_001, 10_001, [b"end"])], [over])
    assert (await kept(store)).digest is None
    assert await store.begin(a_run(digest=b"two", accepted_at=7.0)), "of the same owner, too"
    assert (await kept(store)).digest == b"two"
    assert await store.events("r", 0) == []
    assert not await store.begin(a_run(digest=b"three", accepted_at=8.0))


async def test_no_router_recovers_its_own_runs(store: Store) -> None:
    await store.begin(a_run(lease_until=1.0))
    assert await store.leases.claim("one", now=50.0, lease_until=99.0) == []


async def test_a_run_of_another_owner_is_not_written_over(store: Store) -> None:
    await store.begin(a_run())
    (taken,) = await store.leases.claim("two", now=51.0, lease_until=99.0)
    assert taken.owner == "two"
    assert await store.write([StoredEvents("r", 1, 2, [b"late"])], [a_run(logged=2)]) == ["r"]
    assert await store.events("r", 0) == []
    assert (await kept(store)).logged == 0
    assert await store.write([StoredEvents("r", 1, 2, [b"mine"])], [replace(taken, logged=2)]) == []
    assert (await kept(store)).logged == 2


async def test_a_row_that_lags_behind_its_events_is_read_as_if_it_did_not(store: Store) -> None:
    for run_id in ("q", "r", "s"):
        await store.begin(a_run(run_id, logged=4, size=100))
    more = [StoredEvents("r", 5, 6, [b"", b"a"]), StoredEvents("r", 7, 9, None)]
    assert await store.write(more, [StoredProgress("r", "one", 9, 103, may_lag=True)]) == []
    await store.write([StoredEvents("s", 5, 5, [b"e"])], [StoredProgress("s", "one", 5, 101)])
    read = [
        *await store.runs(RunQuery(), before=None, size=9),
        *await store.at_task("c", "a", "t"),
        *[await kept(store, run_id) for run_id in ("q", "r", "s")],
        *await store.leases.claim("two", now=51.0, lease_until=99.0),
    ]
    found = {(run.run_id, run.logged, run.size, run.state.run.last_sequence) for run in read}
    assert found == {("q", 4, 100, 4), ("r", 9, 103, 9), ("s", 5, 101, 5)}
    assert len(read) == 12


async def test_events_of_a_run_whose_row_may_lag_are_refused_if_another_owner_has_it(store: Store) -> None:
    progress = StoredProgress("r", "one", 2, 5, may_lag=True)
    await store.begin(a_run("r"))
    await store.leases.claim("two", now=51.0, lease_until=99.0)
    await store.begin(a_run("s"))
    mine = StoredEvents("s", 1, 1, [b"e"])
    refused = [StoredEvents("r", 1, 2, [b"late"]), mine], [progress, StoredProgress("s", "one", 1, 1, may_lag=True)]
    assert await store.write(*refused) == ["r"]
    assert await store.events("r", 0) == []
    assert await store.write(*refused) == ["r"], "what was perhaps written, and is, is no other owner's"
    assert await store.events("s", 0) == [mine]


async def test_only_where_one_transaction_writes_at_a_time_a_row_lags(database: Database) -> None:
    store = Store(database)
    await store.open()
    await store.begin(a_run())
    await store.write([StoredEvents("r", 1, 2, [b"e"])], [StoredProgress("r", "one", 2, 1, may_lag=True)])
    ((logged,),) = await database.fetch("SELECT logged FROM runs", {})
    assert logged == (2 if database.locking else 0)
    await store.close()


async def test_only_an_expired_lease_is_taken_over(store: Store) -> None:
    await store.begin(a_run("live", lease_until=50.0))
    await store.begin(a_run("dead", lease_until=10.0))
    await store.begin(replace(ended("over", 5.0), lease_until=10.0))
    claimed = await asyncio.gather(*(store.leases.claim(f"c{n}", now=20.0, lease_until=99.0) for n in range(4)))
    assert [run.run_id for runs in claimed for run in runs] == ["dead"]
    await store.leases.renew("one", 100.0)
    assert await store.leases.claim("late", now=60.0, lease_until=99.0) == []
    await store.leases.release("one")
    assert [run.run_id for run in await store.leases.claim("next", now=60.0, lease_until=99.0)] == ["live"]


async def test_runs_are_listed_newest_first_in_pages(store: Store) -> None:
    for number in range(7):
        await store.begin(a_run(f"r{number}", accepted_at=float(number // 2)))
    listed: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.runs(RunQuery(), before=before, size=3):
        listed += [run.run_id for run in page]
        before = (page[-1].accepted_at, page[-1].run_id)
    assert listed == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]


async def test_runs_are_found_by_what_is_asked(store: Store) -> None:
    other = a_run("other", accepted_at=2.0, adapter="acp")
    other.state.run.adapter, other.state.run.agent_id = "acp", "b"
    other.state.run.labels["team"] = "blue"
    for run in (a_run(), other, replace(ended("over", 3.0), accepted_at=3.0)):
        await store.begin(run)

    async def found(**filters: object) -> list[str]:
        query = RunQuery(**filters)  # type: ignore[arg-type]  # fields of many types
        return [run.run_id for run in await store.runs(query, before=None, size=10)]

    assert await found() == ["over", "other", "r"]
    assert (
        await found(adapter="acp") == await found(agent_id="b") == await found(labels={"team": "blue"}) == ["other"]
    )
    assert await found(outcome=int(pb.OUTCOME_SUCCEEDED)) == ["over"]
    assert await found(live_only=True) == ["other", "r"]
    assert await found(task_key="none") == []


async def test_live_runs_of_one_task_are_found_whatever_their_owner(store: Store) -> None:
    for run in (a_run("here"), a_run("there", owner="two"), ended("over", 3.0)):
        await store.begin(run)
    for field in ("company_id", "agent_id", "task_key"):
        other = a_run(field)
        setattr(other.state.run, field, "another")
        await store.begin(other)
    assert {run.run_id for run in await store.at_task("c", "a", "t")} == {"here", "there"}
    assert await store.at_task("c", "a", "none") == []


async def test_a_label_is_looked_for_beyond_the_first_page(store: Store) -> None:
    rare = a_run("rare", accepted_at=0.0)
    rare.state.run.labels["x"] = "y"
    for run in (rare, *(a_run(f"r{number}") for number in range(9))):
        await store.begin(run)
    found = await store.runs(RunQuery(labels={"x": "y"}), before=None, size=2)
    assert [run.run_id for run in found] == ["rare"]


async def test_old_and_too_many_runs_are_forgotten_with_their_events(store: Store) -> None:
    for run in (ended("old", 1.0, 10), ended("large", 8.0, 100), ended("new", 9.0, 50), a_run("live")):
        await store.begin(run)
        await store.write([StoredEvents(run.run_id, 1, 1, [b"e"])], [run])
    assert await store.delete_old(before=2.0, most_bytes=100) == 2
    assert [run.run_id for run in await store.runs(RunQuery(), before=None, size=9)] == ["new", "live"]
    assert await store.events("large", 0) == []
    assert await store.events("new", 0) != []


async def test_many_bytes_are_not_forgotten_at_once(store: Store) -> None:
    for number in range(3):
        await store.begin(ended(f"r{number}", float(number), 30 * MIB))
    assert await store.delete_old(before=9.0, most_bytes=MIB) == 2
    assert await store.delete_old(before=9.0, most_bytes=MIB) == 1


class Overtaken:
    """A database in which another router forgets whenever something was read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.locking = database.locking
        self._other = Store(database)

    async def fetch(self, sql: str, values: Mapping[str, Value]) -> list[Row]:
        rows = await self._database.fetch(sql, values)
        await self._other.delete_old(before=0.0, most_bytes=100)
        return rows

    async def execute(self, statements: Iterable[Statement]) -> list[int]:
        return await self._database.execute(statements)

    async def open(self) -> None:
        await self._database.open()

    async def reclaim(self) -> None:
        await self._database.reclaim()

    async def close(self) -> None:
        await self._database.close()


async def test_several_routers_that_forget_at_once_forget_no_more_than_one(database: Database) -> None:
    store = Store(Overtaken(database))
    await store.open()
    for number in range(20):
        await store.begin(ended(f"r{number:02}", float(number), 10))
    await store.delete_old(before=0.0, most_bytes=100)
    left = await store.runs(RunQuery(), before=None, size=99)
    assert {run.run_id for run in left} == {f"r{number}" for number in range(10, 20)}
    await store.close()


async def test_a_session_is_kept_replaced_and_forgotten(store: Store) -> None:
    assert await store.sessions.get(KEY) is None
    await store.sessions.put(KEY, router_pb2.StoredSession(runs=1), 1.0)
    await store.sessions.put(KEY, router_pb2.StoredSession(runs=2), 2.0)
    found = await store.sessions.get(KEY)
    assert found is not None
    assert found.runs == 2
    assert await store.sessions.delete(KEY)
    assert not await store.sessions.delete(KEY)


async def test_sessions_are_listed_last_used_first_in_pages(store: Store) -> None:
    keys = [replace(KEY, task_key=f"t{number}") for number in range(5)]
    for number, key in enumerate(keys):
        await store.sessions.put(key, router_pb2.StoredSession(runs=number), float(number // 2))
    listed: list[int] = []
    before: tuple[float, str] | None = None
    while page := await store.sessions.page({"agent_id": "agent"}, before=before, size=2):
        listed += [session.runs for session in page]
        before = (float(page[-1].runs // 2), session_name(keys[page[-1].runs]))
    assert listed == [4, 3, 2, 1, 0]
    assert await store.sessions.page({"company_id": "another"}, before=None, size=9) == []


async def test_it_is_all_there_when_it_is_opened_again(database: Database) -> None:
    for _ in range(2):
        store = Store(database)
        await store.open()
        await store.begin(a_run())
        await store.close()
    await database.open()
    assert len(await database.fetch("SELECT run_id FROM runs", {})) == 1
    await database.close()


async def test_what_a_later_version_wrote_is_left_alone(database: Database) -> None:
    await database.open()
    columns = "migration_hash, migration_id, applied_at_utc"
    sql = f"INSERT INTO _yoyo_migration ({columns}) VALUES ('h', '9999.later', '2100-01-01 00:00:00')"
    await database.execute([(sql, {})])
    await database.close()
    with pytest.raises(StoreError, match="later version") as caught:
        await database.open()
    assert caught.value.is_lasting


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_process_killed_while_it_created_the_database_leaves_no_lock(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "runs.db"
    url = f"sqlite:///{path}" if kind == "sqlite" else new_postgres(request)

    def killed() -> None:
        with yoyo.get_backend(url.replace("postgresql://", "postgresql+psycopg://")) as backend:
            backend._insert_lock_row(4711, 1)

    await asyncio.to_thread(killed)
    store = Store(SqliteDatabase(path) if kind == "sqlite" else PostgresDatabase(url))
    await store.open()
    assert await store.begin(a_run())
    await store.close()


async def test_two_may_open_a_new_database_at_once(database: Database) -> None:
    other: Database
    if isinstance(database, SqliteDatabase):
        other = SqliteDatabase(database._path)
    else:
        assert isinstance(database, PostgresDatabase)
        other = PostgresDatabase(database._url)
    await asyncio.gather(database.open(), other.open())
    await asyncio.gather(database.close(), other.close())


async def test_no_other_user_can_read_the_file(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "runs.db")
    store = Store(database)
    await store.open()
    await store.begin(a_run())
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    await store.close()
    assert "runs.db-wal" in modes
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    "name", ["hash#x", "quest?x=1", "pct%20x%", "Grüße 世界", "colon:at@[x]'\"", os.fsdecode(b"\xff")]
)
async def test_its_directory_may_be_called_anything(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    database = SqliteDatabase(folder / "runs.db")
    await database.open()
    assert (await database.fetch("SELECT count(*) FROM runs", {}))[0][0] == 0
    await database.close()
    assert {path.name for path in tmp_path.iterdir()} == {name}, "a file that others could read"


async def test_what_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    """As one that was restored from a copy."""
    database = SqliteDatabase(tmp_path / "runs.db")
    await database.open()
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    again = SqliteDatabase(tmp_path / "runs.db")
    await again.open()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.suffix != ".lock"}
    await asyncio.gather(database.close(), again.close())
    assert modes == dict.fromkeys(["runs.db", "runs.db-wal", "runs.db-shm"], 0o600)


async def test_opened_twice_it_has_one_connection(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "runs.db")
    await database.open()
    first = database._connection
    assert first is not None
    await database.open()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("SELECT 1")
    await database.close()


async def test_the_first_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(_url: str) -> None:
        try:
            raise sqlite3.OperationalError("database or disk is full")
        finally:  # as the migration tool tidies up
            raise sqlite3.OperationalError("no such table: yoyo_lock")

    monkeypatch.setattr("dragoman.router.storage.sqlite.migrate", migrate)
    with pytest.raises(StoreError, match="database or disk is full"):
        await SqliteDatabase(tmp_path / "runs.db").open()


async def test_a_file_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        await SqliteDatabase(tmp_path / "absent" / "runs.db").open()


async def test_what_is_no_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        await SqliteDatabase(tmp_path / "runs.db").open()


async def test_an_absent_server_is_reported_without_its_password() -> None:
    database = PostgresDatabase("postgresql://me:Pa55w0rd-hidden@127.0.0.1:1/runs?connect_timeout=1")
    database.connect_s = 1.0
    with pytest.raises(StoreError) as caught:
        await database.open()
    assert "Pa55w0rd" not in str(caught.value)
