"""GetChanges and ReadArtifact at a router whose adapter no longer has the run."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from dragoman.protocol.errors import DragomanError, Reason, from_rpc_error
from dragoman.protocol.server import Context
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, routing
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
