"""``python -m tests.bench.flood``: agents that print without pause, at full scale.

500 000 lines of 60 characters and 3 million empty lines go through a router and a sidecar of their own. Printed are
the lines that came live, those that the run log has, and how soon the sidecar answers others meanwhile.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, event_pb2

from tests.bench.__main__ import quantile, router

PROGRAMS = {
    "500000 lines of 60 characters": "for i in range(500_000): print(str(i).rjust(60))",
    "3000000 empty lines": "import sys\nfor _ in range(3000): sys.stdout.write('\\n' * 1000)",
}
_PAUSE_S = 0.05
"""Between two questions to the sidecar."""
_QUIET_S = 5.0
"""How long it is asked before the first flood, to compare."""


@contextlib.asynccontextmanager
async def asking(stub: Any, answers: list[float]) -> AsyncIterator[None]:
    """Ask the sidecar again and again, and note how long each answer takes."""

    async def ask() -> None:
        while True:
            began = time.monotonic()
            await stub.ListModels(pb.ListModelsRequest(adapter="process"))  # which the router has not cached
            answers.append(time.monotonic() - began)
            await asyncio.sleep(_PAUSE_S)

    task = asyncio.ensure_future(ask())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def spread(answers: list[float]) -> str:
    """Return how long answers took."""
    p50, p99 = (quantile(answers, share) * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, at most {max(answers) * 1000:.0f} ms"


async def counted(call: Any) -> str:
    """Read a run to its end; return what came."""
    lines = events = gaps = 0
    outcome = "none"
    async for event in call:
        events += 1
        gaps += event.HasField("gap")
        if event.HasField("log"):
            lines += event.log.text.count("\n") + 1
        elif event.HasField("result"):
            outcome = event_pb2.Outcome.Name(event.result.outcome)
    return f"{lines} lines in {events} events, {gaps} gaps, {outcome}"


async def measure(address: str, directory: Path) -> None:
    """Print the figures of each program."""
    async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
        stub: Any = adapter_pb2_grpc.AdapterServiceStub(channel)
        await stub.Describe(pb.DescribeRequest(adapter="process"))  # so that the sidecar runs
        answers: list[float] = []
        async with asking(stub, answers):
            await asyncio.sleep(_QUIET_S)
        print(f"the sidecar answers while nothing runs: {spread(answers)}")
        for number, (name, code) in enumerate(PROGRAMS.items()):
            request = pb.ExecuteRequest(adapter="process", run_id=f"flood-{number}", prompt="print")
            request.config.update({"command": sys.executable, "args": ["-c", code]})
            request.workspace.cwd = str(directory)
            answers.clear()
            began = time.monotonic()
            async with asking(stub, answers):
                live = await counted(stub.Execute(request))
            print(f"{name}: {time.monotonic() - began:.1f} s")
            print(f"  live  {live}")
            print(f"  log   {await counted(stub.Attach(pb.AttachRequest(run_id=request.run_id)))}")
            print(f"  the sidecar answers others: {spread(answers)}")


async def main() -> None:
    """Measure with a router of its own."""
    with tempfile.TemporaryDirectory(prefix="flood-") as name:
        directory = Path(name)
        address = f"unix:{directory}/r.sock"
        environment = {**os.environ, "HOME": name, "XDG_RUNTIME_DIR": name}
        async with router(address, "", directory, environment):
            await measure(address, directory)


if __name__ == "__main__":
    asyncio.run(main())
