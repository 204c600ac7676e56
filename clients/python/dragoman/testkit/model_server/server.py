"""The server: connections in, scripted answers out."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from dragoman.testkit.model_server.api import ModelApi
from dragoman.testkit.model_server.apis.anthropic import AnthropicMessages
from dragoman.testkit.model_server.apis.gemini import Gemini
from dragoman.testkit.model_server.apis.openai_chat import OpenAIChat
from dragoman.testkit.model_server.apis.openai_responses import OpenAIResponses
from dragoman.testkit.model_server.http1 import BadRequestError, HttpConnection, HttpRequest
from dragoman.testkit.model_server.response import CutError, Response
from dragoman.testkit.model_server.scheduler import RecordedRequest, Scheduler, record_of
from dragoman.testkit.model_server.script import Scenario
from dragoman.testkit.profiles.agent_profile import NativeTool
from msgspec import to_builtins

APIS: tuple[ModelApi, ...] = (AnthropicMessages(), Gemini(), OpenAIChat(), OpenAIResponses())


class ModelServer:
    """Serves scripted answers, on 127.0.0.1 unless another address is given; an asynchronous context manager."""

    def __init__(
        self,
        scenarios: Iterable[Scenario] = (),
        *,
        tools: Mapping[str, NativeTool] | None = None,
        apis: Sequence[ModelApi] = APIS,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Prepare a server.

        Args:
            scenarios: Scripts added to the catalogue's; equal names replace.
            tools: The agent's own tools for the actions of scripts (`AgentProfile.tools`); None recognizes the
                agent by the tools it offers.
            apis: Supported wire formats.
            host: the address to listen on.
            port: TCP port; 0 picks a free one.
        """
        self._scheduler = Scheduler(scenarios, tools)
        self._apis = apis
        self._host = host
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Base address, ``http://127.0.0.1:PORT``; valid while serving."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests, in order of arrival."""
        return self._scheduler.requests

    @property
    def model_requests(self) -> list[RecordedRequest]:
        """The requests that a script answered."""
        return self._scheduler.model_requests

    async def __aenter__(self) -> Self:
        """Start serving."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop serving and break every open connection."""
        assert self._server is not None
        self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def release(self, gate: str = "stall") -> None:
        """Open a gate permanently: answers that are paused there, or arrive later, continue."""
        self._scheduler.release(gate)

    async def wait_held(self, gate: str = "stall", *, count: int = 1, timeout_s: float = 30) -> None:
        """Wait until ``count`` answers are paused at a gate.

        Raises:
            TimeoutError: They were not within ``timeout_s``.
        """
        await self._scheduler.until(lambda: self._scheduler.waiting_at(gate) >= count, timeout_s)

    async def wait_for_requests(self, count: int = 1, *, timeout_s: float = 30) -> None:
        """Wait until ``count`` model requests have arrived.

        Raises:
            TimeoutError: They had not within ``timeout_s``.
        """
        await self._scheduler.until(lambda: len(self.model_requests) >= count, timeout_s)

    async def wait_for_events(self, count: int, *, timeout_s: float = 30) -> None:
        """Wait until the newest model request was sent ``count`` stream events.

        Raises:
            TimeoutError: It was not within ``timeout_s``.
        """

        def sent() -> bool:
            requests = self.model_requests
            return bool(requests) and requests[-1].events >= count

        await self._scheduler.until(sent, timeout_s)

    async def wait_until(self, reached: Callable[[], bool], *, timeout_s: float = 30) -> None:
        """Wait until a condition on `requests` is true; it is evaluated whenever a request makes progress.

        Raises:
            TimeoutError: It was not true within ``timeout_s``.
        """
        await self._scheduler.until(reached, timeout_s)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(HttpConnection(reader, writer))
        except (CutError, ConnectionError, BadRequestError):
            pass  # closing in mid-response, after what was written, is how a stream breaks
        except asyncio.CancelledError:
            writer.transport.abort()  # do not wait for a client that does not read
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, connection: HttpConnection) -> None:
        while (request := await connection.request()) is not None:
            record = record_of(request)
            self.requests.append(record)
            record.number = len(self.requests)
            try:
                await self._answer(request, record, connection)
                record.outcome = "complete"
            except CutError:
                record.outcome = "cut"
                raise
            except (ConnectionError, asyncio.CancelledError):
                record.outcome = "abandoned"
                raise
            finally:
                await self._scheduler.changed()

    async def _answer(self, request: HttpRequest, record: RecordedRequest, connection: HttpConnection) -> None:
        for api in self._apis:
            conversation = api.conversation(request)
            if conversation is not None:
                answer = self._scheduler.choose(conversation, record)
                await self._scheduler.changed()
                response = Response(self._scheduler, api, conversation, record, connection)
                await response.send(answer)
                return
        record.status = await self._aside(request, connection)

    async def _aside(self, request: HttpRequest, connection: HttpConnection) -> int:
        """Answer what is no model request; return the status."""
        for api in self._apis:
            answer = api.aside(request)
            if answer is not None:
                await connection.send_json(200, answer, {})
                return 200
        if request.path == "/" and request.method in {"GET", "HEAD"}:
            await connection.send(200, b"scripted model server\n")
            return 200
        if request.path == "/_testkit/release" and request.method == "POST":
            self.release(request.query.get("gate", "stall"))
        elif request.path != "/_testkit/requests":
            error = {"type": "not_found_error", "message": f"nothing at {request.path}"}
            await connection.send_json(404, {"type": "error", "error": error}, {})
            return 404
        await connection.send_json(200, to_builtins(self.model_requests), {})
        return 200
