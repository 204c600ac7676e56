"""A writer of the run log at work, on a store that fails and waits on demand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from dragoman.router.model.stored import StoredEvents, StoredProgress, StoredRun
from dragoman.router.storage.database import Database, StoreError
from dragoman.router.storage.ledger import RunLedger
from dragoman.router.storage.store import Store
from dragoman.router.storage.writer import Writer
from dragoman.v1 import router_pb2

DEADLINE_S = 20.0


class Failing(Store):
    """A store that fails and waits on demand."""

    fails = False
    cut = False
    """Whether what fails was done, and only the answer was lost."""
    writes = 0

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.begun: list[str] = []
        self.is_waiting = asyncio.Event()
        self.written: Callable[[], object] = lambda: None

    async def remove(self, run_id: str, owner: str) -> None:
        await self._pass(self.open_gate)
        await super().remove(run_id, owner)

    async def write(
        self,
        events: Sequence[StoredEvents],
        runs: Sequence[StoredRun | StoredProgress],
        new: Container[str] = (),
    ) -> list[str]:
        if self.cut:
            await super().write(events, runs, new)
        await self._pass(self.open_gate)
        self.writes += 1
        self.begun += [run.run_id for run in runs if run.run_id in new]
        try:
            return await super().write(events, runs, new)
        finally:
            self.written()

    async def _pass(self, gate: asyncio.Event) -> None:
        if not gate.is_set():
            self.is_waiting.set()
        await gate.wait()
        if self.fails:
            raise StoreError("database or disk is full")


def written_by(writer: Writer, stored: StoredRun, **fields: Any) -> RunLedger:
    """The entry of a run that a writer follows."""
    facts = {"snapshot": lambda: stored, "remark": lambda *_: None, "lost": lambda: None} | fields
    run = RunLedger(stored, writer=writer, **facts)
    writer.backlog.add(run)
    return run


async def has_begun(run: RunLedger) -> bool:
    """Begin a run; False if its id is taken."""
    await run.begin()
    return not run.is_taken


@dataclass
class WriterHarness:
    """A writer at work, a run, and the notices that its readers got."""

    store: Failing
    writer: Writer
    notices: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def run(self, run_id: str = "r", owner: str = "one") -> RunLedger:
        state = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id=run_id))
        stored = StoredRun(run_id, 1.0, "process", state, owner=owner, lease_until=50.0)
        return written_by(
            self.writer,
            stored,
            remark=lambda code, _: self.notices.append(code),
            lost=lambda: self.lost.append(run_id),
        )

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so that the writer does or sees."""
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.backlog.written.until(reached)

    async def kept(self, run_id: str = "r") -> list[bytes | None]:
        """The events that the store has; ``None`` for each that was not kept."""
        found: list[bytes | None] = []
        after = 0
        while rows := await self.store.events(run_id, after):
            for row in rows:
                events = [None] * (row.last - row.first + 1) if row.events is None else row.events
                assert len(events) == row.last - row.first + 1
                assert row.first == after + 1
                found += events
                after = row.last
        return found

    async def stored(self, run_id: str = "r") -> StoredRun:
        found = await self.store.run(run_id)
        assert found is not None
        return found


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[WriterHarness]:
    store = Failing(database)
    await store.open()
    writer = Writer(store, waiting_bytes=1000)
    work = asyncio.ensure_future(writer.run())
    yield WriterHarness(store, writer)
    store.fails, store.written = False, lambda: None
    store.open_gate.set()
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()
