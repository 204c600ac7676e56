"""PostgreSQL: what several routers share. Needs the extra ``postgres``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlencode

from dragoman.router.storage.database import (
    APPLIED,
    BUSY_S,
    Row,
    Statement,
    StoreError,
    Value,
    is_current,
    migrate,
    with_percent,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

_MOST_CONNECTIONS: Final = 4
CONNECT_S: Final = 10.0
ANSWER_S: Final = 10.0
"""A server that takes longer is as good as none: runs must go on without it."""
_RECONNECT_S: Final = 8.0
"""For how long the pool tries again by itself, ever more seldom; after that each new call has it try anew.

Much less than a lease: who lives must be back, and renew its own, before another one may take its runs.
"""
_MIGRATION_S: Final = 60.0
"""How long a router that starts waits for another one that brings the schema up to date."""
_ENDING_S: Final = 0.05
_CLOSING_S: Final = 1.0
_TOO_MUCH: Final = "54"
"""The class of states of what is beyond the server, such as a text that no index has room for."""
_SETTINGS: Final = {
    # A server that is gone without a word is noticed in seconds, not by the system's own patience of a quarter of
    # an hour: https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-TCP-USER-TIMEOUT
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    # Nor is one waited for that does not even refuse: by the system's patience these are two minutes.
    "connect_timeout": "5",
}
"""Of connections, where the URL says nothing else."""
_SERVER_SETTINGS: Final = {"tcp_keepalives_idle": 5, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 2}
"""The same at the server's end of a connection, which by default waits for hours for a router that is gone."""
_BLOB: Final = """
DO $$ BEGIN
    CREATE DOMAIN blob AS bytea;
EXCEPTION  -- another router is doing the same
    WHEN duplicate_object THEN NULL;
    WHEN unique_violation THEN NULL;
END $$
"""

_NO_URL: Final = (
    "the URL of the run log is not a valid PostgreSQL URL; percent-encode special characters in names and passwords,"
    " e.g. a space as %20"
)

_ENCODING: Final = "UTF8"
_NO_UNICODE: Final = (
    "the run log's database has the encoding {}, which cannot keep all texts; make one with"
    " CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0"
)
_T = TypeVar("_T")


