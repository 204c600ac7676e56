"""A scripted model server on loopback: real agent programs run against it, offline and for nothing.

In an event loop::

    async with ModelServer() as server:
        ...  # point the agent at server.url, prompt it with "MOCK_WRITE path=a.txt"
        assert server.model_requests[0].scenario == "WRITE"

From synchronous code use `serving`; from another language run ``python -m
dragoman.testkit.model_server``, which prints one JSON line with its ``url`` and serves until its
standard input closes. ``catalogue`` holds the scenarios. ``GET /_testkit/requests`` lists what was
asked so far, ``POST /_testkit/release?gate=stall`` ends a stall.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self, TypeVar

from dragoman.testkit.anthropic import AnthropicMessages
from dragoman.testkit.dialect import Dialect
from dragoman.testkit.director import Director, RecordedRequest, record_of
from dragoman.testkit.family import Native
from dragoman.testkit.gemini import Gemini
from dragoman.testkit.http1 import (
    BadRequestError,
    HttpRequest,
    Responder,
    read_request,
    stream_limit,
)
from dragoman.testkit.openai_chat import OpenAIChat
from dragoman.testkit.openai_responses import OpenAIResponses
from dragoman.testkit.performance import CutError, Performance
from dragoman.testkit.scenarios import Scenario

DIALECTS: tuple[Dialect, ...] = (AnthropicMessages(), Gemini(), OpenAIChat(), OpenAIResponses())

_T = TypeVar("_T")


class ModelServer:
    """Serves scripted answers on 127.0.0.1; an asynchronous context manager."""

    def __init__(
        self,
        scenarios: Iterable[Scenario] = (),
        *,
        tools: Mapping[str, Native] | None = None,
        dialects: Sequence[Dialect] = DIALECTS,
        port: int = 0,
    ) -> None:
        """Prepare a server.

        Args:
            scenarios: Scripts added to the catalogue's; equal names replace.
            tools: What the agent that will ask calls the actions of scripts (`AgentFamily.tools`); None
                recognises the family by the tools it offers.
            dialects: Wire formats spoken.
            port: TCP port; 0 takes a free one.
        """
        self._director = Director(scenarios, tools)
        self._dialects = dialects
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Base address, ``http://127.0.0.1:PORT``; valid while serving."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[RecordedRequest]:
        """Everything asked so far, in order of arrival."""
        return self._director.requests

    @property
    def model_requests(self) -> list[RecordedRequest]:
        """The requests that a script answered."""
        return self._director.model_requests

    async def __aenter__(self) -> Self:
        """Start serving."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=stream_limit())
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
        """Open a gate for good: whatever waits there, or comes there later, goes on."""
        self._director.release(gate)

    async def wait_held(self, gate: str = "stall", *, count: int = 1, timeout_s: float = 30) -> None:
        """Wait until ``count`` answers are held at a gate.

        Raises:
            TimeoutError: They were not within ``timeout_s``.
        """
        await self._director.until(lambda: self._director.waiting_at(gate) >= count, timeout_s)

    async def wait_for_requests(self, count: int = 1, *, timeout_s: float = 30) -> None:
        """Wait until ``count`` model requests have arrived.

        Raises:
            TimeoutError: They had not within ``timeout_s``.
        """
        await self._director.until(lambda: len(self.model_requests) >= count, timeout_s)

    async def wait_for_events(self, count: int, *, timeout_s: float = 30) -> None:
        """Wait until the newest model request was sent ``count`` stream events.

        Raises:
            TimeoutError: It was not within ``timeout_s``.
        """

        def sent() -> bool:
            asked = self.model_requests
            return bool(asked) and asked[-1].events >= count

        await self._director.until(sent, timeout_s)

    async def wait_until(self, reached: Callable[[], bool], *, timeout_s: float = 30) -> None:
        """Wait until something about `requests` is true; it is looked at whenever a request goes on.

        Raises:
            TimeoutError: It was not true within ``timeout_s``.
        """
        await self._director.until(reached, timeout_s)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (CutError, ConnectionError, BadRequestError):
            pass  # closing in mid-response, once what was said is on its way, is how it breaks
        except asyncio.CancelledError:
            writer.transport.abort()  # nobody waits here for a client that does not read
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_request(reader, writer)) is not None:
            record = record_of(request)
            self.requests.append(record)
            record.number = len(self.requests)
            try:
                await self._answer(request, record, Responder(writer), reader)
                record.outcome = "complete"
            except CutError:
                record.outcome = "cut"
                raise
            except (ConnectionError, asyncio.CancelledError):
                record.outcome = "abandoned"
                raise
            finally:
                await self._director.changed()

    async def _answer(
        self,
        request: HttpRequest,
        record: RecordedRequest,
        out: Responder,
        reader: asyncio.StreamReader,
    ) -> None:
        for dialect in self._dialects:
            conversation = dialect.conversation(request)
            if conversation is not None:
                answer = self._director.choose(conversation, record)
                await self._director.changed()
                scene = Performance(self._director, dialect, conversation, record, out, reader)
                await scene.give(answer)
                return
        record.status = await self._aside(request, out)

    async def _aside(self, request: HttpRequest, out: Responder) -> int:
        """Answer what is no model request; return the status."""
        for dialect in self._dialects:
            answer = dialect.aside(request)
            if answer is not None:
                await out.send_json(200, answer, {})
                return 200
        if request.path == "/" and request.method in {"GET", "HEAD"}:
            head_only = request.method == "HEAD"
            await out.send(200, b"scripted model server\n", head_only=head_only)
            return 200
        if request.path == "/_testkit/release" and request.method == "POST":
            self.release(request.query.get("gate", "stall"))
        elif request.path != "/_testkit/requests":
            error = {"type": "not_found_error", "message": f"nothing at {request.path}"}
            await out.send_json(404, {"type": "error", "error": error}, {})
            return 404
        await out.send_json(200, [asdict(record) for record in self.model_requests], {})
        return 200


