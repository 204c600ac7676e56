"""Results that are called back: the right token, the wrong one, too late; and who would wear the listener out."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from dragoman.testkit.model_server.http1 import HttpConnection, HttpRequest
from dragoman.v1 import event_pb2 as pb

from tests.adapters.http.service import Services, of

HERE = {"url": "http://127.0.0.1:{port}/dragoman/"}


async def send(url: str, body: bytes, *, method: str = "POST", head: str = "") -> int:
    """Call a listener; return the status of its answer, 0 if there is none."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        lines = f"{method} {parts.path} HTTP/1.1\r\nhost: here\r\n{head}content-length: {len(body)}\r\n\r\n"
        writer.write(lines.encode() + body)
        with contextlib.suppress(OSError):
            words = (await reader.readline()).split()
            return int(words[1]) if words else 0
        return 0
    finally:
        writer.close()


async def call(url: str, value: Any, **more: Any) -> int:
    return await send(url, json.dumps(value).encode(), **more)


class Caller:
    """A run that waits for a call, and the URL it gave away."""

    def __init__(self, services: Services, **config: Any) -> None:
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.run = asyncio.ensure_future(services.run(mode="callback", callback={**HERE, **config}))


@contextlib.asynccontextmanager
async def waiting(services: Services, **config: Any) -> AsyncIterator[Caller]:
    caller = Caller(services, **config)

    async def handle(request: HttpRequest, responder: HttpConnection) -> None:
        body: Any = request.json()
        await responder.send(202)
        caller.url.set_result(body["callbackUrl"])

    services.service.routes["/run"] = handle
    try:
        yield caller
    finally:
        caller.run.cancel()
        await asyncio.gather(caller.run, return_exceptions=True)


async def test_the_right_token(services: Services) -> None:
    async with waiting(services) as caller, asyncio.timeout(10):
        url = await caller.url
        assert urlsplit(url).path.startswith("/dragoman/")
        assert await call(url, {"status": "running", "sessionId": "s-1"}) == 204
        assert await call(url, {"status": "done", "text": "All done.\u2028"}) == 204
        events = await caller.run
        assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
        assert events[-1].result.summary == "All done.\u2028"
        assert of(events, "session")[0].native_id == "s-1"
        # Too late: it listens no more.
        with pytest.raises(ConnectionRefusedError):
            await call(url, {"text": "late"})


async def test_the_wrong_token(services: Services) -> None:
    async with waiting(services) as caller, asyncio.timeout(10):
        url = await caller.url
        for wrong in (url[:-1], url + "x", url[:-1] + "\u0101".encode().hex(), url.rpartition("/")[0] + "/"):
            assert await call(wrong, {"text": "not yours"}) == 404
        assert await call(url, {"text": "x"}, method="GET") == 405
        assert await send(url, b"[1]") == 400
        assert await send(url, b"not json") == 400
        assert not caller.run.done()
        assert await call(url, {"error": "it broke"}) == 204
        assert (await caller.run)[-1].result.failure.message.endswith("it broke")


async def test_a_failure_before_any_call(services: Services) -> None:
    services.service.answers("/run", {"error": "no such agent"}, status=200)
    events = await services.run(mode="callback", callback=HERE)
    assert "no such agent" in events[-1].result.failure.message
    services.service.answers("/run", {}, status=500)
    events = await services.run(mode="callback", callback=HERE)
    assert events[-1].result.failure.http_status == 500


async def test_two_runs_share_a_port_and_not_a_token(services: Services, unused_tcp_port: int) -> None:
    async with waiting(services, port=unused_tcp_port) as one, asyncio.timeout(10):
        first = await one.url
        async with waiting(services, port=unused_tcp_port) as two:
            second = await two.url
            assert urlsplit(first).port == urlsplit(second).port == unused_tcp_port
            assert await call(first, {"text": "one"}) == 204
            assert (await one.run)[-1].result.summary == "one"
            assert await call(first, {"text": "late"}) == 404, "the other still listens, and knows only its own"
            assert await call(second, {"text": "two"}) == 204
            assert (await two.run)[-1].result.summary == "two"
        with pytest.raises(ConnectionRefusedError):
            await call(second, {"text": "late"})


async def test_a_port_that_is_taken(services: Services) -> None:
    services.service.answers("/run", {})
    events = await services.run(mode="callback", callback={**HERE, "port": services.service.port})
    assert events[-1].result.failure.code == "listener_failed"
    assert services.service.requests == []


async def test_a_stopped_run_listens_no_more(services: Services) -> None:
    services.service.answers("/run", {"cancelUrl": "/cancel"})
    services.service.answers("/cancel", {})

    async def react(event: pb.AgentEvent, stream: Any) -> None:
        if event.state.phase == pb.RUN_PHASE_RUNNING:
            while not services.service.requests:  # noqa: ASYNC110 - the service has no event for it
                await asyncio.sleep(0.01)
            await stream.cancel(grace_s=5)

    events = await services.run(mode="callback", callback=HERE, react=react)
    assert events[-1].result.outcome == pb.OUTCOME_CANCELLED
    with pytest.raises(ConnectionRefusedError):
        await call(services.service.bodies[0]["callbackUrl"], {"text": "late"})


@pytest.mark.parametrize(
    "data", [b"\x00\xff" * 100, b"POST /x HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"POST / HTTP/9.9\r\n\r\n", b""]
)
async def test_garbage_at_the_listener(services: Services, data: bytes) -> None:
    async with waiting(services) as caller, asyncio.timeout(10):
        url = await caller.url
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(data)
        writer.write_eof()
        with contextlib.suppress(OSError):
            assert (await reader.read())[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 404"}
        writer.close()
        assert await call(url, {"text": "still here"}) == 204
        assert (await caller.run)[-1].result.summary == "still here"


async def test_a_body_that_is_too_large(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.adapters.http.listener.MOST_BYTES", 1000)
    async with waiting(services) as caller, asyncio.timeout(10):
        assert await call(await caller.url, {"text": "x" * 2000}) == 413
        assert await call(await caller.url, {"text": "x"}) == 204


async def test_slow_callers_are_dropped(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.adapters.http.listener.REQUEST_LIMIT_S", 0.2)
    async with waiting(services) as caller, asyncio.timeout(10):
        url = await caller.url
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(b"POST /")
        assert await reader.read() == b"", "it was closed without an answer"
        writer.close()
        assert await call(url, {"text": "x"}) == 204


async def test_too_many_callers_are_turned_away(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.adapters.http.listener.MOST_CONNECTIONS", 2)
    async with waiting(services) as caller, asyncio.timeout(10):
        url = await caller.url
        idle = [await asyncio.open_connection("127.0.0.1", urlsplit(url).port) for _ in range(2)]
        assert await call(url, {"text": "x"}) == 503
        for _, writer in idle:
            writer.close()
        while await call(url, {"text": "x"}) != 204:  # noqa: ASYNC110 - until it has seen that they left
            await asyncio.sleep(0.01)
