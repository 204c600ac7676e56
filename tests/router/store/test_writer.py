"""The writer of the run log: batches, marks, a store that fails, a run that another router took."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from dragoman.router._domain.reservation import STEP, next_reserved
from dragoman.router._domain.stored import StoredEvents, StoredRun
from dragoman.router._store.batches import unpack
from dragoman.router._store.database import Database, StoreError
from dragoman.router._store.logged import ROW_BYTES, WRITE_BYTES
from dragoman.router._store.sqlite import SqliteDatabase
from dragoman.router._store.store import Store
from dragoman.router._store.writer import LoggedRun, Writer
from dragoman.v1 import router_pb2
from hypothesis import given
from hypothesis import strategies as st

DEADLINE_S = 20.0


class Failing(Store):
    """A store that fails when it is told to, and waits when it is told to."""

    fails = False
    cut = False
    """Whether what fails was done, and nobody heard of it."""
    writes = 0

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.gate_of_new = asyncio.Event()
        self.gate_of_new.set()
        self.begun: list[str] = []
        self.is_waiting = asyncio.Event()
        self.written: Callable[[], object] = lambda: None

    async def begin(self, run: StoredRun) -> bool:
        if self.cut:
            await super().begin(run)
        await self._pass(self.gate_of_new)
        self.begun.append(run.run_id)
        return await super().begin(run)

    async def remove(self, run_id: str, owner: str) -> None:
        await self._pass(self.open_gate)
        await super().remove(run_id, owner)

    async def write(self, events: Sequence[StoredEvents], runs: Sequence[StoredRun]) -> list[str]:
        await self._pass(self.open_gate)
        self.writes += 1
        try:
            return await super().write(events, runs)
        finally:
            self.written()

    async def _pass(self, gate: asyncio.Event) -> None:
        if not gate.is_set():
            self.is_waiting.set()
        await gate.wait()
        if self.fails:
            raise StoreError("database or disk is full", is_perhaps_done=self.cut)


@dataclass
class Desk:
    """A writer at work, a run, and what its followers were told."""

    store: Failing
    writer: Writer
    told: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def run(self, run_id: str = "r", owner: str = "one") -> LoggedRun:
        state = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id=run_id))
        stored = StoredRun(run_id, 1.0, "process", state, reserved=0, owner=owner, lease_until=50.0)
        return self.writer.follow(
            stored,
            lambda: stored,
            lambda code, _: self.told.append(code),
            lambda: self.lost.append(run_id),
            is_begun=False,
        )

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so that the writer does or sees."""
        async with asyncio.timeout(DEADLINE_S), self.writer._written:
            await self.writer._written.wait_for(reached)

    async def kept(self, run_id: str = "r") -> list[bytes | None]:
        """The events that the store has; ``None`` for each that was not kept."""
        found: list[bytes | None] = []
        after = 0
        while rows := await self.store.events(run_id, after):
            for row in rows:
                events = [None] * (row.last - row.first + 1) if row.data is None else list(unpack(row.data))
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
async def desk(database: Database) -> AsyncIterator[Desk]:
    store = Failing(database)
    await store.open()
    writer = Writer(store, waiting_bytes=1000)
    work = asyncio.ensure_future(writer.run())
    yield Desk(store, writer)
    store.fails, store.written = False, lambda: None
    store.open_gate.set()
    store.gate_of_new.set()
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()


async def test_events_are_written_together(desk: Desk) -> None:
    run = desk.run()
    assert await desk.writer.begin(run)
    for sequence in range(1, 51):
        desk.writer.append(run, sequence, b"%d" % sequence)
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"%d" % sequence for sequence in range(1, 51)]
    assert desk.store.writes <= 2
    stored = await desk.stored()
    assert (stored.logged, stored.size > 50) == (50, True)


async def test_an_id_that_is_taken_is_told(desk: Desk) -> None:
    assert await desk.writer.begin(desk.run(owner="two"))
    assert not await desk.writer.begin(desk.run())


