"""The server side of one HTTP/1.1 connection, for test doubles on loopback: h11 on asyncio streams.

One request after another: no TLS, no pipelining, no compression, bodies held in memory.
"""

import asyncio
import http
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
from msgspec import Struct

_HEAD_LIMIT = 256 * 1024
_BODY_LIMIT = 64 * 1024 * 1024
_READ = 64 * 1024


class BadRequestError(Exception):
    """The client did not send a valid HTTP request."""


class HttpRequest(Struct, frozen=True):
    """One request.

    Attributes:
        method: Upper-case method.
        path: Path without the query.
        query: Decoded query parameters; the last of equal names wins.
        headers: Header values by lower-case name.
        body: Decoded body.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        """Return the parsed body; None if it is not JSON."""
        try:
            parsed: object = json.loads(self.body)
        except ValueError:
            return None
        return parsed


class HttpConnection:
    """Reads requests, and answers each: either by `send` once, or by `begin`, `write`…, `end`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_LIMIT)
        self._is_head = False

    async def request(self) -> HttpRequest | None:
        """Return the next request; None at the end of the connection.

        Raises:
            BadRequestError: Malformed or oversized head or body.
        """
        if self._protocol.our_state is h11.DONE:
            self._protocol.start_next_cycle()
        head, body = None, bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.Request):
                head, self._is_head = event, event.method == b"HEAD"
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _BODY_LIMIT:
                    raise BadRequestError("request body too large")
            elif head is None:
                return None
            else:
                return _request(head, bytes(body))

    async def _event(self) -> Any:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                if self._protocol.they_are_waiting_for_100_continue:
                    await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                self._protocol.receive_data(await self._reader.read(_READ))
        except h11.RemoteProtocolError as error:
            raise BadRequestError(str(error)) from error
        return event

    async def client_left(self) -> None:
        """Wait, while a request is answered, until the client closes the connection."""
        await self._reader.read(1)

    async def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer; a HEAD request gets its head only."""
        await self.begin(status, {**(headers or {}), "content-length": str(len(body))})
        if not self._is_head:
            await self.write(body)
        await self.end()

    async def send_json(self, status: int, value: object, headers: Mapping[str, str]) -> None:
        """Send a JSON answer."""
        body = json.dumps(value, ensure_ascii=False).encode()
        await self.send(status, body, {"content-type": "application/json", **headers})

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer; without a content-length the body is chunked."""
        try:
            reason = http.HTTPStatus(status).phrase
        except ValueError:
            reason = "Scripted"  # such as 529, which is not registered
        fields = list(headers.items())
        await self._write(h11.Response(status_code=status, headers=fields, reason=reason.encode()))

    async def write(self, piece: bytes) -> None:
        """Send one piece of the body."""
        if piece:
            await self._write(h11.Data(data=piece))

    async def end(self) -> None:
        """Finish the body. To cut a stream, close the connection instead."""
        await self._write(h11.EndOfMessage())

    async def _write(self, event: Any) -> None:
        self._writer.write(self._protocol.send(event) or b"")
        await self._writer.drain()


def _request(head: h11.Request, body: bytes) -> HttpRequest:
    url = urlsplit(head.target.decode("latin-1"))
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return HttpRequest(head.method.decode().upper(), url.path, dict(parse_qsl(url.query)), headers, body)
