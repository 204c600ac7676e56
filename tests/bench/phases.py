"""Where a real agent spends the time of a run: ``python -m tests.bench.phases ADAPTER [ROUNDS]``; scripted model.

Wall times are those between the events of a run, CPU times the scheduler's account of each process; medians.
"""

import argparse
import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import psutil
from dragoman.client import Client
from dragoman.testkit.isolation import isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

from tests.bench import startup
from tests.bench.agents import AGENTS, BIN, request_for

PHASES = (
    "until accepted",
    "until the agent runs",
    "until its first event",
    "until its last",
    "until the result",
    "rest",
)


async def phases(client: Client, request: pb.ExecuteRequest) -> list[float]:
    """Have one run; return how long each phase was, in seconds."""
    began = time.time()
    accepted = runs = first = last = ended = began
    async with client.execute(request) as run:
        async for event in run:
            at, kind = event.time.ToNanoseconds() / 1e9, event.WhichOneof("body")
            if kind == "started":
                accepted = at
            elif kind == "result":
                ended = at
            elif kind == "state" and event.state.phase == event_pb2.RUN_PHASE_RUNNING and runs == began:
                runs = at
            elif event.origin == event_pb2.EVENT_ORIGIN_AGENT:
                first, last = at if first == began else first, at
    marks = [began, accepted, runs, first, last, ended, time.time()]
    return [after - before for before, after in itertools.pairwise(marks)]


def cpu_s(router: psutil.Process) -> dict[str, float]:
    """Return the CPU time of each process of a router by its kind, in seconds; without the guard of the sidecar."""
    found: dict[str, float] = {}
    for one in (router, *router.children(recursive=True)):
        with contextlib.suppress(psutil.Error, OSError):
            line = " ".join(one.cmdline())
            kind = "guard" if "--wait-fd" in line else startup.kind_of(one.cmdline())
            if kind != "guard" or "--wait-fd" in line:
                tasks = Path(f"/proc/{one.pid}/task").iterdir()
                used = sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks)
                found[kind] = found.get(kind, 0.0) + used / 1e9
    return found


async def measure(adapter: str, rounds: int) -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory(prefix="dgm-") as name:
        program, folder = AGENTS[adapter][0], Path(name)
        workspace = folder / "workspace"
        workspace.mkdir()
        async with ModelServer() as server:
            isolated = isolate(program, folder, model_url=server.url, bin_dir=BIN)
            own = {variable: isolated.environment[variable] for variable in isolated.profile.model}
            async with startup.router(folder, isolated.environment) as (client, router):
                walls: list[list[float]] = []
                used: list[dict[str, float]] = []
                for number in range(rounds + 2):
                    before = cpu_s(router)
                    wall = await phases(client, request_for(adapter, own, workspace))
                    after = cpu_s(router)
                    if number > 1:  # the first one starts the sidecar
                        walls.append(wall)
                        used.append({kind: spent - before.get(kind, 0.0) for kind, spent in after.items()})
    for phase, values in zip(PHASES, zip(*walls, strict=True), strict=True):
        print(f"{phase:24} {statistics.median(values) * 1e3:8.1f} ms")
    for kind in ("guard", "sidecar", "router"):
        print(f"{kind + ', CPU':24} {statistics.median(one.get(kind, 0.0) for one in used) * 1e3:8.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapter", choices=AGENTS)
    parser.add_argument("rounds", type=int, nargs="?", default=20)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.adapter, arguments.rounds))
