"""An agent that prints lines without pause, through a router and a sidecar of their own."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, event_pb2

from tests.bench import startup


@dataclass
class Lines:
    """What became of the lines."""

    live: int = 0
    """That came in order while the agent ran."""
    logged: int = 0
    """That the run log has, in order."""
    wall_s: float = 0.0
    remarks: list[str] = field(default_factory=list)


async def logged_lines(directory: Path, count: int) -> Lines:
    """Have an agent print lines of 60 characters; read them live, and then from the run log."""
    found = Lines()
    environment = startup.environment_of(directory)
    async with startup.router(directory, environment):
        address = f"unix:{directory}/router.sock"
        async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
            stub: Any = adapter_pb2_grpc.AdapterServiceStub(channel)
            await stub.Describe(pb.DescribeRequest(adapter="process"))  # so that the sidecar runs
            request = pb.ExecuteRequest(adapter="process", run_id="flood", prompt="print")
            code = f"for i in range({count}): print(str(i).rjust(60))"
            request.config.update({"command": sys.executable, "args": ["-c", code]})
            request.workspace.cwd = str(directory)
            began = time.monotonic()
            found.live = await _in_order(stub.Execute(request), found.remarks)
            found.wall_s = time.monotonic() - began
            found.logged = await _in_order(stub.Attach(pb.AttachRequest(run_id="flood")), found.remarks)
    return found


async def _in_order(call: Any, remarks: list[str]) -> int:
    """Read a run to its end; return how many lines came, each behind the one before it."""
    lines, last = 0, -1
    async for event in call:
        if event.HasField("gap"):
            remarks.append(f"a gap up to sequence {event.gap.to_sequence}")
        elif event.HasField("result") and event.result.outcome != event_pb2.OUTCOME_SUCCEEDED:
            remarks.append(event_pb2.Outcome.Name(event.result.outcome))
        for text in event.log.text.split("\n") if event.HasField("log") else ():
            if text.strip().isdecimal() and int(text) > last:
                lines, last = lines + 1, int(text)
    return lines
