"""SQLite: one file of this user's, one connection, one thread."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from dragoman.router._store.database import (
    BUSY_S,
    Row,
    Statement,
    StoreError,
    Value,
    applied_sql,
    is_current,
    migrate,
)

_MODE: Final = 0o600
_T = TypeVar("_T")


class SqliteDatabase:
    """A file with the run log.

    Args:
        path: of the file; made for this user alone if it is absent.
    """

    locking: Final = ""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file, and bring its schema up to date."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="run-log")
        await self._do(self._open)

    async def close(self) -> None:
        """Close the file."""
        if self._thread is not None:
            await self._do(self._close)
            self._thread.shutdown()
            self._thread = None

    async def execute(self, statements: Sequence[Statement]) -> list[int]:
        """Do all of these or none; return how many rows each changed."""

        def work() -> list[int]:
            with self._here() as connection:
                return [connection.execute(sql, values).rowcount for sql, values in statements]

        return await self._do(work)

    async def fetch(self, sql: str, values: Mapping[str, Value]) -> list[Row]:
        """Do one statement, and return its rows."""

        def work() -> list[Row]:
            with self._here() as connection:
                return connection.execute(sql, values).fetchall()

        return await self._do(work)

    async def _do(self, work: Callable[[], _T]) -> _T:
        if self._thread is None:
            raise StoreError("the run log is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(f"the run log {self._path}: {_first(error)}") from error
        except OSError as error:
            raise StoreError(f"the run log {self._path}: {error.strerror}") from error

    def _here(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("it is not open")
        return self._connection

    def _open(self) -> None:
        # Before SQLite makes it, and its companions after its model: nobody else may read what agents said.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE))
        for path in (self._path, *(Path(f"{self._path}{suffix}") for suffix in ("-wal", "-shm"))):
            with contextlib.suppress(OSError):
                path.chmod(_MODE)  # one that was restored from a copy may be anybody's to read
        connection = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
        try:
            # A power cut may take the last transactions with it; a killed process cannot.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            if not self._is_current(connection):
                self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make a new file what it should be, one router after another."""
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_current(connection):
                connection.execute("PRAGMA journal_mode = WAL")
                # The tool hands the path on as it is, to SQLite as a part of a URI.
                migrate(f"sqlite:///{quote(os.fsencode(self._path))}")
        finally:
            os.close(lock)

    def _is_current(self, connection: sqlite3.Connection) -> bool:
        try:
            applied = connection.execute(applied_sql()).fetchall()
        except sqlite3.OperationalError:
            return False  # there is no such table yet
        return is_current(applied)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _first(error: sqlite3.Error) -> BaseException:
    """Return what went wrong first: the migration tool tidies up after that, and fails at it too."""
    first: BaseException = error
    while isinstance(first.__context__, sqlite3.Error):
        first = first.__context__
    return first
