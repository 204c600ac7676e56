"""A gateway's WebSocket as lines: its messages go to standard output, lines from standard input go to it.

A program of its own, ``ws_bridge.py NAME ...`` with the names of the run and its session, and a module for the
adapter's own requests. It uses only the standard library, as it starts once for each run and has to start fast. The
address and the token come in variables, as arguments can be read by all users of a machine. The handshake is done
here, so that the token is nowhere else.

Exit status: 0 the other side of the pipe has closed, 1 the gateway has, or refused.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import struct
import sys
from typing import Any, Final, Self

PORT_VARIABLE: Final = "DRAGOMAN_OPENCLAW_PORT"
TOKEN_VARIABLE: Final = "DRAGOMAN_OPENCLAW_TOKEN"  # noqa: S105 - a name, no secret

_PROTOCOL: Final = 4
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_LONGEST_MESSAGE: Final = 64 * 1024 * 1024
"""Bytes. The gateway itself allows 25 MiB."""
_PASSED_ON: Final = frozenset({"agent", "exec.approval.requested", "exec.approval.resolved"})
_SCOPES: Final = ("operator.read", "operator.write", "operator.admin", "operator.approvals", "operator.questions")


class GatewayError(Exception):
    """The gateway cannot be reached, refuses, or has ended; the message says which."""


class Socket:
    """One connection to a gateway on loopback. Use as an asynchronous context manager."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self.hello: dict[str, Any] = {}
        """The gateway's answer to the connection."""

    async def __aenter__(self) -> Self:
        try:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        except OSError as error:
            raise GatewayError(f"nothing answers on port {self._port}: {error}") from error
        try:
            await self._upgrade()
            await self._sign_in()
        except BaseException as error:
            await self._leave()
            if isinstance(error, (OSError, EOFError, asyncio.LimitOverrunError)):
                raise GatewayError(f"the gateway on port {self._port} does not answer: {error}") from error
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, GatewayError):
            await self._frame(_CLOSE, struct.pack(">H", 1000))
        await self._leave()

    async def _leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _upgrade(self) -> None:
        key = base64.b64encode(os.urandom(16))
        self._writer.write(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % (self._port, key)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        expected = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        if not head.startswith(b"HTTP/1.1 101 ") or expected not in head:
            raise GatewayError("what listens there is no gateway")

    async def _sign_in(self) -> None:
        await self.receive()  # the challenge: only signed connections answer it, and loopback needs none
        params = {
            "minProtocol": _PROTOCOL,
            "maxProtocol": _PROTOCOL,
            "client": {"id": "gateway-client", "version": "1.0.0", "platform": sys.platform, "mode": "backend"},
            "role": "operator",
            "scopes": list(_SCOPES),
            "caps": ["tool-events"],
            "auth": {"token": self._token},
        }
        answer = await self.ask("connect", params)
        self.hello = answer.get("payload") or {}
        if not answer.get("ok"):
            raise GatewayError(str((answer.get("error") or {}).get("message") or "the gateway refuses"))

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer; other messages are dropped meanwhile.

        Raises:
            GatewayError: the connection is gone.
        """
        await self.send(json.dumps({"type": "req", "id": method, "method": method, "params": params}).encode())
        while True:
            try:
                answer = json.loads(await self.receive())
            except ValueError:
                continue
            if isinstance(answer, dict) and answer.get("id") == method:
                return answer

    async def send(self, data: bytes) -> None:
        """Send one message.

        Raises:
            GatewayError: the connection is gone.
        """
        await self._frame(_TEXT, data)

    async def _frame(self, opcode: int, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes([0x80 | opcode, 0x80 | size])
        elif size < 65536:
            head = bytes([0x80 | opcode, 0x80 | 126]) + struct.pack(">H", size)
        else:
            head = bytes([0x80 | opcode, 0x80 | 127]) + struct.pack(">Q", size)
        mask = os.urandom(4)
        try:
            self._writer.write(head + mask + masked(data, mask))
            await self._writer.drain()
        except OSError as error:
            raise GatewayError(f"the gateway has gone: {error}") from error

    async def receive(self) -> bytes:
        """Return the next message.

        Raises:
            GatewayError: the connection is gone.
        """
        message = bytearray()
        while True:
            try:
                first, second = await self._reader.readexactly(2)
                size = second & 0x7F
                if size > 125:
                    width = 2 if size == 126 else 8
                    size = int.from_bytes(await self._reader.readexactly(width), "big")
                if len(message) + size > _LONGEST_MESSAGE:
                    raise GatewayError("the gateway sends a message beyond all limits")
                data = await self._reader.readexactly(size)
            except (OSError, EOFError) as error:
                raise GatewayError("the gateway has closed the connection") from error
            opcode = first & 0x0F
            if opcode == _CLOSE:
                raise GatewayError(f"the gateway says: {data[2:].decode('utf-8', 'replace') or 'closed'}")
            if opcode == _PING:
                await self._frame(_PONG, data)
            elif opcode != _PONG:
                message += data
                if first & 0x80:
                    return bytes(message)


def masked(data: bytes, mask: bytes) -> bytes:
    """Return ``data`` with each byte mixed with the mask's, as RFC 6455 has it for what clients send."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")


def concerns(message: bytes, names: tuple[bytes, ...]) -> bool:
    """Return whether a message is an answer, or an event about a run or session of these names.

    A gateway sends the events of all sessions, and its own ticks, to all clients: passed on, they would look like an
    agent at work.
    """
    try:
        frame = json.loads(message)
    except ValueError:
        return True
    if not isinstance(frame, dict) or frame.get("type") != "event":
        return True
    return frame.get("event") in _PASSED_ON and any(name in message for name in names)


def one_line(message: bytes) -> bytes:
    """Return a JSON message as one line: line breaks in JSON text stand between values only."""
    return message.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


async def _relay(port: int, token: str, names: tuple[bytes, ...]) -> int:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=_LONGEST_MESSAGE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def outwards(socket: Socket) -> None:
        while line := await lines.readline():
            await socket.send(line.rstrip(b"\n"))

    async def inwards(socket: Socket) -> None:
        while True:
            message = await socket.receive()
            if concerns(message, names):
                sys.stdout.buffer.write(one_line(message))
                sys.stdout.buffer.flush()

    try:
        async with Socket(port, token) as socket:
            hello = {"type": "hello", "methods": (socket.hello.get("features") or {}).get("methods", [])}
            sys.stdout.buffer.write(json.dumps(hello).encode() + b"\n")
            sys.stdout.buffer.flush()
            tasks = [asyncio.create_task(outwards(socket)), asyncio.create_task(inwards(socket))]
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for task in done:
                task.result()
    except (GatewayError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    names = tuple(name.encode() for name in sys.argv[1:])
    sys.exit(asyncio.run(_relay(int(os.environ[PORT_VARIABLE]), os.environ[TOKEN_VARIABLE], names)))
