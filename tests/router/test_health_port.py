"""The port of probes: health in the clear, and nothing else, of routers and adapters."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.health_port import LIVENESS, health_served
from dragoman.protocol.server import DragomanServer
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1.event_pb2 import OUTCOME_SUCCEEDED
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.router.harness import PATIENCE_S, Stream, config, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_draining import adapter, finish, refused, started, waiting
from tests.router.test_metrics import free_port

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Kubelet:
    """Asks as the kubelet does: by TCP, in the clear, without a credential."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._stub: Any = health_pb2_grpc.HealthStub(self.channel)

    async def ask(self, service: str = "") -> int:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await self._stub.Check(request, timeout=PATIENCE_S, wait_for_ready=True)
        return int(answer.status)

    async def refusal(self, method: str) -> grpc.StatusCode:
        """Return the status of a call of a method."""
        call: Any = self.channel.unary_unary(method)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"", timeout=PATIENCE_S)
        return error.value.code()


@contextlib.asynccontextmanager
async def kubelet(port: int) -> AsyncIterator[Kubelet]:
    one = Kubelet(port)
    async with one.channel:
        yield one


def other_methods() -> list[str]:
    """Return all methods of a Dragoman server but the one that is served here."""
    services = [*adapter_pb2.DESCRIPTOR.services_by_name.values(), *router_pb2.DESCRIPTOR.services_by_name.values()]
    methods = [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]
    reflection = "ServerReflection/ServerReflectionInfo"
    return [
        *methods,
        f"/grpc.reflection.v1.{reflection}",
        f"/grpc.reflection.v1alpha.{reflection}",
        "/grpc.health.v1.Health/Watch",
        "/",
    ]


async def test_a_router_shows_its_health_there_and_nothing_else(folder: Path) -> None:
    port = free_port()
    # Not on loopback alone, and without TLS: nothing but health is there.
    async with routing(config(folder, health=f"0.0.0.0:{port}")), kubelet(port) as probe:
        assert await probe.ask() == SERVING
        assert await probe.ask("dragoman.v1.RouterService") == SERVING
        assert await probe.ask(LIVENESS) == SERVING
        for method in other_methods():
            assert await probe.refusal(method) is grpc.StatusCode.UNIMPLEMENTED, method
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await probe.ask("another")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_it_shares_its_port_with_no_other_server_and_reads_no_long_request() -> None:
    async def check(request: health_pb2.HealthCheckRequest, _context: Any) -> health_pb2.HealthCheckResponse:
        asked.append(request.service)
        return health_pb2.HealthCheckResponse(status=NOT_SERVING)

    asked: list[str] = []
    async with health_served("0", check) as where:
        port = int(where.rpartition(":")[2])
        with pytest.raises(AddressError, match=f"health cannot be served at 127.0.0.1:{port}: "):
            async with health_served(str(port), check):
                pass
        async with kubelet(port) as probe:
            assert await probe.ask("a") == NOT_SERVING
            assert await probe.ask(LIVENESS) == SERVING
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await probe.ask("x" * 5000)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert asked == ["a"]


async def test_it_flips_as_a_router_drains_and_stays_until_that_ends(folder: Path) -> None:
    port, sidecar = free_port(), Sidecar()
    address = f"unix:{folder}/a.sock"
    configured = config(folder, addresses=(address,), health=str(port))
    async with serving(sidecar, address), routing(configured) as (router, caller), kubelet(port) as probe:
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        stream = caller.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"})
        await stream.until("started")
        stopping = asyncio.ensure_future(router.stop(PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while await probe.ask() == SERVING:
                pass
        assert await probe.ask() == NOT_SERVING
        assert await probe.ask(LIVENESS) == SERVING, "what drains must not be killed"
        sidecar.open("g")
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_an_adapter_shows_its_health_there_too(folder: Path) -> None:
    port = free_port()
    options = ("--drain-grace", str(PATIENCE_S))
    async with (
        adapter(f"unix:{folder}/a.sock", *options, DRAGOMAN_HEALTH=str(port)) as served,
        Client(served.address) as client,
        kubelet(port) as probe,
    ):
        assert await probe.ask() == SERVING
        for method in other_methods():
            assert await probe.refusal(method) is grpc.StatusCode.UNIMPLEMENTED, method
        async with client.execute(waiting(folder, "r")) as run:
            await started(run)
            served.process.terminate()
            await refused(served.address)
            assert await probe.ask() == NOT_SERVING
            assert await probe.ask(LIVENESS) == SERVING
            finish(folder, "r")
            async for _event in run:
                pass
        assert await served.ended() == 0


async def test_what_is_not_ready_does_not_serve_but_lives(folder: Path) -> None:
    server = DragomanServer({}, [f"unix:{folder}/s.sock"])
    async with health_served("0", server.check_health) as address:
        port = int(address.rpartition(":")[2])
        async with kubelet(port) as probe:
            assert await probe.ask() == NOT_SERVING
            assert await probe.ask(LIVENESS) == SERVING
            await server.start()
            assert await probe.ask() == NOT_SERVING
            await server.set_serving()
            assert await probe.ask() == SERVING
            await server.stop([], 0.0)


async def test_an_adapter_that_a_router_launches_does_not_want_the_routers_port(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("DRAGOMAN_HEALTH", str(port))
    command = [sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process"]
    manifest = folder / "process.json"
    manifest.write_text(json.dumps({"type": "process", "command": command}))
    async with routing(config(folder, manifests=(manifest,), health=str(port))) as (_router, caller):
        await caller.until("process", router_pb2.ADAPTER_STATE_IDLE)
        request = execute_request("process", "", cwd="/", config={"command": "true"})
        assert (await Stream(caller.adapter.Execute(request)).rest())[-1].result.outcome == OUTCOME_SUCCEEDED


async def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"health cannot be served at 127.0.0.1:{port}: another program"):
            async with routing(config(folder, health=str(port))):
                pass
