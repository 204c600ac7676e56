"""The run log's database as others than a router see it: cut, held, and read without the router's help."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import psycopg
from psycopg.sql import SQL, Identifier

_BUSY_S: Final = 30.0
_MOVES: Final = """
CREATE TABLE moves (run_id text, was text, is_now text);
CREATE FUNCTION note_move() RETURNS trigger AS $$ BEGIN
    INSERT INTO moves VALUES (NEW.run_id, OLD.owner, NEW.owner);
    RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER moved AFTER UPDATE ON runs FOR EACH ROW
    WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION note_move();
"""

Rows = list[tuple[int, int, bool]]
"""First and last sequence of what one row has, and whether it was kept."""


class Database(Protocol):
    """What this suite does to a database, and reads in it. All of it blocks."""

    def hurt(self, lock_s: float) -> None:
        """Cut all connections, if there are any; else block other writers for so many seconds."""

    def hold(self, lock_s: float) -> None:
        """Block other writers for so many seconds; connections stay."""

    def rows(self, run_id: str) -> Rows:
        """Return what is kept of a run's events, in order."""

    def has_end(self, run_id: str) -> bool:
        """Return whether it has a run's result."""

    def traces(self, secret: bytes) -> list[str]:
        """Return the tables in which this is found; none for a file, which is found among the others."""


class Sqlite:
    """A file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def hurt(self, lock_s: float) -> None:
        self.hold(lock_s)

    def hold(self, lock_s: float) -> None:
        with self._connected() as connection:
            connection.execute("BEGIN EXCLUSIVE")
            threading.Event().wait(lock_s)
            connection.execute("ROLLBACK")

    def rows(self, run_id: str) -> Rows:
        sql = "SELECT first, last, data IS NOT NULL FROM events WHERE run_id = ? ORDER BY first"
        with self._connected() as connection:
            return [(first, last, bool(kept)) for first, last, kept in connection.execute(sql, (run_id,))]

    def has_end(self, run_id: str) -> bool:
        sql = "SELECT 1 FROM runs WHERE run_id = ? AND finished_at IS NOT NULL"
        with self._connected() as connection:
            return connection.execute(sql, (run_id,)).fetchone() is not None

    def traces(self, _secret: bytes) -> list[str]:
        return []

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as connection:
            connection.isolation_level = None
            yield connection


class Postgres:
    """A database on a server.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def hurt(self, _lock_s: float) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def hold(self, lock_s: float) -> None:
        with psycopg.connect(self._url) as connection:
            connection.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            threading.Event().wait(lock_s)
            connection.rollback()

    def rows(self, run_id: str) -> Rows:
        sql = "SELECT first, last, data IS NOT NULL FROM events WHERE run_id = %s ORDER BY first"
        with psycopg.connect(self._url) as connection:
            return [(first, last, kept) for first, last, kept in connection.execute(sql, (run_id,))]

    def has_end(self, run_id: str) -> bool:
        sql = "SELECT 1 FROM runs WHERE run_id = %s AND finished_at IS NOT NULL"
        with psycopg.connect(self._url) as connection:
            return connection.execute(sql, (run_id,)).fetchone() is not None

    def traces(self, secret: bytes) -> list[str]:
        sql = "SELECT FROM {} AS t WHERE t::text ~ %s LIMIT 1"
        with psycopg.connect(self._url) as connection:
            return [
                table
                for table in ("runs", "events", "sessions", "settings")
                if connection.execute(SQL(sql).format(Identifier(table)), (secret.decode(),)).rowcount
            ]

    def watch_moves(self) -> None:
        """Have the server note from now on which run went from which router to which."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(_MOVES)

    def moves(self, run_id: str) -> list[tuple[str, str]]:
        """Return from which router to which a run went."""
        with psycopg.connect(self._url) as connection:
            rows = connection.execute("SELECT was, is_now FROM moves WHERE run_id = %s", (run_id,))
            return [(was, is_now) for was, is_now in rows]

    def owners(self) -> dict[str, str]:
        """Return who has which live run."""
        with psycopg.connect(self._url) as connection:
            rows = connection.execute("SELECT run_id, owner FROM runs WHERE finished_at IS NULL")
            return dict(rows.fetchall())