async def test_no_sequence_is_told_before_its_mark_is_written(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    assert (await desk.stored()).reserved == STEP
    await asyncio.wait_for(desk.writer.reserved(run, STEP), DEADLINE_S)
    desk.store.open_gate.clear()
    desk.writer.append(run, STEP + 1, b"e")
    waiting = asyncio.ensure_future(desk.writer.reserved(run, STEP + 1))
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    assert not waiting.done()
    desk.store.open_gate.set()
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert (await desk.stored()).reserved > STEP


async def test_a_store_that_fails_is_told_and_tried_again(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.store.fails = True
    desk.writer.append(run, 1, b"first")
    await desk.until(lambda: bool(desk.told))
    assert not await desk.writer.flushed(run, 0.3)
    assert desk.told == ["log_unavailable"]
    assert "disk is full" in desk.writer.failing
    desk.writer.append(run, 2, b"second")
    desk.store.fails = False
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"first", b"second"]
    assert desk.told == ["log_unavailable", "log_recovered"]


async def test_a_run_that_began_while_the_store_failed_is_written_later(desk: Desk) -> None:
    desk.store.fails = True
    run = desk.run()
    assert await desk.writer.begin(run)
    desk.writer.append(run, 1, b"e")
    await asyncio.wait_for(desk.writer.reserved(run, 50 * STEP), DEADLINE_S)  # nobody could mistake it for another
    desk.store.fails = False
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"e"]
    assert not desk.lost


async def test_a_run_that_cannot_be_begun_keeps_no_other_from_being_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = desk.run("begun")
    assert await desk.writer.begin(begun)

    async def fail(_store: Store, _run: StoredRun) -> bool:
        raise StoreError("not now")

    monkeypatch.setattr(Failing, "begin", fail)
    assert await desk.writer.begin(desk.run("late"))
    desk.writer.append(begun, 1, b"e")
    assert await desk.writer.flushed(begun, DEADLINE_S)
    assert await desk.kept("begun") == [b"e"]


async def test_a_run_that_was_perhaps_begun_is_told_no_further_than_its_mark(desk: Desk) -> None:
    run = desk.run()
    desk.store.fails, desk.store.cut = True, True
    assert await desk.writer.begin(run)
    assert await desk.store.run("r") is not None, "it was, and nobody heard of it"
    for sequence in (1, 2 * STEP):
        desk.writer.append(run, sequence, b"e")
    await asyncio.wait_for(desk.writer.reserved(run, STEP), DEADLINE_S)
    waiting = asyncio.ensure_future(desk.writer.reserved(run, 2 * STEP))
    assert not await desk.writer.flushed(run, 0.3)
    assert not waiting.done(), "who takes it over may tell something else by that sequence"
    desk.store.fails = desk.store.cut = False
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert (await desk.stored()).reserved >= 2 * STEP


async def test_what_comes_behind_a_long_gap_may_be_told_once_its_mark_is_written(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.writer.append(run, 1, b"e")
    behind = 5 * STEP
    await asyncio.wait_for(desk.writer.reserved(run, behind), DEADLINE_S)
    assert (await desk.stored()).reserved >= behind
    desk.writer.append(run, behind, b"f")
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert [(row.first, row.last, row.data is None) for row in await desk.store.events("r", 0)] == [
        (1, 1, False),
        (2, behind - 1, True),
        (behind, behind, False),
    ]


async def test_what_waits_is_bounded_and_what_was_let_go_is_a_gap(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.store.fails = True
    for sequence in range(1, 31):
        desk.writer.append(run, sequence, b"x" * 100)
    assert run.waiting_bytes <= 1000
    desk.store.fails = False
    assert await desk.writer.flushed(run, DEADLINE_S)
    kept = await desk.kept()
    assert len(kept) == 30
    assert kept[:20] == [None] * 20
    assert kept[20:] == [b"x" * 100] * 10
    assert "log_gap" in desk.told


async def test_how_a_run_ended_is_never_let_go(desk: Desk) -> None:
    run, other = desk.run(), desk.run("other")
    for one in (run, other):
        assert await desk.writer.begin(one)
    desk.store.fails = True
    desk.writer.append(run, 1, b"x" * 400)
    desk.writer.over(run)
    desk.writer.append(run, 2, b"x" * 700)
    desk.writer.append(other, 1, b"y" * 600)
    desk.writer.append(other, 2, b"z" * 100)
    desk.store.fails = False
    for one in (run, other):
        assert await desk.writer.flushed(one, DEADLINE_S)
    assert await desk.kept() == [None, b"x" * 700]
    assert await desk.kept("other") == [None, b"z" * 100]


async def test_a_run_that_no_database_can_keep_keeps_no_other_from_being_written(desk: Desk) -> None:
    odd, run = desk.run("odd"), desk.run()
    for one in (odd, run):
        await desk.writer.begin(one)
    desk.writer.append(odd, 2**63, b"e")
    desk.writer.append(run, 1, b"e")
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"e"]
    assert desk.told == ["log_gap"]
    desk.writer.append(odd, 2**63 + 1, b"x" * 5000)
    assert odd.waiting_bytes == 0


async def test_a_run_that_no_database_can_begin_lets_no_other_be_told_that_the_log_fails(desk: Desk) -> None:
    run, odd = desk.run(), desk.run("odd\0")  # SQLite can
    await desk.writer.begin(run)
    assert await desk.writer.begin(odd)
    assert not desk.writer.failing
    desk.writer.append(odd, 1, b"e")
    desk.writer.append(run, 1, b"e")
    assert await desk.writer.flushed(odd, DEADLINE_S)
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"e"]
    assert not desk.writer.failing
    assert desk.told in ([], ["log_gap"])


