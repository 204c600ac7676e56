"""A sidecar that only emits: paced or flat-out events with the time of writing in them. For measuring, not for use.

Run as ``python -m tests.bench.emitter ADDRESS``. The prompt says what to emit, as JSON: ``{"events": 1000,
"interval_s": 0.001, "bytes": 200, "batch": 8}``; ``{"events": 0}`` stays open and silent until the caller leaves. So
many events are in one message if the caller takes batches.
"""

import asyncio
import json
import os
import sys
import time

from dragoman.protocol import REVISION
from dragoman.protocol.logs import configure_logs
from dragoman.protocol.server import Context, DragomanServer, service_handler, write_event
from dragoman.protocol.wire import join
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_SERVICE = pb.DESCRIPTOR.services_by_name["AdapterService"]


class Emitter:
    """Serves Describe and Execute."""

    def __init__(self) -> None:
        self._cancelled: dict[str, asyncio.Event] = {}

    async def Describe(self, _request: pb.DescribeRequest, _context: Context) -> pb.DescribeResponse:  # noqa: N802 - the RPC's name
        """Say what this is."""
        return pb.DescribeResponse(
            adapter="emitter",
            revision=REVISION,
            instance_id=f"emitter-{os.getpid()}",
            pid=os.getpid(),
            batching=True,
        )

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> None:  # noqa: N802 - the RPC's name
        """Emit what the prompt says."""
        wish = json.loads(request.prompt)
        await context.send_initial_metadata((("dragoman-run-id", request.run_id),))
        await write_event(context, _event(request.run_id, 1, started=event_pb2.Started(adapter="emitter")))
        count, interval = int(wish["events"]), float(wish.get("interval_s", 0.0))
        filler = "x" * int(wish.get("bytes", 100))
        if count == 0:
            await self._cancelled.setdefault(request.run_id, asyncio.Event()).wait()
        batch = int(wish.get("batch", 1)) if request.HasField("batching") else 1
        waiting: list[bytes] = []
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(count):
            if interval:
                await _until(loop, began + number * interval)
            delta = f"{time.monotonic_ns():020d}{filler}"
            text = event_pb2.Text(item_id="t", offset=number * len(delta), delta=delta)
            waiting.append(_event(request.run_id, number + 2, text=text))
            if len(waiting) >= batch or number == count - 1:
                for message in join(waiting):
                    await write_event(context, message)
                waiting = []
        result = event_pb2.Result(outcome=event_pb2.OUTCOME_SUCCEEDED)
        await write_event(context, _event(request.run_id, count + 2, result=result))

    async def Cancel(self, request: pb.CancelRequest, _context: Context) -> pb.CancelResponse:  # noqa: N802 - the RPC's name
        """End a silent run."""
        if request.run_id in self._cancelled:
            self._cancelled[request.run_id].set()
        return pb.CancelResponse(outcome=event_pb2.OUTCOME_CANCELLED)


async def _until(loop: asyncio.AbstractEventLoop, when: float) -> None:
    if (wait := when - loop.time()) > 0:
        reached = loop.create_future()
        loop.call_later(wait, reached.set_result, None)
        await reached


def _event(run_id: str, sequence: int, **body: object) -> bytes:
    event = event_pb2.AgentEvent(sequence=sequence, run_id=run_id, attempt=1, **body)  # type: ignore[arg-type] - one body
    return event.SerializeToString()


async def main(address: str) -> None:
    """Serve until killed."""
    configure_logs("json", level="error")
    server = DragomanServer({_SERVICE: service_handler(_SERVICE, Emitter())}, [address])
    await server.start()
    await server.set_serving()
    print("ready", flush=True)
    await server.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
