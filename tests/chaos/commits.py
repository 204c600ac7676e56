"""A way to PostgreSQL on which the answer to a COMMIT can get lost."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

_SOCKET: Final = ".s.PGSQL.5432"
"""The name that the server's socket has, and so ours."""
_HEAD: Final = 5
"""A message of the server: its kind, and a length that counts itself."""
_COMMITTED: Final = b"C", b"COMMIT\0"
"""``CommandComplete``: says what was done. Behind a COMMIT in a failed transaction it is ROLLBACK."""


class Commits:
    """Passes bytes between routers and a server of PostgreSQL, but for some answers.

    Whether a transaction was committed is read off the answer and not off the question, which has many forms: what is
    dropped here was done for certain. The connection breaks with it.

    Args:
        folder: with a path that is short enough for sockets.
        url: of the server, which is reached by a socket.
    """

    def __init__(self, folder: Path, url: str) -> None:
        parts = urlsplit(url)
        (host,) = parse_qs(parts.query)["host"]
        self.url = urlunsplit(parts._replace(query=f"host={quote(str(folder))}"))
        """What routers are given."""
        self.dropped = 0
        """How many answers got lost so far."""
        self._target = Path(host) / _SOCKET
        self._listen = folder / _SOCKET
        self._server: asyncio.Server | None = None
        self._to_drop = 0
        self._with: tuple[bytes, ...] = ()
        self._enough = asyncio.Event()
        self._passing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take connections."""
        self._listen.parent.mkdir()
        self._server = await asyncio.start_unix_server(self._serve, str(self._listen))

    async def close(self) -> None:
        """Break all connections."""
        if self._server is not None:
            self._server.close()
            for task in tuple(self._passing):
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)
            await self._server.wait_closed()

    def drop(self, count: int, *having: bytes) -> None:
        """Lose so many answers from now on: of transactions in which the client sent all of this."""
        self._to_drop, self._with = count, having
        self._enough.clear()

    async def until_dropped(self) -> None:
        """Wait until as many answers got lost as are wanted."""
        await self._enough.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
            await _Passage(self, (reader, writer), (far_reader, far_writer)).run()
        except OSError:
            writer.transport.abort()
        finally:
            self._passing.discard(task)

    def takes(self, received: bytes) -> bool:
        """Return whether to drop this transaction's answer, and count it."""
        if not self._to_drop or not all(part in received for part in self._with):
            return False
        self._to_drop -= 1
        self.dropped += 1
        if not self._to_drop:
            self._enough.set()
        return True


_End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Passage:
    """One connection."""

    def __init__(self, commits: Commits, near: _End, far: _End) -> None:
        self._commits, self._near, self._far = commits, near, far
        self._received = b""
        """What the client has sent in its present transaction."""

    async def run(self) -> None:
        ways = [asyncio.ensure_future(self._ask()), asyncio.ensure_future(self._answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for _, writer in (self._near, self._far):
                writer.transport.abort()

    async def _ask(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._near[0].read(1 << 16):
                self._received += data
                self._far[1].write(data)
                await self._far[1].drain()

    async def _answer(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._far[0].readexactly(_HEAD)
                body = await self._far[0].readexactly(int.from_bytes(head[1:]) - 4)
                if (head[:1], body) == _COMMITTED:
                    if self._commits.takes(self._received):
                        return
                    self._received = b""
                self._near[1].write(head + body)
                await self._near[1].drain()
