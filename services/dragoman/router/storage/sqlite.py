"""SQLite: one file of this user's, one connection, one thread."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from dragoman.router.storage.database import (
    APPLIED,
    BUSY_S,
    Row,
    Statement,
    StoreError,
    Value,
    is_current,
    migrate,
)

_MODE: Final = 0o600
_DAMAGED: Final = frozenset({11, 26})
"""SQLITE_CORRUPT and SQLITE_NOTADB: https://www.sqlite.org/rescode.html"""
_WHEN_DAMAGED: Final = (
    "stop the routers that use it, then restore a backup, or move the file away with its -wal and -shm files to start"
    " with an empty run log"
)
_COMPANIONS: Final = ("-wal", "-shm")
_ASIDE: Final = "-aside"
"""Follows the name of a companion whose file is not at its path now."""
_PAGES_AT_ONCE: Final = 1024
"""Pages given back in one step: nothing is written meanwhile."""
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
        self._opened: tuple[int, int] | None = None
        """Device and number of the file that is open."""
        self._companions: dict[Path, tuple[int, int] | None] = {}
        """Those of its companions."""
        self._is_away = False
        """Whether the file was not at its path when it was used last."""

    async def open(self) -> None:
        """Open the file, or what has its path now, and bring its schema up to date."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="run-log")
        await self._do(self._open)

    async def reclaim(self) -> None:
        """Shorten the file, step by step, and empty its write-ahead log, which has what was deleted."""
        while await self._do(self._shorten):
            pass
        await self._do(self._empty_wal)

    async def close(self) -> None:
        """Close the file."""
        if self._thread is not None:
            await self._do(self._close)
            self._thread.shutdown()
            self._thread = None

    async def execute(self, statements: Iterable[Statement]) -> list[int]:
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
            first = _first(error)
            if getattr(first, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                raise StoreError(f"the run log {self._path} is corrupt ({first}): {_WHEN_DAMAGED}") from error
            raise StoreError(f"the run log {self._path}: {first}") from error
        except OSError as error:
            raise StoreError(f"the run log {self._path}: {error.strerror}") from error

    def _here(self) -> sqlite3.Connection:
        if self._opened is None:
            raise sqlite3.OperationalError("the run log is not open")
        if _identity(self._path) != self._opened:
            self._is_away = True
            self._move_companions("", _ASIDE)
            raise StoreError(
                f"the run log {self._path} was deleted or replaced while it was in use; restart what uses it"
            )
        if self._connection is None or self._is_away:  # it is the same again, and nothing was written meanwhile
            self._move_companions(_ASIDE, "")
            return self._open()
        return self._connection

    def _move_companions(self, source: str, target: str) -> None:
        """Rename them: SQLite would take those of a file that is gone for those of the one in its place."""
        for path, identity in self._companions.items():
            before, after = Path(f"{path}{source}"), Path(f"{path}{target}")
            if identity is not None and _identity(before) == identity and not (source and after.exists()):
                before.replace(after)

    def _open(self) -> sqlite3.Connection:
        self._close()  # a second connection would be left to the garbage collector, which CPython 3.13 warns of
        # Before SQLite makes it, and its companions after its model: no other user may read the messages of agents.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE))
        companions = [Path(f"{self._path}{suffix}") for suffix in _COMPANIONS]
        for path in (self._path, *companions):
            with contextlib.suppress(OSError):
                path.chmod(_MODE)  # one restored from a backup may be readable by all
        connection = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
        try:
            # A power cut may take the last transactions with it; a killed process cannot.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            # What is forgotten is overwritten. Of every connection; the file does not remember it.
            connection.execute("PRAGMA secure_delete = ON")
            if not self._is_current(connection):
                self._prepare(connection)
            connection.execute("SELECT count(*) FROM settings").fetchall()  # from now on it has its companions
        except BaseException:
            connection.close()
            raise
        self._connection, self._opened, self._is_away = connection, _identity(self._path), False
        self._companions = {path: _identity(path) for path in companions}
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make a new file what it should be, one router after another."""
        lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_current(connection):
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before there is a table
                connection.execute("PRAGMA journal_mode = WAL")
                # The tool hands the path on as it is, to SQLite as a part of a URI.
                migrate(f"sqlite:///{quote(os.fsencode(self._path))}")
        finally:
            os.close(lock)

    def _shorten(self) -> bool:
        """Give back some free pages; True if there are more."""
        connection = self._here()
        free = _number(connection, "freelist_count")
        # As a script, which is stepped to its end: `execute` takes one step, and that frees one page.
        connection.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")
        return 0 < _number(connection, "freelist_count") < free

    def _empty_wal(self) -> None:
        connection = self._here()
        connection.execute("PRAGMA busy_timeout = 0")  # one that reads or writes just now is not waited for
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")

    def _is_current(self, connection: sqlite3.Connection) -> bool:
        try:
            applied = connection.execute(APPLIED).fetchall()
        except sqlite3.OperationalError:
            return False  # there is no such table yet
        return is_current(applied)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            if _identity(self._path) != self._opened:
                self._move_companions("", _ASIDE)
        for suffix in _COMPANIONS:
            Path(f"{self._path}{suffix}{_ASIDE}").unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _number(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of a PRAGMA."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _first(error: sqlite3.Error) -> BaseException:
    """Return what went wrong first: the migration tool tidies up after that, and fails at it too."""
    first: BaseException = error
    while isinstance(first.__context__, sqlite3.Error):
        first = first.__context__
    return first
