"""What only PostgreSQL does: connections that its server ends."""

import asyncio
import os
import secrets
import signal
import traceback
import unittest.mock
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from dragoman.router.config import RouterConfig
from dragoman.router.model.stored import StoredEvents
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.leases import LEASE_S
from dragoman.router.storage.postgres import PostgresDatabase
from dragoman.router.storage.spending_table import LOCK
from dragoman.router.storage.store import Store
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, config, routing
from tests.router.store.databases import new_postgres
from tests.router.store.test_store import a_run


def cut_connections(url: str) -> None:
    """End all connections to a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_connection_that_the_server_ended_is_replaced_unused(
    request: pytest.FixtureRequest,
) -> None:
    url = new_postgres(request)
    store = Store(PostgresDatabase(url))
    await store.open()
    try:
        await asyncio.gather(*(store.run("r") for _ in range(8)))
        await asyncio.to_thread(cut_connections, url)
        assert await asyncio.gather(*(store.run("r") for _ in range(8))) == [None] * 8
    finally:
        await store.close()


async def test_a_statement_waits_for_a_lock_only_so_long_and_may_be_tried_again(
    request: pytest.FixtureRequest,
) -> None:
    url = new_postgres(request)
    database = PostgresDatabase(url)
    database.busy_s = 0.05
    store = Store(database)
    await store.open()
    try:
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreError, match="lock timeout") as failure:
                await store.run("r")
            assert not failure.value.is_lasting
        assert await store.run("r") is None
    finally:
        await store.close()


async def test_old_runs_are_deleted_by_one_router_at_a_time(request: pytest.FixtureRequest) -> None:
    url = new_postgres(request)
    database = PostgresDatabase(url)
    database.busy_s = PATIENCE_S
    store = Store(database)
    await store.open()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    try:
        await store.begin(a_run(finished_at=1.0))
        with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as watching:
            other.execute(LOCK.replace("blob", "bytea"))
            deleting = asyncio.ensure_future(store.delete_old(before=2.0, most_bytes=0))
            while not deleting.done() and (await asyncio.to_thread(watching.execute, waits)).fetchone() == (0,):
                pass
            assert not deleting.done()
        assert await deleting == 1
    finally:
        await store.close()


async def test_the_locks_of_a_router_that_is_cut_off_in_a_transaction_last_less_than_its_lease(
    request: pytest.FixtureRequest,
) -> None:
    """Else the server keeps them for hours, as it hears nothing more, and no router can take over the runs."""
    database = PostgresDatabase(new_postgres(request))
    await database.open()
    try:
        name = "idle_in_transaction_session_timeout"
        found = await database.fetch(f"SELECT setting FROM pg_settings WHERE name = '{name}'", {})
        assert 0 < int(str(found[0][0])) / 1000 < LEASE_S
    finally:
        await database.close()


def test_a_router_that_is_cut_off_in_a_migration_is_noticed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its lock keeps all others from starting for as long as the server waits."""
    connection = unittest.mock.MagicMock()
    monkeypatch.setattr(psycopg, "connect", connection)
    monkeypatch.setattr("dragoman.router.storage.postgres.migrate", lambda _url: None)
    PostgresDatabase("postgresql://h/d")._migrate()
    executed = [call.args[0] for call in connection.return_value.__enter__.return_value.execute.call_args_list]
    assert {"SET tcp_keepalives_idle = 5", "SET tcp_keepalives_interval = 5"} <= set(executed[:-1])
    assert "pg_advisory_lock" in executed[-1]


async def wait_for_locks(url: str, count: int) -> None:
    """Wait until so many transactions wait for locks."""
    asking = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE_S):
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while await (await connection.execute(asking)).fetchone() != (count,):  # noqa: ASYNC110 - a server has no event for it
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("change", ["renewed", "claimed"])
async def test_two_that_change_the_same_runs_never_wait_for_one_another(
    request: pytest.FixtureRequest, change: str
) -> None:
    url = new_postgres(request)
    store = Store(PostgresDatabase(url))
    await store.open()
    try:
        runs = [a_run(run_id) for run_id in ("B", "a", "c")]
        for run in runs:
            await store.begin(run)
        async with await psycopg.AsyncConnection.connect(url) as other:
            await other.execute("SELECT FROM runs WHERE run_id = 'a' FOR UPDATE")
            writing = asyncio.ensure_future(store.write([StoredEvents("c", 1, 2, [b"e"])], runs[::-1]))
            await wait_for_locks(url, 1)
            many = (
                store.leases.renew("one", 60.0)
                if change == "renewed"
                else store.leases.claim("two", now=51.0, lease_until=99.0)
            )
            changing = asyncio.ensure_future(many)
            await wait_for_locks(url, 2)
        assert await writing == []
        await changing
    finally:
        await store.close()


