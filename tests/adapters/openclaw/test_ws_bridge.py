"""The bridge, with a gateway of a few lines."""

import asyncio
import base64
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.openclaw import ws_bridge
from dragoman.adapters.openclaw.ws_bridge import GatewayError, Socket, concerns, masked, one_line

TOKEN = "a-token-of-no-use"


class TinyGateway:
    """Answers the handshake, then sends scripted messages and echoes requests."""

    def __init__(self) -> None:
        self.says: list[bytes] = []
        self.heard: list[Any] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
            accept = base64.b64encode(hashlib.sha1(key + ws_bridge._GUID, usedforsecurity=False).digest())
            writer.write(b"HTTP/1.1 101 Switching\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            writer.write(framed(b'{"event":"connect.challenge"}'))
            while True:
                request = json.loads(await self._message(reader))
                self.heard.append(request)
                ok = request["method"] != "connect" or request["params"]["auth"]["token"] == TOKEN
                answer = {"type": "res", "id": request["id"], "ok": ok, "error": {"message": "no such token"}}
                for message in self.says if ok and request["method"] != "connect" else ():
                    writer.write(framed(message))
                writer.write(framed(json.dumps(answer, indent=1).encode()))
        except (EOFError, OSError, IndexError):
            writer.close()

    async def _message(self, reader: asyncio.StreamReader) -> bytes:
        first, second = await reader.readexactly(2)
        assert second & 0x80, "clients have to mask"
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        mask = await reader.readexactly(4)
        data = masked(await reader.readexactly(size), mask)
        if first & 0x0F == 8:
            raise EOFError
        return data


def framed(data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return bytes([0x81, size]) + data
    return bytes([0x81, 127]) + size.to_bytes(8, "big") + data


@pytest.fixture
async def gateway() -> AsyncIterator[TinyGateway]:
    gateway = TinyGateway()
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    gateway.port = server.sockets[0].getsockname()[1]
    yield gateway
    server.close()


async def test_a_question_is_asked_and_answered(gateway: TinyGateway) -> None:
    async with Socket(gateway.port, TOKEN) as connection:
        answer = await connection.ask("sessions.describe", {"key": "x" * 70_000})
    assert answer["ok"] is True
    assert gateway.heard[1]["params"] == {"key": "x" * 70_000}


async def test_a_wrong_token_is_reported(gateway: TinyGateway) -> None:
    with pytest.raises(GatewayError, match="no such token"):
        async with Socket(gateway.port, "wrong"):
            pass


async def test_an_absent_gateway_is_reported() -> None:
    with pytest.raises(GatewayError, match="nothing answers"):
        async with Socket(1, TOKEN):
            pass


async def test_what_concerns_a_run_goes_through_as_lines(gateway: TinyGateway) -> None:
    mine = b'{"type":"event","event":"agent","payload":{"runId":"mine",\n"text":"\xe2\x80\xa8"}}'
    theirs = b'{"type":"event","event":"agent","payload":{"runId":"theirs"}}'
    gateway.says = [theirs, b'{"type":"event","event":"tick","payload":"mine"}', mine, b"x" * 300]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(Path(ws_bridge.__file__)), "mine"),
        env={ws_bridge.PORT_VARIABLE: str(gateway.port), ws_bridge.TOKEN_VARIABLE: TOKEN},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    hello = json.loads(await child.stdout.readline())
    assert hello["type"] == "hello"
    child.stdin.write(b'{"type":"req","id":"1","method":"agent","params":{}}\n')
    assert await child.stdout.readline() == mine.replace(b"\n", b" ") + b"\n"
    assert await child.stdout.readline() == b"x" * 300 + b"\n"
    assert json.loads(await child.stdout.readline())["id"] == "1"
    child.stdin.close()
    assert await child.wait() == 0


def test_masking_is_its_own_inverse() -> None:
    for size in (0, 1, 4, 5, 1000):
        data, mask = os.urandom(size), os.urandom(4)
        assert masked(masked(data, mask), mask) == data
    assert masked(b"\x01\x02\x03\x04\x05", b"\xff\x00\x00\x00") == b"\xfe\x02\x03\x04\xfa"


def test_what_is_no_event_always_concerns() -> None:
    assert concerns(b"garbage", ())
    assert concerns(b'{"type":"res"}', ())
    assert not concerns(b'{"type":"event","event":"agent"}', (b"mine",))
    assert one_line(b"a\r\nb") == b"a  b\n"
