"""What the documentation says that each SDK does, to be compared with what its adapters declare."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from dragoman.client import Client
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError, from_rpc_error
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2 as api

__all__ = ["SDKS", "UNSERVED", "declared_by_adapter", "refused_rpc", "started"]

UNSERVED = ("Send", "GetChanges", "ReadArtifact", "SyncSkills", "OfALaterRevision")
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
    address = f"unix:{folder}/a.sock"
    environment = {**os.environ, "DRAGOMAN_LISTEN": address}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"adapter ready" not in (line := await process.stderr.readline()):
            assert line, "the adapter ended before it was ready"
        yield address
    finally:
        process.terminate()
        await process.wait()


async def declared_by_adapter(command: Sequence[str | Path], folder: Path) -> list[str]:
    """Start an adapter, and return the duties that it declares."""
    async with started(command, folder) as address, Client(address) as client:
        described = await client.describe("")
    return [api.Duty.Name(duty) for duty in described.duties]
