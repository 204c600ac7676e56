"""A run log that is slower than an adapter: the router reads no faster than it can keep, and no run suffers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dragoman.router.model.stored import StoredEvents
from dragoman.router.storage.store import Store
from dragoman.router.storage.writer import Writer
from dragoman.v1 import event_pb2

from tests.router.harness import config, routing, sequences
from tests.router.sidecar import Sidecar, serving

EVENTS = 300
SIZE = 20_000


async def test_a_log_that_is_slow_loses_nothing_and_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []

    class Narrow(Writer):
        def __init__(self, store: Store) -> None:
            super().__init__(store, waiting_bytes=10 * SIZE)

    write = Store.write

    async def measured(store: Store, events: Sequence[StoredEvents], *what: Any) -> list[str]:
        waiting.append(sum(len(data) for row in events for data in row.events or ()))
        return await write(store, events, *what)

    monkeypatch.setattr("dragoman.router.storage.run_log.Writer", Narrow)
    monkeypatch.setattr(Store, "write", measured)
    address = f"unix:{folder}/a.sock"
    async with serving(Sidecar(), address), routing(config(folder, addresses=(address,))) as (_, caller):
        steps = ({"flood": [EVENTS, SIZE]}, {"end": "SUCCEEDED"})
        events = await caller.execute("fake", *steps, run_id="r").rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert sequences(events) == list(range(1, EVENTS + 3))
    # Another router has but the log.
    async with serving(Sidecar(), address), routing(config(folder, addresses=(address,))) as (_, caller):
        kept = await caller.attach("r").rest()
        assert sequences(kept) == list(range(1, EVENTS + 3))
        assert not any(event.HasField("gap") for event in kept)
    assert max(waiting) <= 10 * SIZE
