"""GetChanges and ReadArtifact at a router whose adapter no longer has the run."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.server import Context
from dragoman.protocol.statuses import from_rpc_error
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, Proxy, config, failure, routing
from tests.router.sidecar import Sidecar, serving


class Forgetful(Sidecar):
    """Has been started anew since."""

    async def GetChanges(self, request: pb.GetChangesRequest, _context: Context) -> pb.GetChangesResponse:  # noqa: N802
        raise DragomanError(Reason.RUN_NOT_FOUND, f"run {request.run_id!r} not found")

    async def ReadArtifact(self, request: pb.ReadArtifactRequest, _context: Context) -> None:  # noqa: N802
        raise DragomanError(Reason.RUN_NOT_FOUND, f"run {request.run_id!r} not found")


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    address = f"unix:{tmp_path}/a.sock"
    async with serving(Forgetful("forgetful"), address), routing(config(tmp_path, addresses=(address,))) as routed:
        caller = routed[1]
        await caller.until("forgetful", router_pb2.ADAPTER_STATE_READY)
        await caller.execute("forgetful", {"end": "SUCCEEDED"}, run_id="r").rest()
        yield caller


async def test_what_its_adapter_has_forgotten_is_unknown(caller: Caller) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await caller.adapter.GetChanges(pb.GetChangesRequest(run_id="r"), timeout=PATIENCE_S)
    error = from_rpc_error(caught.value)
    assert error.reason is Reason.CHANGES_UNKNOWN
    assert "forgetful" in str(error)


async def test_artifacts_that_its_adapter_has_forgotten_are_gone(caller: Caller) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await caller.adapter.ReadArtifact(pb.ReadArtifactRequest(run_id="r", name="a"), timeout=PATIENCE_S).read()
    error = from_rpc_error(caught.value)
    assert error.reason is Reason.ARTIFACTS_GONE
    assert "forgetful" in str(error)


class Silent(Sidecar):
    """Gets the calls, and does not answer them."""

    def __init__(self) -> None:
        super().__init__("silent")
        self.asked = asyncio.Event()

    async def GetChanges(self, _request: pb.GetChangesRequest, _context: Context) -> pb.GetChangesResponse:  # noqa: N802
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def ReadArtifact(self, _request: pb.ReadArtifactRequest, _context: Context) -> None:  # noqa: N802
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("method", ["GetChanges", "ReadArtifact"])
async def test_an_adapter_whose_connection_is_lost_is_named(tmp_path: Path, method: str) -> None:
    sidecar, address, link = Silent(), f"unix:{tmp_path}/a.sock", Proxy(tmp_path / "link.sock", tmp_path / "a.sock")
    configured = config(tmp_path, addresses=(f"unix:{tmp_path}/link.sock",))
    async with serving(sidecar, address):
        await link.restore()
        async with routing(configured) as (_, caller):
            await caller.until("silent", router_pb2.ADAPTER_STATE_READY)
            await caller.execute("silent", {"end": "SUCCEEDED"}, run_id="r").rest()
            if method == "GetChanges":
                call = caller.adapter.GetChanges(pb.GetChangesRequest(run_id="r"), timeout=PATIENCE_S)
                asking = asyncio.ensure_future(failure(call))
            else:
                stream = caller.adapter.ReadArtifact(pb.ReadArtifactRequest(run_id="r"), timeout=PATIENCE_S)
                asking = asyncio.ensure_future(failure(stream.read()))
            async with asyncio.timeout(PATIENCE_S):
                await sidecar.asked.wait()
                await link.cut()
                error = await asking
            assert error.reason is Reason.ADAPTER_UNAVAILABLE
            assert "'silent'" in error.message
