"""A real agent through a warm router over the bare program, in interleaved rounds, with a scripted model."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
from dragoman.client import Client
from dragoman.testkit.isolation import isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

from tests.bench import startup

CLAUDE = startup.ROOT / ".agents" / "bin" / "claude"
_PROMPT = "MOCK_TEXT hello"
_ARGUMENTS = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]


async def claude_rounds(directory: Path, rounds: int) -> AsyncIterator[dict[str, float]]:
    """Yield the ratios of each round; nothing if Claude Code is not installed (``scripts/install-agents claude``)."""
    if not CLAUDE.exists():
        return
    folder = directory / "claude"
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    async with ModelServer() as server:
        isolated = isolate("claude", folder, model_url=server.url, bin_dir=CLAUDE.parent)
        environment = isolated.environment
        async with startup.router(folder, environment) as (client, router):
            await _routed(client, router, workspace)  # starts the sidecar
            for _ in range(rounds):
                bare_wall_s, bare_cpu_s = await asyncio.to_thread(  # the model server is on this loop
                    startup.started, [str(CLAUDE), *_ARGUMENTS, _PROMPT], environment, cwd=workspace
                )
                wall_s, cpu_s = await _routed(client, router, workspace)
                yield {
                    "bare_s": bare_wall_s,
                    "routed_s": wall_s,
                    "wall_ratio": wall_s / bare_wall_s,
                    "cpu_ratio": cpu_s / bare_cpu_s,
                }


async def _routed(client: Client, router: psutil.Process, workspace: Path) -> tuple[float, float]:
    """Have one run; return its wall time, and the CPU time of the router and all that it started."""
    request = pb.ExecuteRequest(adapter="claude_code", prompt=_PROMPT)
    request.workspace.cwd = str(workspace)
    before, began = startup.tree_cpu_s(router), time.monotonic()
    async with client.execute(request) as run:
        async for _ in run:
            pass
    if run.result is None or run.result.outcome != event_pb2.OUTCOME_SUCCEEDED:
        raise SystemExit(f"a measured run failed: {run.result}")
    return time.monotonic() - began, startup.tree_cpu_s(router) - before
