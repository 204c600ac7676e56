"""When the writer of the run log writes events, and in which steps: those of many runs together."""

import asyncio

import pytest
from dragoman.router.model.stored import AHEAD
from dragoman.router.storage.database import Database
from dragoman.router.storage.logged import NOTED
from dragoman.router.storage.writer import Writer

from tests.router.store.writer_harness import DEADLINE_S, Failing, WriterHarness, has_begun


async def test_events_wait_for_more_of_them_but_no_longer_than_another_change(
    harness: WriterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.router.storage.writer.EVENTS_S", 10 * DEADLINE_S)
    run, other = harness.run(), harness.run("other")
    for one in (run, other):
        assert await has_begun(one)
    run.append(1, b"one", changes_row=False)
    run.append(2, b"two", changes_row=False)
    writes = harness.store.writes
    other.changed()
    await harness.until(lambda: run.logged == 2)
    assert harness.store.writes == writes + 1


async def test_many_runs_are_written_in_steps_and_first_what_others_may_wait_for(
    harness: WriterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("backlog", "writer"):
        monkeypatch.setattr(f"dragoman.router.storage.{module}.WRITE_RUNS", 2)
    runs = [harness.run(f"r{number}") for number in range(5)]
    for run in runs:
        assert await has_begun(run)
    steps: list[set[str]] = []
    harness.store.written = lambda: steps.append({run.stored.run_id for run in runs if run.logged})
    harness.store.open_gate.clear()
    late = harness.run("late")
    beginning = asyncio.ensure_future(has_begun(late))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    for run in reversed(runs):
        run.append(1, b"e", changes_row=run is runs[4])
    harness.store.open_gate.set()
    assert await asyncio.wait_for(beginning, DEADLINE_S)
    assert await harness.writer.flushed(harness.writer.backlog, DEADLINE_S)
    # What was known before each of them; the first had been begun.
    assert steps == [set(), set(), {"r4", "r0"}, {"r4", "r0", "r1", "r2"}]


async def test_a_run_is_published_no_further_ahead_than_a_router_of_an_earlier_version_knows(
    database: Database,
) -> None:
    store = Failing(database)
    await store.open()
    writer = Writer(store)
    work = asyncio.ensure_future(writer.run())
    run = WriterHarness(store, writer).run()
    await has_begun(run)
    for sequence in range(1, NOTED + 2):
        run.append(sequence, b"", changes_row=False)
        if sequence >= NOTED:
            assert await run.flushed(DEADLINE_S)
            assert [run.is_ready(AHEAD + more) for more in (0, 1)] == [True, sequence > NOTED]
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()
