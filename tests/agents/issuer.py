"""Issuers of logins on the loopback interface, and a proxy that leads programs with a fixed service there."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from trustme import CA

SECRETS: Final = ("refresh-token-of-the-issuer", "signature-of-the-issuer", "code-of-the-issuer")
"""What no event and no log may hold."""
_ACCOUNT: Final = {"id": "acc", "account_user_id": "u__acc", "structure": "personal", "plan_type": "plus"}
_ROUTING: Final = {"workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "us"}


class Issuer:
    """Issues one device code."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        """The paths that were asked for."""
        self.status = "403 Forbidden"
        """What a question for the login gets: 403 until the code is entered, 400 if the person refuses."""

    def enter(self) -> None:
        """Enter the code, as a person would."""
        self.status = "200 OK"

    async def visit(self, _url: str) -> None:
        """Open the page, and enter the code."""
        self.enter()

    def answer(self, path: str) -> tuple[str, dict[str, Any]]:
        """Return the status and the body for a path."""
        self.asked.append(path)
        if path.endswith("/deviceauth/usercode"):
            return "200 OK", {"device_auth_id": "d", "user_code": "ABCD-1234", "interval": "1"}
        if path.endswith("/deviceauth/token"):
            return self.status, {"authorization_code": SECRETS[2], "code_challenge": "c", "code_verifier": "v"}
        if path.endswith("/oauth/token"):
            return "200 OK", {"id_token": _token(), "access_token": _token(), "refresh_token": SECRETS[0]}
        if path.endswith("/accounts/check"):
            return "200 OK", {"accounts": [_ACCOUNT | _ROUTING], "account_ordering": ["acc"]}
        return "404 Not Found", {}


Answer = Callable[[str], tuple[str, dict[str, Any]]]
"""Returns the status and the body for a path; before it stands the host that a proxy was asked for."""


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """Serve an issuer, and the account's service."""
    issuer = Issuer()
    async with serving(issuer.answer) as issuer.url:
        yield issuer


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Serve answers; yield the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await _exchange(await reader.readuntil(b"\r\n\r\n"), "", answer, (reader, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def intercepting(folder: Path, hosts: tuple[str, ...], answer: Answer) -> AsyncIterator[dict[str, str]]:
    """Be the hosts of a service that a program cannot be led away from; yield the variables that lead here.

    Args:
        folder: where the authority's certificate is written, which the program has to trust.
        hosts: those that there are; connections to others are refused.
        answer: what they answer.
    """
    authority, files = CA(), folder / "authority.pem"
    authority.cert_pem.write_to_path(str(files))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts).configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            host = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().partition(":")[0]
            if host in hosts:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await writer.start_tls(context)
                await _exchange(await reader.readuntil(b"\r\n\r\n"), host, answer, (reader, writer))
            else:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield {"HTTPS_PROXY": proxy, "NODE_EXTRA_CA_CERTS": str(files)}


async def _exchange(
    head: bytes, host: str, answer: Answer, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    reader, writer = streams
    lines = head.decode().splitlines()
    length = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
    await reader.readexactly(int(length[0]) if length else 0)
    status, content = answer(host + lines[0].split()[1].partition("?")[0])
    body = json.dumps(content).encode()
    described = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{described}Connection: close\r\n\r\n".encode() + body)
    await writer.drain()


def _token() -> str:
    about = {"chatgpt_plan_type": "plus", "chatgpt_account_id": "acc"}
    claims = {"email": "a@example.test", "exp": 4_000_000_000, "https://api.openai.com/auth": about}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return ".".join((*(part.decode() for part in parts), SECRETS[1]))
