"""The server in a thread, for synchronous code."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from dragoman.testkit.model_server.scheduler import RecordedRequest
from dragoman.testkit.model_server.script import Scenario
from dragoman.testkit.model_server.server import ModelServer

_T = TypeVar("_T")


class ServerInThread:
    """A `ModelServer` whose event loop runs in a thread; made by `serving`."""

    def __init__(self, server: ModelServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.url = server.url

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests, in order of arrival."""
        return list(self._server.requests)

    @property
    def model_requests(self) -> list[RecordedRequest]:
        """The requests that a script answered."""
        return self._server.model_requests

    def release(self, gate: str = "stall") -> None:
        """Open a gate for good."""
        self._loop.call_soon_threadsafe(self._server.release, gate)

    def wait_held(self, gate: str = "stall", *, count: int = 1, timeout_s: float = 30) -> None:
        """Wait until ``count`` answers are paused at a gate; see `ModelServer.wait_held`."""
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
def serving(
    scenarios: Iterable[Scenario] = (), *, host: str = "127.0.0.1", port: int = 0
) -> Iterator[ServerInThread]:
    """Serve from a thread, for synchronous code.

    Args:
        scenarios: Scripts added to the catalogue's; equal names replace.
        host: the address to listen on.
        port: TCP port; 0 picks a free one.

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
        server = ModelServer(scenarios, host=host, port=port)
        run(server.__aenter__)
        try:
            yield ServerInThread(server, loop)
        finally:
            run(lambda: server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
