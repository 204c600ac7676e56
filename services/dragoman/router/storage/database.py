"""A database, as far as the store needs one: some statements at once, or the rows of one."""

import asyncio
import functools
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from importlib.resources import as_file, files
from typing import Any, Final, Protocol, TypeAlias, TypeVar

Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Value, ...]
Statement: TypeAlias = tuple[str, Mapping[str, Value]]
"""SQL with ``:names``, and what they stand for."""

MIGRATIONS: Final = "migrations"
APPLIED: Final = "SELECT migration_id FROM _yoyo_migration"
"""The query for what is applied; its table is absent in a new database."""
BUSY_S: Final = 5.0
"""How long a statement waits for what another connection has locked, before it fails and is tried again."""
T = TypeVar("T")

_NAMES: Final = re.compile(r":([a-z_]+)")


class StoreError(Exception):
    """The database failed; the text says why and quotes no values.

    Args:
        message: why.
        is_lasting: whether a retry is of no use.
    """

    def __init__(self, message: str, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


async def in_time(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Return what a store returns, if it does so in time; else it continues in the background.

    Raises:
        StoreError: it failed, or takes too long.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.shield(work)
    except TimeoutError as error:
        raise StoreError(f"no answer within {timeout_s:g} s") from error


class Database(Protocol):
    """One database. Calls may come at once."""

    @property
    def locking(self) -> str:
        """What a SELECT of run ids ends with so that it locks these runs, one after another by their ids.

        Empty where one transaction writes at a time. Two that lock some runs each in an order of its own may wait for
        one another; a server sees that after a second, and one of the two fails.
        """

    async def open(self) -> None:
        """Connect, and bring the schema up to date.

        Raises:
            StoreError: it cannot be used.
        """

    async def reclaim(self) -> None:
        """Give back the space of what was deleted, and leave nothing of it that could be read.

        Raises:
            StoreError: it cannot be used.
        """

    async def close(self) -> None:
        """Let go of it."""

    async def execute(self, statements: Iterable[Statement]) -> list[int]:
        """Do all of these or none; return how many rows each changed.

        They may be made as they are done, where the database is used in a thread of its own in that one.

        Raises:
            StoreError: none was done, or at a broken connection perhaps all were.
        """

    async def fetch(self, sql: str, values: Mapping[str, Value]) -> list[Row]:
        """Do one statement, and return its rows.

        Raises:
            StoreError: as above.
        """


class Table:
    """A part of the run log. What its database cannot do raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _change(self, sql: str, values: Mapping[str, Value]) -> int:
        """Do one statement, and return how many rows it changed."""
        (changed,) = await self._database.execute([(sql, values)])
        return changed


@functools.lru_cache(maxsize=64)
def with_percent(sql: str) -> str:
    """Return SQL with ``%(names)s`` in place of ``:names``."""
    return _NAMES.sub(r"%(\1)s", sql)


def migration_ids() -> list[str]:
    """Return the ids of all migrations, in order."""
    folder = files(__package__) / MIGRATIONS
    names = (item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return sorted(name.removesuffix(".sql") for name in names if not name.endswith(".rollback.sql"))


def is_current(applied: Sequence[Row]) -> bool:
    """Return whether every migration is applied.

    Args:
        applied: rows of ``APPLIED``.

    Raises:
        StoreError: it was written by a later version.
    """
    known, there = set(migration_ids()), {str(row[0]) for row in applied}
    if there - known:
        raise StoreError(
            "the run log was written by a later version of Dragoman; upgrade this router to that version",
            is_lasting=True,
        )
    return known == there


def migrate(url: str) -> None:
    """Bring a database's schema up to date; blocks.

    The caller holds a lock that ends with its process. The migration tool has a lock too, which is a row in
    the database: one that is there is of a process that was killed.

    Args:
        url: of the database, as the migration tool wants it.
    """
    import yoyo  # noqa: PLC0415 - slow to import, and needed once in a database's life

    with yoyo.get_backend(url) as backend, as_file(files(__package__) / MIGRATIONS) as folder:
        migrations = yoyo.read_migrations(str(folder))
        backend.break_lock()
        with backend.lock():
            for migration in backend.to_apply(migrations):
                # The tool itself writes in another transaction that a migration was applied. A program that ends
                # between the two would leave tables that the next one cannot make, for ever. Who applied it is not
                # logged: the tool fails where the user has no name, as in a container.
                with backend.transaction():
                    migration.process_steps(backend, "apply")
                    backend.mark_one(migration, log=False)
