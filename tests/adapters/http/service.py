"""A service to be asked over HTTP: a real server on loopback whose answers a test writes down."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.adapters.http import adapter
from dragoman.client import Client, RunStream, execute_request
from dragoman.sdk import AdapterServer
from dragoman.testkit.model_server.http1 import BadRequestError, HttpConnection, HttpRequest
from dragoman.testkit.streams import check_stream
from dragoman.v1 import event_pb2 as pb

TOKEN = "token-4711-very-secret"
HEADER_SECRET = "header-0815-very-secret"

Handler = Callable[[HttpRequest, HttpConnection], Awaitable[None]]
React = Callable[[pb.AgentEvent, RunStream], Awaitable[None]]


@dataclass
class Service:
    """The service: its routes, and what it was asked."""

    routes: dict[str, Handler] = field(default_factory=dict)
    requests: list[HttpRequest] = field(default_factory=list)
    port: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has gone away before its answer was complete."""
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[Any]:
        return [request.json() for request in self.requests]

    def answers(self, path: str, *answers: Any, status: int = 200, **headers: str) -> None:
        """Answer with JSON: the first request with the first, and so on; the last repeats."""
        left = list(answers)

        async def handle(_: HttpRequest, responder: HttpConnection) -> None:
            body = left.pop(0) if len(left) > 1 else left[0]
            await responder.send_json(status, body, {name.replace("_", "-"): item for name, item in headers.items()})

        self.routes[path] = handle

    def streams(self, path: str, *pieces: bytes, media_type: str = "text/event-stream", ends: bool = True) -> None:
        async def handle(_: HttpRequest, responder: HttpConnection) -> None:
            await responder.begin(200, {"content-type": media_type})
            for piece in pieces:
                await responder.write(piece)
            if ends:
                await responder.end()

        self.routes[path] = handle

    def holds(self, path: str, *pieces: bytes) -> None:
        """Begin an answer and never end it."""

        async def handle(_: HttpRequest, responder: HttpConnection) -> None:
            await responder.begin(200, {"content-type": "application/x-ndjson"})
            for piece in pieces:
                await responder.write(piece)
            await asyncio.Event().wait()

        self.routes[path] = handle

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            connection = HttpConnection(reader, writer)
            request = await connection.request()
            if request is None:
                return
            self.requests.append(request)
            handler = self.routes.get(request.path)
            if handler is None:
                await connection.send(404)
            else:
                await self._handled(handler, request, connection)
        except (BadRequestError, OSError):
            self.left.set()
        finally:
            writer.close()

    async def _handled(self, handler: Handler, request: HttpRequest, connection: HttpConnection) -> None:
        work = asyncio.ensure_future(handler(request, connection))
        gone = asyncio.ensure_future(connection.client_left())
        done, _ = await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work not in done:
            self.left.set()
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


@asynccontextmanager
async def service(tls: ssl.SSLContext | None = None) -> AsyncIterator[Service]:
    running = Service()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(running.serve(reader, writer))
        running._connections.add(task)
        task.add_done_callback(running._connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        for task in tuple(running._connections):
            task.cancel()
        await asyncio.gather(*running._connections, return_exceptions=True)


@dataclass
class Services:
    """The adapter, served, and a service."""

    service: Service
    client: Client
    root: Path

    def request(self, *, allows: bool = True, **config: Any) -> Any:
        fields = {"prompt": "Do it.", **{name: config.pop(name) for name in ("prompt", "model") if name in config}}
        settings = {"url": f"{self.service.url}/run", **config}
        if allows:
            settings.setdefault("allowedNetworks", ["127.0.0.0/8"])
        request = execute_request("http", config=settings, env={"SERVICE_KEY": HEADER_SECRET}, **fields)
        request.auth_token = TOKEN
        return request

    async def run(self, *, react: React | None = None, allows: bool = True, **config: Any) -> list[pb.AgentEvent]:
        return await self.follow(self.request(allows=allows, **config), react)

    async def follow(self, request: Any, react: React | None = None) -> list[pb.AgentEvent]:
        events = []
        async with self.client.execute(request) as stream:
            async for event in stream:
                events.append(event)
                if react is not None:
                    await react(event, stream)
        check_stream(events, secrets=[TOKEN, HEADER_SECRET])
        return events


@asynccontextmanager
async def services(root: Path) -> AsyncIterator[Services]:
    server = AdapterServer(adapter(), ["127.0.0.1:0"], insecure_tcp_without_token=True)
    await server.start()
    try:
        async with service() as running, Client(server.addresses[0]) as client:
            yield Services(running, client, root)
    finally:
        await server.stop(0)


def of(events: list[pb.AgentEvent], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


def sse(*values: Any) -> bytes:
    return b"".join(b"data: " + (v if isinstance(v, bytes) else json.dumps(v).encode()) + b"\n\n" for v in values)


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