async def test_an_unreachable_server_is_reported_with_the_reason(
    capfd: pytest.CaptureFixture[str], folder: Path
) -> None:
    database = PostgresDatabase(f"postgresql://user:secret@/none?host={folder}")
    database.connect_s = 1.0
    with pytest.raises(StoreError, match="No such file or directory") as failure:
        await database.open()
    assert "secret" not in str(failure.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_cannot_keep_all_texts_is_refused(postgres_server: str, encoding: str) -> None:
    name = f"d{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        with pytest.raises(StoreError, match=f"has the encoding {encoding}, .*ENCODING 'UTF8'") as failure:
            await PostgresDatabase(postgres_server.replace("/postgres?", f"/{name}?")).open()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert failure.value.is_lasting


@pytest.mark.parametrize("rest", ["bob:secret pw@/x", "bob:secret@[::bad/x", "bob:secret@/x?nonsense=1"])
async def test_an_invalid_address_is_reported_without_its_password(rest: str) -> None:
    with pytest.raises(StoreError, match="percent-encode") as failure:
        await PostgresDatabase(f"postgresql://{rest}").open()
    assert failure.value.is_lasting
    assert "secret" not in "".join(traceback.format_exception(failure.value))


async def test_a_password_may_have_anything_in_it(request: pytest.FixtureRequest) -> None:
    url = new_postgres(request)
    database = PostgresDatabase(url.replace("postgres:@", f"postgres:{quote('p#w/?%@: +&', safe='')}@"))
    await database.open()
    assert await database.fetch("SELECT count(*) FROM runs", {}) == [(0,)]
    await database.close()


async def test_a_host_may_be_percent_encoded(request: pytest.FixtureRequest) -> None:
    parameters = psycopg.conninfo.conninfo_to_dict(new_postgres(request))
    database = PostgresDatabase(
        f"postgresql://postgres@{quote(str(parameters['host']), safe='')}/{parameters['dbname']}"
    )
    await database.open()
    assert await database.fetch("SELECT count(*) FROM runs", {}) == [(0,)]
    await database.close()


async def test_a_log_that_is_current_is_not_changed_when_it_is_opened(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(_database: PostgresDatabase) -> None:
        raise AssertionError("it was migrated")

    url = new_postgres(request)
    database = PostgresDatabase(url)
    await database.open()
    await database.close()
    monkeypatch.setattr(PostgresDatabase, "_migrate", unexpected)
    again = PostgresDatabase(url)
    await again.open()
    await again.close()
    with pytest.raises(StoreError, match="the run log is not open"):
        await again.fetch("SELECT 1", {})


async def test_both_spellings_of_its_url_are_understood(request: pytest.FixtureRequest, folder: Path) -> None:
    url = new_postgres(request).replace("postgresql://", "postgres://", 1)
    async with routing(config(folder, run_log=url)) as (_router, caller):
        assert not (await caller.router.ListRuns(router_pb2.ListRunsRequest(), timeout=PATIENCE_S)).runs


def test_a_run_log_that_is_neither_is_refused_without_its_password() -> None:
    with pytest.raises(ValueError, match="'mysql' must be a postgresql:// URL") as failure:
        RouterConfig(run_log="mysql://user:secret@host/runs")
    assert "secret" not in str(failure.value)


async def test_what_is_beyond_the_server_is_not_tried_again(request: pytest.FixtureRequest) -> None:
    run = a_run()
    run.state.run.task_key = secrets.token_hex(4000)  # an index has no room for that
    store = Store(PostgresDatabase(new_postgres(request)))
    await store.open()
    try:
        with pytest.raises(StoreError, match="index row") as failure:
            await store.begin(run)
        assert failure.value.is_lasting
    finally:
        await store.close()


def backends(url: str) -> list[int]:
    """Return the server's processes behind the connections to a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    return [int(pid) for (pid,) in rows]


async def test_a_server_that_does_not_answer_is_not_waited_for(request: pytest.FixtureRequest) -> None:
    url = new_postgres(request)
    database = PostgresDatabase(url)
    database.answer_s = 0.3
    store = Store(database)
    await store.open()
    assert await store.begin(a_run())
    stopped = await asyncio.to_thread(backends, url)
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        failures = []
        async with asyncio.timeout(9):
            while failure := await why_not(store):  # each that hangs is given up, until another is asked
                failures.append(failure)
        assert failures
        assert all("no answer within" in str(failure) and not failure.is_lasting for failure in failures)
        await asyncio.wait_for(store.close(), 9)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


async def why_not(store: Store) -> StoreError | None:
    try:
        await store.leases.renew("one", 9.0)
    except StoreError as error:
        return error
    return None


async def test_what_a_statement_cannot_do_at_all_is_the_fault_of_no_run(request: pytest.FixtureRequest) -> None:
    url = new_postgres(request)
    store = Store(PostgresDatabase(url))
    await store.open()
    try:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("ALTER TABLE runs RENAME TO away")
            with pytest.raises(StoreError, match="does not exist") as failure:
                await store.begin(a_run())
            assert not failure.value.is_lasting
            other.execute("ALTER TABLE away RENAME TO runs")
        assert await store.begin(a_run())
    finally:
        await store.close()


async def test_a_server_that_is_back_is_reached_in_much_less_than_a_lease(request: pytest.FixtureRequest) -> None:
    url = new_postgres(request)
    database = PostgresDatabase(url)
    await database.open()
    try:
        pool = database._pool
        assert pool is not None
        # After this time each call tries anew; one that finds all its connections away gives up after its own.
        assert pool.reconnect_timeout + database.connect_s / 4 < LEASE_S - 1
    finally:
        await database.close()