class PostgresDatabase:
    """A database on a server.

    Args:
        url: ``postgresql://...``; its password is never shown.
    """

    # Ordered as Python orders texts, and no stronger than an UPDATE, so that events are written meanwhile.
    locking: Final = ' ORDER BY run_id COLLATE "C" FOR NO KEY UPDATE'

    def __init__(self, url: str) -> None:
        self._url = url
        self.connect_s = CONNECT_S
        """Seconds that a connection may take."""
        self.busy_s = BUSY_S
        """Seconds that a statement may wait for a lock."""
        self.answer_s = ANSWER_S
        """Seconds that a transaction may take."""
        self._errors: tuple[type[Exception], ...] = ()
        self._wrong: tuple[type[Exception], ...] = ()
        """Errors that a retry does not repair."""
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        try:
            import psycopg  # noqa: PLC0415 - an extra
            from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415 - as above
        except ImportError as error:
            message = "PostgreSQL support is not installed; run: pip install 'dragoman[postgres]'"
            raise StoreError(message, is_lasting=True) from error
        self._errors = (psycopg.Error, TimeoutError, OSError)
        # Not what a statement cannot do at all, as while a table is renamed: that is the fault of no run.
        self._wrong = (psycopg.DataError,)
        try:
            parameters = psycopg.conninfo.conninfo_to_dict(self._url)
        except psycopg.Error:  # which quotes the URL, the password in it
            raise StoreError(_NO_URL, is_lasting=True) from None
        settings = {name: value for name, value in _SETTINGS.items() if name not in parameters}
        logging.getLogger("psycopg").addHandler(logging.NullHandler())  # its messages are logged as ours
        pool = AsyncConnectionPool(
            self._url,
            kwargs=settings,
            configure=self._configure,
            min_size=1,
            max_size=_MOST_CONNECTIONS,
            open=False,
            # One that the server has closed meanwhile is replaced before it is used, not found out by a call.
            check=AsyncConnectionPool.check_connection,
            timeout=self.connect_s,
            reconnect_timeout=_RECONNECT_S,
            name="run-log",
        )
        try:
            # By itself first: why a connection fails, the pool only logs.
            first = await psycopg.AsyncConnection.connect(self._url, connect_timeout=int(self.connect_s))
            encoding = first.info.parameter_status("server_encoding") or ""
            await first.close()
            if encoding not in {"", _ENCODING}:
                await pool.close()
                raise StoreError(_NO_UNICODE.format(encoding), is_lasting=True)
            await pool.open(wait=True, timeout=self.connect_s)
        except self._errors as error:
            await pool.close()
            raise self._explained(error) from None
        self._pool = pool
        if not await self._is_current():
            await self.execute([(_BLOB, {})])
            try:
                await asyncio.to_thread(self._migrate)
            except self._errors as error:
                await self.close()
                raise self._explained(error) from error

    def _migrate(self) -> None:
        """Make a new database what it should be, one router after another."""
        import psycopg  # noqa: PLC0415 - an extra

        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"SET lock_timeout = {int(_MIGRATION_S * 1000)}")
            # Another router waits for this one, so the server must notice soon that it is gone.
            for name, value in _SERVER_SETTINGS.items():
                connection.execute(f"SET {name} = {value}")
            # Of this connection, so that it ends with it.
            connection.execute("SELECT pg_advisory_lock(hashtext('dragoman migration'))")
            # As parameters: the tool reads a URL otherwise than PostgreSQL does, where a password has a "#" or a "/".
            parameters = psycopg.conninfo.conninfo_to_dict(self._url)
            migrate(f"postgresql+psycopg:///?{urlencode(parameters)}")

    async def reclaim(self) -> None:
        """Do nothing: that is the server's own work (autovacuum)."""

    async def close(self) -> None:
        """Let go of the connections."""
        if self._pool is not None:
            await self._pool.close(timeout=_CLOSING_S)
            self._pool = None

    async def execute(self, statements: Iterable[Statement]) -> list[int]:
        """Do all of these or none; return how many rows each changed."""

        async def work(connection: "AsyncConnection[Any]") -> list[int]:
            async with connection.pipeline():
                cursors = [await connection.execute(with_percent(sql), values or None) for sql, values in statements]
            return [cursor.rowcount for cursor in cursors]

        return await self._do(work)

    async def fetch(self, sql: str, values: Mapping[str, Value]) -> list[Row]:
        """Do one statement, and return its rows."""

        async def work(connection: "AsyncConnection[Any]") -> list[Row]:
            rows = await (await connection.execute(with_percent(sql), values)).fetchall()
            return [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row) for row in rows]

        return await self._do(work)

    async def _do(self, work: "Callable[[AsyncConnection[Any]], Awaitable[_T]]") -> _T:
        pool = self._pool
        if pool is None:
            raise StoreError("the run log is not open")

        async def transaction() -> _T:
            async with pool.connection() as connection:
                return await work(connection)

        try:
            return await self._answered(transaction())
        except self._errors as error:
            raise self._explained(error) from error

    async def _answered(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what a transaction does, if the server answers in time; else its connection is closed."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self.answer_s)
        finally:
            # The driver first asks the server to end the statement, and waits for that. Cancelled again, it closes
            # the connection.
            for patience_s in (_ENDING_S, self.connect_s):
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=patience_s)
        if task.cancelled() or not task.done():
            raise TimeoutError(f"no answer within {self.answer_s:g} s")
        return task.result()

    async def _configure(self, connection: "AsyncConnection[Any]") -> None:
        await connection.execute(f"SET lock_timeout = {int(self.busy_s * 1000)}")
        # The server cannot see that a router was cut off within a transaction. For as long as it kept that one, and
        # its locks, no other router could take over the runs.
        await connection.execute(f"SET idle_in_transaction_session_timeout = {int(self.answer_s * 1000)}")
        # That does not count while a statement has come in part only. At a Unix socket these have no effect.
        for name, value in _SERVER_SETTINGS.items():
            await connection.execute(f"SET {name} = {value}")
        await connection.commit()

    async def _is_current(self) -> bool:
        rows = await self.fetch("SELECT to_regclass('_yoyo_migration') IS NOT NULL", {})
        return bool(rows[0][0]) and is_current(await self.fetch(APPLIED, {}))

    def _explained(self, error: Exception) -> StoreError:
        # The driver's own words name hosts and tables, never a password.
        message = str(error).strip().split("\n", 1)[0] or type(error).__name__
        state = getattr(error, "sqlstate", None) or ""
        wrong = isinstance(error, self._wrong) or state.startswith(_TOO_MUCH)
        return StoreError(f"the run log's database server reports: {message}", is_lasting=wrong)
