"""What the documentation says that each SDK does, to be compared with what its adapters declare."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, Reason, from_rpc_error
from dragoman.protocol.health_port import LIVENESS
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2

from tests.router.harness import Caller, Stream
from tests.router.test_health_port import SERVING, kubelet, other_methods
from tests.router.test_metrics import free_port

__all__ = [
    "SDKS",
    "UNSERVED",
    "assert_drains_and_shows_health",
    "assert_takes_part_in_traces",
    "declared_by_adapter",
    "refused_rpc",
    "started",
]

UNSERVED = ("Send", "UpdateRun", "GetChanges", "ReadArtifact", "Login", "SyncSkills", "OfALaterRevision")
"""RPCs that the SDKs of Go, TypeScript and Rust do not serve."""

SDKS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parents[1] / "docs/sdks.json").read_text(encoding="utf-8")
)["sdks"]


async def refused_rpc(address: str, rpc: str) -> DragomanError:
    """Return the status that refuses a unary RPC of adapters."""
    async with open_channel(address, channel_options(address)) as channel:
        call: Any = channel.unary_unary(f"/dragoman.v1.AdapterService/{rpc}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
    return from_rpc_error(refused.value)


@asynccontextmanager
async def started(command: Sequence[str | Path], folder: Path) -> AsyncIterator[str]:
    """Start an adapter; yield its address."""
    async with _running(command, folder) as (process, address):
        yield address
        process.terminate()


@asynccontextmanager
async def _running(
    command: Sequence[str | Path], folder: Path, **variables: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    address = f"unix:{folder}/a.sock"
    environment = {**os.environ, "DRAGOMAN_LISTEN": address, **variables}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"adapter ready" not in (line := await process.stderr.readline()):
            assert line, "the adapter ended before it was ready"
        yield process, address
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def assert_drains_and_shows_health(command: Sequence[str | Path], folder: Path, config: dict[str, Any]) -> None:
    """Check the port of health of an adapter, and that its live runs continue after SIGTERM, and no new ones begin.

    Args:
        command: how to start the adapter.
        folder: an empty one.
        config: settings of a run that ends once there is a file ``gate`` in the folder.
    """
    port = free_port()
    request, another = [execute_request("", "", cwd=str(folder), config=config) for _ in range(2)]
    request.orphan_after.FromSeconds(60)
    another.run_id = "another"
    variables = {"DRAGOMAN_HEALTH": str(port), "DRAGOMAN_DRAIN_GRACE": "120"}
    async with _running(command, folder, **variables) as (process, address), Client(address) as client:
        caller = Caller(address)
        async with kubelet(port) as probe, caller.channel:
            assert await probe.ask() == SERVING
            for method in other_methods():
                assert await probe.refusal(method) is grpc.StatusCode.UNIMPLEMENTED, method
            async with client.execute(request) as run:
                await anext(aiter(run))
                process.terminate()
                while await probe.ask() == SERVING:
                    pass
                assert await probe.ask(LIVENESS) == SERVING, "what drains must not be killed"
                assert (await Stream(caller.adapter.Execute(another)).error()).reason is Reason.DRAINING
                (folder / "gate").touch()
                async for _event in run:
                    pass
        assert run.result is not None
        assert run.result.outcome == event_pb2.OUTCOME_SUCCEEDED, run.result
        assert await process.wait() == 0


async def assert_takes_part_in_traces(
    command: Sequence[str | Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the trace of a call reaches the environment of a program, and the adapter's log.

    Args:
        command: how to start an adapter that runs the program of the setting ``command``, and logs what it prints.
        folder: an empty one.
        monkeypatch: of the test.
    """
    program = folder / "program"
    program.write_text('#!/bin/sh\necho "trace=$TRACEPARENT state=$TRACESTATE"\n', encoding="utf-8")
    program.chmod(0o755)
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with _running(command, folder) as (process, address):
        monkeypatch.setenv("TRACEPARENT", f"00-{trace}-{span}-01")
        monkeypatch.setenv("TRACESTATE", "vendor=1")
        request = execute_request("", "", cwd=str(folder), config={"command": str(program)})
        async with Client(address) as client, client.execute(request) as run:
            printed = [event.log.text async for event in run if event.HasField("log")]
        process.terminate()
        assert process.stderr is not None
        lines = [json.loads(line) async for line in process.stderr]
    assert printed == [f"trace=00-{trace}-{span}-01 state=vendor=1"]
    own = [line for line in lines if line.get("run_id") == run.run_id]
    assert own
    for line in own:
        assert (line["trace_id"], line["span_id"]) == (trace, span)


async def declared_by_adapter(command: Sequence[str | Path], folder: Path) -> list[str]:
    """Start an adapter, and return the duties that it declares."""
    async with started(command, folder) as address, Client(address) as client:
        described = await client.describe("")
    return [api.Duty.Name(duty) for duty in described.duties]
