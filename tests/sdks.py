"""What the documentation says that each SDK does, to be compared with what its adapters declare."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from dragoman.client import Client
from dragoman.v1 import adapter_pb2 as api

__all__ = ["SDKS", "declared_by_adapter"]

SDKS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parents[1] / "docs/sdks.json").read_text(encoding="utf-8")
)["sdks"]


async def declared_by_adapter(command: Sequence[str | Path], folder: Path) -> list[str]:
    """Start an adapter, and return the duties that it declares."""
    address = f"unix:{folder}/a.sock"
    environment = {**os.environ, "DRAGOMAN_LISTEN": address}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"adapter ready" not in (line := await process.stderr.readline()):
            assert line, "the adapter ended before it was ready"
        async with Client(address) as client:
            described = await client.describe("")
    finally:
        process.terminate()
        await process.wait()
    return [api.Duty.Name(duty) for duty in described.duties]
