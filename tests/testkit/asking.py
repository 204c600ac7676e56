"""A plain HTTP client for the scripted model server: it sees what an agent would see, cuts included."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer; ``whole`` says whether it ended as HTTP wants."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The complete server-sent events."""
        return [json.loads(part.split(b"data: ", 1)[1]) for part in self.body.split(b"\n\n") if b"data: " in part]

    @property
    def text(self) -> str:
        return self.deltas("text")

    def deltas(self, kind: str) -> str:
        """Join the deltas of one kind: ``text``, ``thinking`` or ``partial_json``."""
        return "".join(
            event["delta"].get(kind, "") for event in self.events if event["type"] == "content_block_delta"
        )


def user(text: str) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def results(*texts: str) -> Message:
    """Return a user turn with results of as many tools, in reverse order of their calls."""
    parts = [{"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": text} for n, text in enumerate(texts)]
    return {"role": "user", "content": parts[::-1]}


def asked(messages: Sequence[Message], **fields: Any) -> dict[str, Any]:
    """Return a request body as Claude Code sends it."""
    body = {
        "model": "claude-test-1",
        "stream": True,
        "system": [{"type": "text", "text": "You help.\n - Primary working directory: /workspace\n - Shell: bash"}],
        "tools": [{"name": "Bash"}, {"name": "Write"}, {"name": "Read"}],
        "messages": list(messages),
    }
    return {**body, **fields}


async def ask(url: str, *messages: Message, session: str = "s1", **fields: Any) -> Heard:
    """Post a model request and read the answer to its end, proper or not."""
    body = json.dumps(asked(messages, **fields), ensure_ascii=False).encode()
    return await send(url, "POST", "/v1/messages?beta=true", body, {"x-claude-code-session-id": session})


async def send(
    url: str, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Heard:
    async with connected(url) as (reader, writer):
        lines = {"host": "127.0.0.1", "content-length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return await receive(reader, method)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def receive(reader: asyncio.StreamReader, method: str = "POST") -> Heard:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    body, whole = b"", True
    try:
        if method == "HEAD":
            pass
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError):
        whole = False
    return Heard(int(head[0].split(" ")[1]), headers, body, whole)