class ServerInThread:
    """A `ModelServer` whose event loop lives in a thread of its own; made by `serving`."""

    def __init__(self, server: ModelServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.url = server.url

    @property
    def requests(self) -> list[RecordedRequest]:
        """Everything asked so far, in order of arrival."""
        return list(self._server.requests)

    @property
    def model_requests(self) -> list[RecordedRequest]:
        """The requests that a script answered."""
        return self._server.model_requests

    def release(self, gate: str = "stall") -> None:
        """Open a gate for good."""
        self._loop.call_soon_threadsafe(self._server.release, gate)

    def wait_held(self, gate: str = "stall", *, count: int = 1, timeout_s: float = 30) -> None:
        """Wait until ``count`` answers are held at a gate; see `ModelServer.wait_held`."""
        self._run(self._server.wait_held(gate, count=count, timeout_s=timeout_s))

    def wait_for_requests(self, count: int = 1, *, timeout_s: float = 30) -> None:
        """Wait until ``count`` model requests arrived; see `ModelServer.wait_for_requests`."""
        self._run(self._server.wait_for_requests(count, timeout_s=timeout_s))

    def wait_for_events(self, count: int, *, timeout_s: float = 30) -> None:
        """Wait until ``count`` stream events were sent; see `ModelServer.wait_for_events`."""
        self._run(self._server.wait_for_events(count, timeout_s=timeout_s))

    def _run(self, waiting: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()


@contextlib.contextmanager
def serving(scenarios: Iterable[Scenario] = (), *, port: int = 0) -> Iterator[ServerInThread]:
    """Serve from a thread, for synchronous code.

    Args:
        scenarios: Scripts added to the catalogue's; equal names replace.
        port: TCP port; 0 takes a free one.

    Yields:
        The running server.

    Raises:
        OSError: The port cannot be bound.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="scripted-model-server", daemon=True)
    thread.start()

    def run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return asyncio.run_coroutine_threadsafe(work(), loop).result()

    try:
        server = ModelServer(scenarios, port=port)
        run(server.__aenter__)
        try:
            yield ServerInThread(server, loop)
        finally:
            run(lambda: server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until standard input closes or Ctrl-C; print ``{"url": …, "pid": …}`` first."""
    import argparse  # noqa: PLC0415  # only the command line needs these
    import json  # noqa: PLC0415
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m dragoman.testkit.model_server")
    parser.add_argument("--port", type=int, default=0, help="TCP port (default: a free one)")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt), serving(port=options.port) as server:
        print(json.dumps({"url": server.url, "pid": os.getpid()}), flush=True)
        sys.stdin.buffer.read()  # returns when whoever started us has gone


if __name__ == "__main__":
    main()
