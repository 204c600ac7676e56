"""An agent that is served over HTTP: small, with conversations of its own, and the scripted model behind it.

``POST /run`` answers with lines of JSON, ``POST /stop/<session>`` notes that a run was stopped.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from dragoman.sdk.parsing import LineSplitter
from dragoman.testkit.model_server.http1 import BadRequestError, HttpConnection, HttpRequest


class HttpAgent:
    """The agent.

    Args:
        model_url: base address of the scripted model.
    """

    def __init__(self, model_url: str) -> None:
        self.stopped: list[str] = []
        """Sessions whose runs were stopped."""
        self._client = httpx2.AsyncClient(base_url=model_url, timeout=None, trust_env=False)
        self._sessions: dict[str, list[dict[str, Any]]] = {}

    async def close(self) -> None:
        await self._client.aclose()

    async def answer(self, request: HttpRequest, responder: HttpConnection) -> None:
        if request.path.startswith("/stop/"):
            self.stopped.append(request.path.removeprefix("/stop/"))
            await responder.send(204)
            return
        body = request.json()
        assert isinstance(body, dict)
        session = body.get("sessionId") or str(uuid.uuid4())
        if body.get("sessionId") and session not in self._sessions:
            await responder.send_json(404, {"error": "session not found"}, {})
            return
        messages = self._sessions.setdefault(session, [])
        messages.append({"role": "user", "content": body["prompt"]})
        system = "\n".join(filter(None, (body.get("systemPrompt"), body.get("instructions"))))
        asked = {
            "model": body.get("model") or "scripted-1",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": system}, *messages],
        }
        async with self._client.stream("POST", "/v1/chat/completions", json=asked) as response:
            if response.status_code >= 300:
                headers = (
                    {"retry-after": response.headers["retry-after"]} if "retry-after" in response.headers else {}
                )
                await responder.send(response.status_code, await response.aread(), headers)
                return
            await responder.begin(200, {"content-type": "application/x-ndjson"})
            await _write(responder, {"sessionId": session, "cancelUrl": f"/stop/{session}"})
            text = await _pass_on(response, responder)
            messages.append({"role": "assistant", "content": text})
            await responder.end()


async def _pass_on(response: httpx2.Response, responder: HttpConnection) -> str:
    """Pass a streamed completion on; return its text."""
    text = ""
    last: dict[str, Any] = {}
    async for line in _lines(response):
        data = line.removeprefix("data: ")
        if not line.startswith("data: "):
            continue
        if data == "[DONE]":
            usage = last.get("usage") or {}
            counts = {"inputTokens": usage.get("prompt_tokens"), "outputTokens": usage.get("completion_tokens")}
            await _write(responder, {"done": True, "text": text, "model": last.get("model"), "usage": counts})
            break
        last = json.loads(data)
        for choice in last["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            await _write(responder, {"delta": delta.get("content"), "thinking": delta.get("reasoning_content")})
    return text


async def _lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Yield the lines of an answer; the client's own would end them at U+2028 too."""
    splitter = LineSplitter()
    async for chunk in response.aiter_bytes():
        for line in splitter.feed(chunk):
            yield line.data.decode()


async def _write(responder: HttpConnection, value: Mapping[str, Any]) -> None:
    await responder.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")


@asynccontextmanager
async def serving(model_url: str) -> AsyncIterator[tuple[HttpAgent, str]]:
    """Serve an agent on loopback: give it, and its base address."""
    agent = HttpAgent(model_url)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = HttpConnection(reader, writer)
            if (request := await connection.request()) is not None:
                await agent.answer(request, connection)
        except (BadRequestError, OSError, httpx2.TransportError):
            pass  # closing breaks the answer off, as the model did
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield agent, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await agent.close()
