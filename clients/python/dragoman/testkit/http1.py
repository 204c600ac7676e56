"""The little HTTP/1.1 a loopback test server needs, on asyncio streams: one request after another.

Not for anything but test doubles: no TLS, no pipelining, no compression, bodies held in memory.
"""

import asyncio
import http
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

_HEAD_LIMIT = 256 * 1024
_BODY_LIMIT = 64 * 1024 * 1024


class BadRequestError(Exception):
    """The peer's bytes are no HTTP request this server understands."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
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
        """Return the parsed body; None if it is no JSON."""
        try:
            parsed: object = json.loads(self.body)
        except ValueError:
            return None
        return parsed


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Read the next request of a connection.

    Args:
        reader: The connection, created with a limit of at least `stream_limit()`.
        writer: Where an interim 100 answer goes, if the client waits for one.

    Returns:
        The request, or None at a clean end of the connection.

    Raises:
        BadRequestError: Malformed or oversized head or body.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise BadRequestError("the connection ended inside a request head") from end
        return None
    except asyncio.LimitOverrunError as overrun:
        raise BadRequestError("request head too large") from overrun
    line, *rest = head.decode("latin-1").split("\r\n")
    try:
        method, target, _version = line.split(" ")
    except ValueError as error:
        raise BadRequestError("malformed request line") from error
    headers = {
        name.strip().lower(): value.strip() for name, colon, value in (item.partition(":") for item in rest) if colon
    }
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await _read_body(reader, headers)
    url = urlsplit(target)
    return HttpRequest(method.upper(), url.path, dict(parse_qsl(url.query)), headers, body)


def stream_limit() -> int:
    """Return the buffer limit a reader for `read_request` needs, in bytes."""
    return _HEAD_LIMIT


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    try:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return await _read_chunks(reader)
        length = int(headers.get("content-length", "0"))
        if length > _BODY_LIMIT:
            raise BadRequestError("request body too large")
        return await reader.readexactly(length)
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise BadRequestError("malformed request body") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    total = 0
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        total += size
        if total > _BODY_LIMIT:
            raise BadRequestError("request body too large")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return b"".join(pieces)
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)


class Responder:
    """Writes the answer to one request: either `send` once, or `begin`, `write`…, `end`."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(
        self,
        status: int,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        head_only: bool = False,
    ) -> None:
        """Send a whole answer; with ``head_only`` (for HEAD) its body is only counted."""
        full = {**(headers or {}), "content-length": str(len(body))}
        self._writer.write(_head(status, full) + (b"" if head_only else body))
        await self._writer.drain()

    async def send_json(self, status: int, value: object, headers: Mapping[str, str]) -> None:
        """Send a JSON answer."""
        body = json.dumps(value, ensure_ascii=False).encode()
        await self.send(status, body, {"content-type": "application/json", **headers})

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer of unknown length."""
        self._writer.write(_head(status, {**headers, "transfer-encoding": "chunked"}))
        await self._writer.drain()

    async def write(self, piece: bytes) -> None:
        """Send one piece of the body; an empty one is skipped, as it would end the body."""
        if piece:
            self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self._writer.drain()

    async def end(self) -> None:
        """Finish the body; leaving this out and closing is how a stream is cut."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        reason = http.HTTPStatus(status).phrase
    except ValueError:
        reason = "Scripted"  # such as 529, which no registry knows
    lines = [
        f"HTTP/1.1 {status} {reason}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
