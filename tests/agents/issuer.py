"""An issuer of ChatGPT logins on the loopback interface, as Codex asks it for device codes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

SECRETS: Final = ("refresh-token-of-the-issuer", "signature-of-the-issuer", "code-of-the-issuer")
"""What no event and no log may hold."""
_ACCOUNT: Final = {"id": "acc", "account_user_id": "u__acc", "structure": "personal", "plan_type": "plus"}
_ROUTING: Final = {"workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "us"}


class Issuer:
    """Issues one device code."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        """The paths that were asked for."""
        self.status = "403 Forbidden"
        """What a question for the login gets: 403 until the code is entered, 400 if the person refuses."""

    def enter(self) -> None:
        """Enter the code, as a person would."""
        self.status = "200 OK"

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


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    """Serve an issuer, and the account's service."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [line.partition(":")[2] for line in head.lower().splitlines() if line.startswith("content-length:")]
        await reader.readexactly(int(length[0]) if length else 0)
        status, content = issuer.answer(head.split()[1].partition("?")[0])
        body = json.dumps(content).encode()
        described = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{described}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    issuer = Issuer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield issuer


def _token() -> str:
    about = {"chatgpt_plan_type": "plus", "chatgpt_account_id": "acc"}
    claims = {"email": "a@example.test", "exp": 4_000_000_000, "https://api.openai.com/auth": about}
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims))
    return ".".join((*(part.decode() for part in parts), SECRETS[1]))