async def test_events_that_come_while_others_are_written_are_not_forgotten(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.store.open_gate.clear()
    desk.writer.append(run, 1, b"one")
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    desk.writer.append(run, 2, b"two")
    desk.store.open_gate.set()
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"one", b"two"]


async def test_a_run_that_another_router_took_is_given_up(desk: Desk) -> None:
    run, other = desk.run(), desk.run("other")
    await desk.writer.begin(run)
    await desk.writer.begin(other)
    (taken, _) = sorted(
        await desk.store.claim("two", now=99.0, lease_until=200.0), key=lambda item: item.run_id == "other"
    )
    assert taken.run_id == "r"
    desk.writer.append(run, 1, b"late")
    await asyncio.wait_for(_until(lambda: bool(desk.lost)), DEADLINE_S)
    assert desk.lost == ["r"]
    assert await desk.kept() == []


async def test_nobody_waits_for_a_run_that_another_router_took(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.store.open_gate.clear()
    desk.writer.append(run, STEP + 1, b"late")
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    told = asyncio.ensure_future(desk.writer.reserved(run, STEP + 1))
    written = asyncio.ensure_future(desk.writer.flushed(run, DEADLINE_S))
    await desk.store.claim("two", now=99.0, lease_until=200.0)
    desk.store.open_gate.set()
    await asyncio.wait_for(told, DEADLINE_S)
    assert desk.lost == ["r"], "who waited to tell it knows that it is another's"
    assert not await asyncio.wait_for(written, DEADLINE_S / 2)
    await asyncio.wait_for(desk.writer.reserved(run, 9 * STEP), DEADLINE_S)
    assert not await asyncio.wait_for(desk.writer.flushed(run, DEADLINE_S), DEADLINE_S / 2)


async def test_nobody_waits_for_a_run_that_cannot_be_kept(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.store.open_gate.clear()
    desk.writer.append(run, 2**63, b"e")
    told = asyncio.ensure_future(desk.writer.reserved(run, 2**63))
    written = asyncio.ensure_future(desk.writer.flushed(run, DEADLINE_S))
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    desk.store.open_gate.set()
    await asyncio.wait_for(told, DEADLINE_S)
    assert await asyncio.wait_for(written, DEADLINE_S / 2), "nothing of it waits any more"
    assert desk.told == ["log_gap"]


async def test_what_comes_meanwhile_is_not_waited_for(desk: Desk) -> None:
    run, other = desk.run(), desk.run("other")
    for one in (run, other):
        await desk.writer.begin(one)
    # There is more to write whenever something was written.
    desk.store.written = lambda: desk.writer.append(other, other.last + 1, b"e")
    desk.writer.append(other, 1, b"e")
    desk.writer.append(run, 1, b"mine")
    assert await desk.writer.flushed_all(DEADLINE_S / 4)
    assert await desk.kept() == [b"mine"]
    rounds = desk.store.writes
    assert await desk.writer.flushed(other, DEADLINE_S / 4)
    assert desk.store.writes <= rounds + 2


async def test_a_run_that_is_over_is_written_to_its_end(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.writer.append(run, 1, b"result")
    desk.writer.over(run)
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"result"]


async def test_a_backlog_is_written_in_steps_and_nobody_waits_for_the_longest(database: Database) -> None:
    store, tried = Failing(database), []
    await store.open()
    writer = Writer(store)
    work = asyncio.ensure_future(writer.run())
    desk = Desk(store, writer)
    run, other = desk.run(), desk.run("other")
    for one in (run, other):
        await writer.begin(one)
    store.open_gate.clear()
    for sequence in range(1, 65):
        writer.append(run, sequence, bytes(ROW_BYTES // 2))
    state = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id="r", adapter="over"))
    over = replace(await desk.stored(), state=state, finished_at=7.0)
    run.snapshot = lambda: over
    writer.over(run)
    await asyncio.wait_for(store.is_waiting.wait(), DEADLINE_S)  # the first step is begun
    writer.append(other, 1, b"e")

    def note() -> None:
        tried.append((run.stored.logged, run.stored.finished_at, other.stored.logged))

    store.written = note
    store.open_gate.set()
    assert await writer.flushed(run, DEADLINE_S)
    assert [len(row) for row in [await desk.kept(), await desk.kept("other")]] == [64, 1]
    # What was known before each step, of which the first had been begun: the other run came with the next one, and
    # the end with the last one.
    assert len(tried) >= 64 * ROW_BYTES // 2 // WRITE_BYTES
    assert all(finished is None for _, finished, _ in tried)
    assert [other_logged for _, _, other_logged in tried] == [0, 0, *([1] * (len(tried) - 2))]
    assert (await desk.stored()).finished_at == 7.0
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()


async def test_a_run_that_began_and_ended_while_the_store_failed_is_not_over_before_its_events_are_there(
    database: Database,
) -> None:
    store, seen = Failing(database), []
    await store.open()
    writer = Writer(store)
    desk = Desk(store, writer)
    work = asyncio.ensure_future(writer.run())
    run = desk.run()
    store.fails = True
    assert await writer.begin(run)
    for sequence in range(1, 33):
        writer.append(run, sequence, bytes(ROW_BYTES // 2))
    over = replace(run.stored, finished_at=7.0)
    run.snapshot = lambda: over
    writer.over(run)
    store.written = lambda: seen.append((run.stored.logged, run.stored.finished_at))
    store.fails = False
    assert await writer.flushed(run, DEADLINE_S)
    assert len(seen) > 1
    assert all(finished is None for _logged, finished in seen), "as it was known before each step"
    assert ((await desk.stored()).finished_at, (await desk.stored()).logged) == (7.0, 32)
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()


async def test_a_run_that_is_over_before_it_began_is_written_too(desk: Desk) -> None:
    run = desk.run()
    desk.writer.append(run, 1, b"result")
    desk.writer.over(run)
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"result"]


async def test_nothing_of_a_run_is_written_while_it_is_begun(desk: Desk) -> None:
    run = desk.run()
    desk.store.gate_of_new.clear()
    beginning = asyncio.ensure_future(desk.writer.begin(run))
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    desk.writer.append(run, 1, b"result")
    desk.writer.over(run)
    assert not await desk.writer.flushed(run, 0.1), "it is not there yet"
    desk.store.gate_of_new.set()
    assert await asyncio.wait_for(beginning, DEADLINE_S)
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"result"]
    assert not desk.lost, "nobody took it"


async def removed(desk: Desk, run_id: str = "r") -> bool:
    """Wait until a run that never was is forgotten; False if something is left of it."""
    await asyncio.wait_for(desk.writer.removed(run_id), DEADLINE_S)
    assert not desk.writer.is_removing(run_id)
    assert not desk.lost
    return await desk.store.run(run_id) is None and await desk.store.events(run_id, 0) == []


async def test_a_run_that_is_refused_while_it_is_begun_is_forgotten(desk: Desk) -> None:
    run = desk.run()
    desk.store.gate_of_new.clear()
    beginning = asyncio.ensure_future(desk.writer.begin(run))
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    desk.writer.over(run)
    desk.writer.remove("r", "one")
    other = desk.run("other")
    desk.writer.over(other)
    assert not await desk.writer.flushed(other, 0.1), "it is begun after"
    assert desk.writer.is_removing("r")
    desk.store.gate_of_new.set()
    await asyncio.wait_for(beginning, DEADLINE_S)
    assert desk.store.begun[0] == "r"
    assert await removed(desk)


async def test_a_run_that_is_refused_while_it_is_written_is_forgotten(desk: Desk) -> None:
    run = desk.run()
    await desk.writer.begin(run)
    desk.store.open_gate.clear()
    desk.writer.append(run, 1, b"e")
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    desk.writer.over(run)
    desk.writer.remove("r", "one")
    assert desk.writer.is_removing("r")
    desk.store.open_gate.set()
    assert await removed(desk)


async def test_a_run_that_is_refused_before_it_began_late_is_not_begun(desk: Desk) -> None:
    run, other = desk.run(), desk.run("other")
    desk.store.fails = True
    for one in (run, other):
        assert await desk.writer.begin(one)
    desk.store.begun.clear()
    desk.writer.over(run)
    desk.writer.remove("r", "one")
    desk.store.fails = False
    assert await desk.writer.flushed(other, DEADLINE_S)
    assert desk.store.begun == ["other"]
    assert await removed(desk)


async def test_a_run_that_is_refused_while_others_begin_late_is_not_begun(desk: Desk) -> None:
    first, run = desk.run("first"), desk.run()
    desk.store.fails = True
    for one in (first, run):
        assert await desk.writer.begin(one)
    desk.store.begun.clear()
    desk.store.gate_of_new.clear()
    desk.store.fails = False
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    desk.writer.over(run)
    desk.writer.remove("r", "one")
    desk.store.gate_of_new.set()
    assert await desk.writer.flushed(first, DEADLINE_S)
    assert desk.store.begun == ["first"]
    assert await removed(desk)


async def test_what_another_owner_keeps_by_the_id_of_a_refused_run_stays(desk: Desk) -> None:
    assert await desk.writer.begin(desk.run(owner="two"))
    run = desk.run()
    assert not await desk.writer.begin(run)
    desk.writer.over(run)
    desk.writer.remove("r", "one")
    await asyncio.wait_for(desk.writer.removed("r"), DEADLINE_S)
    assert (await desk.stored()).owner == "two"


@pytest.mark.parametrize("fails", [False, True])
async def test_the_id_of_a_run_that_was_refused_may_be_used_again(desk: Desk, *, fails: bool) -> None:
    refused = desk.run()
    await desk.writer.begin(refused)
    desk.store.open_gate.clear()
    desk.store.fails = fails
    desk.writer.over(refused)
    desk.writer.remove("r", "one")
    run = desk.run()
    beginning = asyncio.ensure_future(desk.writer.begin(run))
    await asyncio.wait_for(desk.store.is_waiting.wait(), DEADLINE_S)
    assert not beginning.done(), "what is about to be removed is not this one"
    desk.store.open_gate.set()
    assert await asyncio.wait_for(beginning, DEADLINE_S)
    desk.store.fails = False
    desk.writer.append(run, 1, b"e")
    assert await desk.writer.flushed(run, DEADLINE_S)
    assert await desk.kept() == [b"e"]


async def test_closing_writes_what_waits(tmp_path: Path) -> None:
    store = Failing(SqliteDatabase(tmp_path / "runs.db"))
    await store.open()
    desk = Desk(store, Writer(store))
    work = asyncio.ensure_future(desk.writer.run())
    run = desk.run()
    await desk.writer.begin(run)
    desk.writer.append(run, 1, b"e")
    await desk.writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    assert await desk.kept() == [b"e"]
    await store.close()


async def _until(condition: object) -> None:
    assert callable(condition)
    while not condition():  # noqa: ASYNC110 - what changes it knows of no event
        await asyncio.sleep(0.01)


@given(st.lists(st.integers(1, 30_000)))
def test_a_mark_is_always_ahead_and_never_goes_back(steps: list[int]) -> None:
    reserved, last = STEP, 0
    for step in steps:
        last += step
        following = next_reserved(reserved, last)
        assert following >= max(reserved, last)
        reserved = following


def test_a_mark_moves_rarely() -> None:
    marks, reserved = 0, STEP
    for last in range(1, 100_001):
        following = next_reserved(reserved, last)
        marks += following != reserved
        reserved = following
    assert marks <= 20
