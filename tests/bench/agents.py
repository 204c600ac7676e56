"""Real agents through a warm router over the bare program, in interleaved rounds, with a scripted model."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import psutil
from dragoman.client import Client
from dragoman.testkit.isolation import isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

from tests.bench import startup

BIN = startup.ROOT / ".agents" / "bin"
AGENTS = {
    "claude_code": ("claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"),
    "codex": ("codex", "exec", "--json", "--skip-git-repo-check"),
    "pi": ("pi", "-p", "--mode", "json"),
}
"""Adapters, and the program that each drives with what makes it print its events; the prompt comes last."""
_PROMPT = "MOCK_TEXT hello"


def missing_agents() -> list[str]:
    """Return the programs that ``scripts/install-agents`` has not installed."""
    return [command[0] for command in AGENTS.values() if not (BIN / command[0]).exists()]


async def rounds_of(adapter: str, directory: Path, rounds: int) -> AsyncIterator[dict[str, float]]:
    """Yield the times of each round, and their ratios; nothing if the program is not installed."""
    program, *arguments = AGENTS[adapter]
    if not (BIN / program).exists():
        return
    folder = directory / program
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    async with ModelServer() as server:
        isolated = isolate(program, folder, model_url=server.url, bin_dir=BIN)
        environment = isolated.environment
        own = {name: environment[name] for name in isolated.profile.model}
        async with startup.router(folder, environment) as (client, router):

            async def routed() -> tuple[float, float]:
                return await _routed(client, router, request_for(adapter, own, workspace))

            await routed()  # starts the sidecar
            for _ in range(rounds):
                bare_wall_s, bare_cpu_s = await asyncio.to_thread(  # the model server is on this loop
                    startup.started, [str(BIN / program), *arguments, _PROMPT], environment, cwd=workspace
                )
                wall_s, cpu_s = await routed()
                yield {
                    "bare_s": bare_wall_s,
                    "routed_s": wall_s,
                    "wall_ratio": wall_s / bare_wall_s,
                    "cpu_ratio": cpu_s / bare_cpu_s,
                }


def request_for(adapter: str, env: Mapping[str, str], workspace: Path) -> pb.ExecuteRequest:
    """Return a request for a run with these variables."""
    request = pb.ExecuteRequest(adapter=adapter, prompt=_PROMPT, env=env)
    request.workspace.cwd = str(workspace)
    return request


async def _routed(client: Client, router: psutil.Process, request: pb.ExecuteRequest) -> tuple[float, float]:
    """Have one run; return its wall time, and the CPU time of the router and all that it started."""
    before, began = startup.tree_cpu_s(router), time.monotonic()
    async with client.execute(request) as run:
        async for _ in run:
            pass
    if run.result is None or run.result.outcome != event_pb2.OUTCOME_SUCCEEDED:
        raise SystemExit(f"a measured run failed: {run.result}")
    return time.monotonic() - began, startup.tree_cpu_s(router) - before
