"""The adapter's own listener for reports of services: runs with the same address share it, each with its own token.

It accepts a POST to ``/<token>`` with JSON, within bounds of size and time, and no other path. Without a token a
client learns nothing, not even from the time of an answer.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from dragoman.protocol.logs import Logger, failure_fields
from dragoman.sdk.fields import Fields, parse_json_object

REQUEST_LIMIT_S: Final = 15.0
"""Seconds that a request may take to arrive."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one report."""
MOST_CONNECTIONS: Final = 64
_MOST_HEAD: Final = 32 * 1024

Take = Callable[[Fields], bool]
"""Takes a report; False if the run needs no more."""

_log = Logger("dragoman.adapters.http")


class Listener:
    """Listens at one host and port as long as a run needs it."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._takers: dict[bytes, Take] = {}
        self._connections: set[asyncio.Task[Any]] = set()

    @property
    def port(self) -> int:
        """The port it listens at."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_needed(self) -> bool:
        """Whether a run waits for reports."""
        return bool(self._takers)

    async def open(self) -> None:
        """Start listening.

        Raises:
            OSError: the address cannot be listened at.
        """
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_MOST_HEAD)

    async def close(self) -> None:
        """Stop listening, and close the open connections."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def admit(self, take: Take) -> str:
        """Return a new token for reports."""
        token = secrets.token_urlsafe(32)
        self._takers[token.encode()] = take
        return token

    def dismiss(self, token: str) -> None:
        """Reject further reports with a token."""
        del self._takers[token.encode()]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._connections) > MOST_CONNECTIONS:
                status = 503
            else:
                async with asyncio.timeout(REQUEST_LIMIT_S):
                    status = await self._one(reader)
            reason = {204: "No Content", 404: "Not Found"}.get(status, "Refused")
            writer.write(f"HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
        except (OSError, TimeoutError, EOFError) as error:
            _log.info("callback broken off", **failure_fields(error))
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader) -> int:
        """Handle one request, and return the status of its answer."""
        import h11  # noqa: PLC0415 - rarely needed

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEAD)
        taker: Take | None = None
        body = bytearray()
        try:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(65536)
                    connection.receive_data(data)
                elif isinstance(event, h11.Request):
                    taker = self._taker(event.target)
                    if taker is None:
                        return 404
                    if event.method != b"POST":
                        return 405
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > MOST_BYTES:
                        return 413
                elif isinstance(event, h11.EndOfMessage):
                    break
                else:  # the connection was closed
                    return 400
        except h11.RemoteProtocolError:
            return 400
        fields = parse_json_object(bytes(body))
        if fields is None:
            return 400
        return 204 if taker is not None and taker(fields) else 404

    def _taker(self, target: bytes) -> Take | None:
        sent = target.partition(b"?")[0].rpartition(b"/")[2]
        found = None
        for token, take in self._takers.items():  # all of them: the time must not depend on the token
            if secrets.compare_digest(token, sent):
                found = take
        return found


class Listeners:
    """The listeners of an adapter, by host and port."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Listener] = {}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def token(self, host: str, port: int, take: Take) -> AsyncIterator[tuple[str, int]]:
        """Listen for one run: yield its token, and the port.

        Port 0 takes a free one, for this run alone.

        Raises:
            OSError: the address cannot be listened at.
        """
        async with self._lock:
            listener = self._open.get((host, port)) if port else None
            if listener is None:
                listener = Listener(host, port)
                await listener.open()
                self._open[host, listener.port] = listener
            token = listener.admit(take)
        try:
            yield token, listener.port
        finally:
            listener.dismiss(token)
            if not listener.is_needed:
                self._open = {key: item for key, item in self._open.items() if item is not listener}
                await listener.close()
