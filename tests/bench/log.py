"""What the run log costs: bytes and CPU per event, and what a long history does to looking things up."""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import psutil
from dragoman.client import Client
from dragoman.protocol.limits import channel_options
from dragoman.router.model.stored import StoredEvents, StoredRun
from dragoman.router.storage.batches import pack
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

FEW, MANY = 100, 10_000
EVENTS = 1000
LOOKS = 15
_WITHOUT_LOG = """
import sys
from dragoman.router._store import writer
writer.Writer.append = lambda _writer, run, sequence, _data: setattr(run, "last", sequence)
from dragoman.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""A router that keeps its runs, and none of their events: what the log costs is what it does without."""


@contextlib.asynccontextmanager
async def routed(folder: Path, upstream: str, *, logs: bool) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Run a router as a process, with its log or as good as without; yields its address and process."""
    listen = f"unix:{folder}/r.sock"
    program = ["-m", "dragoman.cli.main"] if logs else ["-c", _WITHOUT_LOG]
    arguments = ["serve", "--no-detect", "--listen", listen, "--state-dir", str(folder / "state")]
    arguments += ["--adapter", upstream] if upstream else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with grpc.aio.insecure_channel(listen, options=channel_options(listen)) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
        yield listen, psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def measure_events(
    folder: Path, upstream: str, stream: Callable[[str, dict[str, float]], Awaitable[object]], wish: dict[str, float]
) -> None:
    """Print bytes and CPU per event, with the log and without, in turns."""
    used: dict[bool, list[float]] = {True: [], False: []}
    size = 0
    for turn in range(3):
        for logs in (True, False):
            place = folder / f"{turn}-{logs}"
            place.mkdir()
            async with routed(place, upstream, logs=logs) as (address, process):
                before = _cpu_s(process)
                await stream(address, wish)
                used[logs].append((_cpu_s(process) - before) / wish["events"] * 1e6)
            if logs:
                size = sum(path.stat().st_size for path in (place / "state").glob("runs.db*"))
    on, off = statistics.median(used[True]), statistics.median(used[False])
    print(f"run log, {wish['events']} events of {wish['bytes']} bytes of text, flat out")
    print(f"  bytes in the log per event {size / wish['events']:6.0f}")
    print(f"  router CPU per event (us): with the log {on:.0f}, without {off:.0f}, ratio {on / off:.2f}")


async def measure_history(folder: Path) -> None:
    """Print how long looking up takes with few runs and with many."""
    taken = {}
    for number in (FEW, MANY):
        place = folder / str(number)
        place.mkdir()
        (place / "state").mkdir()
        await _fill(place / "state" / "runs.db", number)
        async with routed(place, "", logs=True) as (address, _process):
            taken[number] = await _look(address, number)
        taken[number]["forget"] = await _seek(place / "state" / "runs.db")
    for what in ("runs", "attach", "forget"):
        few, many = taken[FEW][what], taken[MANY][what]
        print(
            f"  {what:7} with {FEW} finished runs {few * 1e3:6.1f} ms, with {MANY} {many * 1e3:6.1f} ms,"
            f" ratio {many / few:.2f}"
        )


async def _fill(file: Path, number: int) -> None:
    store = Store(SqliteDatabase(file))
    await store.open()
    began = time.time() - number
    for index in range(number):
        run_id = f"run-{index}"
        summary = router_pb2.RunSummary(run_id=run_id, adapter="emitter", last_sequence=EVENTS)
        summary.result.outcome = pb.OUTCOME_SUCCEEDED
        state = router_pb2.GetRunResponse(run=summary)
        run = StoredRun(
            run_id, began + index, "emitter", state, EVENTS, "", 0.0, logged=EVENTS, finished_at=began + index + 1
        )
        await store.begin(run)
        await store.write([StoredEvents(run_id, 1, EVENTS, _events(run_id))], [run])
    await store.close()


def _events(run_id: str) -> bytes:
    made = [
        pb.AgentEvent(sequence=sequence, run_id=run_id, attempt=1, text=pb.Text(item_id="1", delta="word "))
        for sequence in range(1, EVENTS)
    ]
    made[0] = pb.AgentEvent(sequence=1, run_id=run_id, attempt=1, started=pb.Started())
    made.append(
        pb.AgentEvent(sequence=EVENTS, run_id=run_id, attempt=1, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))
    )
    return pack(event.SerializeToString() for event in made)


async def _seek(file: Path) -> float:
    """Return how long it takes to see that nothing is to be forgotten, which is done every minute."""
    store = Store(SqliteDatabase(file))
    await store.open()
    taken = []
    for _ in range(LOOKS):
        began = time.monotonic()
        assert not await store.retention.delete_old(before=0.0, most_bytes=1 << 50)
        taken.append(time.monotonic() - began)
    await store.close()
    return statistics.median(taken)


async def _look(address: str, number: int) -> dict[str, float]:
    runs, attach = [], []
    async with Client(address) as client:
        for turn in range(LOOKS):
            began = time.monotonic()
            assert len(await client.list_runs(limit=20)) == 20
            runs.append(time.monotonic() - began)
            began = time.monotonic()
            async with client.attach(f"run-{turn * number // LOOKS}") as stream:
                async for event in stream:
                    assert event.sequence == 1, json.dumps(str(event))
                    break
            attach.append(time.monotonic() - began)
    return {"runs": statistics.median(runs), "attach": statistics.median(attach)}
