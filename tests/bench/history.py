"""What a long history does to looking things up in the run log."""

import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

from dragoman.client import Client
from dragoman.router.model.stored import StoredEvents, StoredRun
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

from tests.bench import startup

SIZES = {"few": 100, "many": 10_000}
"""Finished runs in the log."""
EVENTS = 1000
LOOKS = 15


async def look_ups(folder: Path) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Yield, for few runs and for many, the milliseconds of a list, of an attach, and of a search for old runs."""
    for name, number in SIZES.items():
        directory = folder / name
        directory.mkdir(mode=0o700)
        environment = startup.environment_of(directory)
        file = directory / "home" / ".local" / "state" / "dragoman" / "runs.db"
        file.parent.mkdir(parents=True, mode=0o700)
        await _fill(file, number)
        async with startup.router(directory, environment) as (client, _process):
            found = await _look(client, number)
        yield name, {**found, "retention_ms": await _seek(file) * 1e3}


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
            run_id,
            began + index,
            "emitter",
            state,
            "",
            0.0,
            digest=b"digest",
            logged=EVENTS,
            finished_at=began + index + 1,
        )
        await store.begin(run)
        await store.write([StoredEvents(run_id, 1, EVENTS, _events(run_id))], [run])
    await store.close()


def _events(run_id: str) -> list[bytes]:
    events = [
        pb.AgentEvent(sequence=sequence, run_id=run_id, attempt=1, text=pb.Text(item_id="1", delta="word "))
        for sequence in range(1, EVENTS)
    ]
    events[0] = pb.AgentEvent(sequence=1, run_id=run_id, attempt=1, started=pb.Started())
    events.append(
        pb.AgentEvent(sequence=EVENTS, run_id=run_id, attempt=1, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))
    )
    return [event.SerializeToString() for event in events]


async def _seek(file: Path) -> float:
    """Return how long it takes to see that nothing is to be forgotten, which is done every minute."""
    store = Store(SqliteDatabase(file))
    await store.open()
    taken = []
    for _ in range(LOOKS):
        began = time.monotonic()
        assert not await store.delete_old(before=0.0, most_bytes=1 << 50)
        taken.append(time.monotonic() - began)
    await store.close()
    return statistics.median(taken)


async def _look(client: Client, number: int) -> dict[str, float]:
    runs, attach = [], []
    for turn in range(LOOKS):
        began = time.monotonic()
        assert len(await client.list_runs(limit=20)) == 20
        runs.append(time.monotonic() - began)
        began = time.monotonic()
        async with client.attach(f"run-{turn * number // LOOKS}") as stream:
            event = await anext(aiter(stream))
            assert event.sequence == 1, event
        attach.append(time.monotonic() - began)
    return {"list_ms": statistics.median(runs) * 1e3, "attach_ms": statistics.median(attach) * 1e3}
