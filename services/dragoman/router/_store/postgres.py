"""PostgreSQL: what several routers share. Needs the extra ``postgres``."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dragoman.router._store.database import (
    Row,
    Statement,
    StoreError,
    Value,
    applied_sql,
    is_current,
    migrate,
    with_percent,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

_MOST_CONNECTIONS: Final = 4
CONNECT_S: Final = 10.0
_BLOB: Final = """
DO $$ BEGIN
    CREATE DOMAIN blob AS bytea;
EXCEPTION  -- another router is doing the same
    WHEN duplicate_object THEN NULL;
    WHEN unique_violation THEN NULL;
END $$
"""


class PostgresDatabase:
    """A database on a server.

    Args:
        url: ``postgresql://...``; its password is never told.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.connect_s = CONNECT_S
        """Seconds that a connection may take."""
        self._errors: tuple[type[Exception], ...] = ()
        self._wrong: tuple[type[Exception], ...] = ()
        """Those that trying again does not mend."""
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        try:
            import psycopg  # noqa: PLC0415 - an extra
            from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415 - as above
        except ImportError as error:
            message = "PostgreSQL needs the extra: pip install 'dragoman[postgres]'"
            raise StoreError(message, is_lasting=True) from error
        self._errors = (psycopg.Error, TimeoutError, OSError)
        self._wrong = (psycopg.DataError, psycopg.ProgrammingError)
        pool = AsyncConnectionPool(
            self._url,
            min_size=1,
            max_size=_MOST_CONNECTIONS,
            open=False,
            # One that the server has closed meanwhile is replaced before it is used, not found out by a call.
            check=AsyncConnectionPool.check_connection,
            timeout=self.connect_s,
            name="run-log",
        )
        try:
            await pool.open(wait=True, timeout=self.connect_s)
        except self._errors as error:
            await pool.close()
            raise self._explained(error) from None
        self._pool = pool
        if not await self._is_current():
            await self.execute([(_BLOB, {})])
            await asyncio.to_thread(migrate, self._url.replace("postgresql://", "postgresql+psycopg://", 1))

    async def close(self) -> None:
        """Let go of the connections."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def execute(self, statements: Sequence[Statement]) -> list[int]:
        """Do all of these or none; return how many rows each changed."""
        if self._pool is None:
            raise StoreError("the run log is not open")
        try:
            async with self._pool.connection() as connection, connection.pipeline():
                cursors = [await connection.execute(with_percent(sql), values or None) for sql, values in statements]
            return [cursor.rowcount for cursor in cursors]
        except self._errors as error:
            raise self._explained(error) from error

    async def fetch(self, sql: str, values: Mapping[str, Value]) -> list[Row]:
        """Do one statement, and return its rows."""
        if self._pool is None:
            raise StoreError("the run log is not open")
        try:
            async with self._pool.connection() as connection:
                rows = await (await connection.execute(with_percent(sql), values)).fetchall()
            return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in rows]
        except self._errors as error:
            raise self._explained(error) from error

    async def _is_current(self) -> bool:
        rows = await self.fetch("SELECT to_regclass('_yoyo_migration') IS NOT NULL", {})
        return bool(rows[0][0]) and is_current(await self.fetch(applied_sql(), {}))

    def _explained(self, error: Exception) -> StoreError:
        # The driver's own words name hosts and tables, never a password.
        said = str(error).strip().split("\n", 1)[0] or type(error).__name__
        return StoreError(f"the run log's server: {said}", is_lasting=isinstance(error, self._wrong))
