"""The writer of the run log: batches, marks, a store that fails, a run that another router took."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.router.model.stored import AHEAD, StoredRun
from dragoman.router.storage.database import Database, StoreError
from dragoman.router.storage.ledger import RunLedger
from dragoman.router.storage.logged import WRITE_BYTES
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.writer import Writer
from dragoman.v1 import router_pb2
from msgspec.structs import replace
from structlog.testing import capture_logs

from tests.router.store.writer_harness import DEADLINE_S, Failing, WriterHarness, has_begun


async def test_events_are_written_together(harness: WriterHarness) -> None:
    run = harness.run()
    assert await has_begun(run)
    for sequence in range(1, 51):
        run.append(sequence, b"%d" % sequence)
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"%d" % sequence for sequence in range(1, 51)]
    assert harness.store.writes <= 2
    stored = await harness.stored()
    assert (stored.logged, stored.size > 50) == (50, True)


async def test_waiting_for_the_log_does_not_wait_for_more_events(
    harness: WriterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.router.storage.writer.GATHER_S", 10 * DEADLINE_S)
    run = harness.run()
    assert await has_begun(run)
    run.append(1, b"one")
    assert await run.flushed(DEADLINE_S)
    run.append(2, b"two")
    run.over()
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"one", b"two"]


async def test_an_id_that_is_taken_is_reported(harness: WriterHarness) -> None:
    assert await has_begun(harness.run(owner="two"))
    assert not await has_begun(harness.run())


async def test_nothing_is_published_too_far_ahead_of_what_is_written(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    await asyncio.wait_for(run.may_publish(AHEAD), DEADLINE_S)
    harness.store.open_gate.clear()
    run.append(1, b"e")
    waiting = asyncio.ensure_future(run.may_publish(AHEAD + 1))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    assert not waiting.done()
    harness.store.open_gate.set()
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert (await harness.stored()).logged == 1


async def test_a_store_that_fails_is_reported_and_tried_again(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    harness.store.fails = True
    run.append(1, b"first")
    await harness.until(lambda: bool(harness.notices))
    assert not await run.flushed(0.3)
    assert harness.notices == ["log_unavailable"]
    assert "disk is full" in harness.writer.failing
    run.append(2, b"second")
    harness.store.fails = False
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"first", b"second"]
    assert harness.notices == ["log_unavailable", "log_recovered"]


async def test_a_run_that_began_while_the_store_failed_is_written_later(harness: WriterHarness) -> None:
    harness.store.fails = True
    run = harness.run()
    assert await has_begun(run)
    run.append(1, b"e")
    harness.store.fails = False
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"e"]
    assert not harness.lost


async def test_a_run_that_cannot_be_begun_keeps_no_other_from_being_written(
    harness: WriterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, write = harness.run("begun"), Failing.write
    assert await has_begun(begun)

    async def fail(store: Failing, events: Any, runs: Any, new: Any) -> list[str]:
        if "late" in new:
            raise StoreError("this one never", is_lasting=True)
        return await write(store, events, runs, new)

    monkeypatch.setattr(Failing, "write", fail)
    assert await has_begun(harness.run("late"))
    begun.append(1, b"e")
    assert await begun.flushed(DEADLINE_S)
    assert await harness.kept("begun") == [b"e"]


async def test_a_run_that_was_perhaps_begun_is_published_no_further_than_another_one(harness: WriterHarness) -> None:
    run = harness.run()
    harness.store.fails, harness.store.cut = True, True
    assert await has_begun(run)
    assert await harness.store.run("r") is not None, "it was, and the answer was lost"
    run.append(1, b"e")
    await asyncio.wait_for(run.may_publish(AHEAD), DEADLINE_S)
    waiting = asyncio.ensure_future(run.may_publish(AHEAD + 1))
    assert not await run.flushed(0.3)
    assert not waiting.done(), "the next owner may publish something else under that sequence"
    harness.store.fails = harness.store.cut = False
    await asyncio.wait_for(waiting, DEADLINE_S)


async def test_what_comes_behind_a_long_gap_may_be_published_once_the_gap_is_written(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    run.append(1, b"e")
    behind = 5 * AHEAD
    run.skip(behind - 1)
    await asyncio.wait_for(run.may_publish(behind), DEADLINE_S)
    run.append(behind, b"f")
    assert await run.flushed(DEADLINE_S)
    assert [(row.first, row.last, row.events is None) for row in await harness.store.events("r", 0)] == [
        (1, 1, False),
        (2, behind - 1, True),
        (behind, behind, False),
    ]


async def test_what_waits_is_bounded_and_what_was_let_go_is_a_gap(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    harness.store.fails = True
    for sequence in range(1, 31):
        run.append(sequence, b"x" * 100)
    assert run.waiting_bytes <= 1000
    harness.store.fails = False
    assert await run.flushed(DEADLINE_S)
    kept = await harness.kept()
    assert len(kept) == 30
    assert kept[:20] == [None] * 20
    assert kept[20:] == [b"x" * 100] * 10
    assert "log_gap" in harness.notices


async def test_who_brings_events_waits_while_many_wait_for_the_store(harness: WriterHarness) -> None:
    run, other = harness.run(), harness.run("other")
    for one in (run, other):
        await has_begun(one)
    harness.store.open_gate.clear()
    await asyncio.wait_for(run.may_publish(1), DEADLINE_S)
    run.append(1, b"x" * 200)
    await asyncio.wait_for(other.may_publish(1), DEADLINE_S)
    waiting = asyncio.ensure_future(run.may_publish(1))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    assert not waiting.done()
    run.append(2, b"x" * 400)
    others = asyncio.ensure_future(other.may_publish(1))
    await asyncio.sleep(0)
    assert not others.done(), "half of what may wait at all waits"
    harness.store.open_gate.set()
    await asyncio.wait_for(asyncio.gather(waiting, others), DEADLINE_S)
    assert await run.flushed(DEADLINE_S)
    assert harness.notices == []


@pytest.mark.parametrize("ends", ["fails", "hangs", "closes"])
async def test_no_reader_waits_for_a_store_that_does_not_write(
    harness: WriterHarness, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("dragoman.router.storage.ledger.STALLED_S", 0.1 if ends == "hangs" else 10 * DEADLINE_S)
    run = harness.run()
    await has_begun(run)
    harness.store.open_gate.clear()
    run.append(1, b"x" * 900)
    waiting = asyncio.ensure_future(run.may_publish(1))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    if ends == "fails":
        harness.store.fails = True
        harness.store.open_gate.set()
    elif ends == "closes":
        await harness.writer.close()
    await asyncio.wait_for(waiting, DEADLINE_S)


async def test_how_a_run_ended_is_never_let_go(harness: WriterHarness) -> None:
    run, other = harness.run(), harness.run("other")
    for one in (run, other):
        assert await has_begun(one)
    harness.store.fails = True
    run.append(1, b"x" * 400)
    run.over()
    run.append(2, b"x" * 700)
    other.append(1, b"y" * 600)
    other.append(2, b"z" * 100)
    harness.store.fails = False
    for one in (run, other):
        assert await one.flushed(DEADLINE_S)
    assert await harness.kept() == [None, b"x" * 700]
    assert await harness.kept("other") == [None, b"z" * 100]


async def test_a_run_that_no_database_can_keep_keeps_no_other_from_being_written(harness: WriterHarness) -> None:
    odd, run = harness.run("odd"), harness.run()
    for one in (odd, run):
        await has_begun(one)
    odd.append(2**63, b"e")
    run.append(1, b"e")
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"e"]
    assert harness.notices == ["log_gap"]
    odd.append(2**63 + 1, b"x" * 5000)
    assert odd.waiting_bytes == 0


async def test_a_run_that_no_database_can_begin_is_no_outage_for_the_others(
    harness: WriterHarness,
) -> None:
    run, odd = harness.run(), harness.run("odd\0")  # SQLite can
    await has_begun(run)
    assert await has_begun(odd)
    assert not harness.writer.failing
    odd.append(1, b"e")
    run.append(1, b"e")
    assert await odd.flushed(DEADLINE_S)
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"e"]
    assert not harness.writer.failing
    assert harness.notices in ([], ["log_gap"])


async def test_events_that_come_while_others_are_written_are_not_forgotten(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    harness.store.open_gate.clear()
    run.append(1, b"one")
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    run.append(2, b"two")
    harness.store.open_gate.set()
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"one", b"two"]


async def test_a_run_that_another_router_claimed_is_released(harness: WriterHarness) -> None:
    run, other = harness.run(), harness.run("other")
    await has_begun(run)
    await has_begun(other)
    (taken, _) = sorted(
        await harness.store.leases.claim("two", now=99.0, lease_until=200.0), key=lambda item: item.run_id == "other"
    )
    assert taken.run_id == "r"
    run.append(1, b"late")
    await asyncio.wait_for(_until(lambda: bool(harness.lost)), DEADLINE_S)
    assert harness.lost == ["r"]
    assert await harness.kept() == []


async def test_no_reader_waits_for_a_run_that_another_router_claimed(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    harness.store.open_gate.clear()
    run.append(1, b"late")
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    waiting = asyncio.ensure_future(run.may_publish(AHEAD + 1))
    written = asyncio.ensure_future(run.flushed(DEADLINE_S))
    await harness.store.leases.claim("two", now=99.0, lease_until=200.0)
    harness.store.open_gate.set()
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert harness.lost == ["r"], "the waiting publisher learns that another router owns it"
    assert not await asyncio.wait_for(written, DEADLINE_S / 2)
    await asyncio.wait_for(run.may_publish(9 * AHEAD), DEADLINE_S)
    assert not await asyncio.wait_for(run.flushed(DEADLINE_S), DEADLINE_S / 2)


async def test_no_reader_waits_for_a_run_that_cannot_be_written(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    harness.store.open_gate.clear()
    run.append(2**63, b"e")
    waiting = asyncio.ensure_future(run.may_publish(2**63))
    written = asyncio.ensure_future(run.flushed(DEADLINE_S))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    harness.store.open_gate.set()
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert await asyncio.wait_for(written, DEADLINE_S / 2), "nothing of it waits any more"
    assert harness.notices == ["log_gap"]


async def test_what_comes_meanwhile_is_not_waited_for(harness: WriterHarness) -> None:
    run, other = harness.run(), harness.run("other")
    for one in (run, other):
        await has_begun(one)
    # There is more to write whenever something was written.
    harness.store.written = lambda: other.append(other.last + 1, b"e")
    other.append(1, b"e")
    run.append(1, b"mine")
    assert await harness.writer.flushed(harness.writer.backlog, DEADLINE_S / 4)
    assert await harness.kept() == [b"mine"]
    rounds = harness.store.writes
    assert await other.flushed(DEADLINE_S / 4)
    assert harness.store.writes <= rounds + 2


async def test_a_run_that_is_over_is_written_to_its_end(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    run.append(1, b"result")
    run.over()
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"result"]


async def test_a_backlog_is_written_in_steps_and_no_run_waits_for_the_longest(database: Database) -> None:
    store, tried = Failing(database), []
    await store.open()
    writer = Writer(store)
    work = asyncio.ensure_future(writer.run())
    harness = WriterHarness(store, writer)
    run, other = harness.run(), harness.run("other")
    for one in (run, other):
        await has_begun(one)
    store.open_gate.clear()
    for sequence in range(1, 65):
        run.append(sequence, bytes(WRITE_BYTES // 16))
    state = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id="r", adapter="over"))
    over = replace(await harness.stored(), state=state, finished_at=7.0)
    run.snapshot = lambda: over
    run.over()
    await asyncio.wait_for(store.is_waiting.wait(), DEADLINE_S)  # the first step is begun
    other.append(1, b"e")

    def note() -> None:
        tried.append((run.logged, run.stored.finished_at, other.logged))

    store.written = note
    store.open_gate.set()
    assert await run.flushed(DEADLINE_S)
    assert [len(row) for row in [await harness.kept(), await harness.kept("other")]] == [64, 1]
    # What was known before each step, of which the first had been begun: the other run came with the next one, and
    # the end with the last one.
    assert len(tried) >= 64 // 16
    assert all(finished is None for _, finished, _ in tried)
    assert [other_logged for _, _, other_logged in tried] == [0, 0, *([1] * (len(tried) - 2))]
    assert (await harness.stored()).finished_at == 7.0
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()


async def test_a_run_that_began_and_ended_while_the_store_failed_is_not_over_before_its_events_are_there(
    database: Database,
) -> None:
    store, seen = Failing(database), []
    await store.open()
    writer = Writer(store)
    harness = WriterHarness(store, writer)
    work = asyncio.ensure_future(writer.run())
    run = harness.run()
    store.fails = True
    assert await has_begun(run)
    for sequence in range(1, 33):
        run.append(sequence, bytes(WRITE_BYTES // 16))
    over = replace(run.stored, finished_at=7.0)
    run.snapshot = lambda: over
    run.over()
    store.written = lambda: seen.append((run.logged, run.stored.finished_at))
    store.fails = False
    assert await run.flushed(DEADLINE_S)
    assert len(seen) > 1
    assert all(finished is None for _logged, finished in seen), "as it was known before each step"
    assert ((await harness.stored()).finished_at, (await harness.stored()).logged) == (7.0, 32)
    await writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    await store.close()


async def test_a_run_that_is_over_before_it_began_is_written_too(harness: WriterHarness) -> None:
    run = harness.run()
    run.append(1, b"result")
    run.over()
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"result"]


async def test_nothing_of_a_run_is_written_while_it_is_begun(harness: WriterHarness) -> None:
    run = harness.run()
    harness.store.open_gate.clear()
    beginning = asyncio.ensure_future(has_begun(run))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    run.append(1, b"result")
    run.over()
    assert not await run.flushed(0.1), "it is not there yet"
    harness.store.open_gate.set()
    assert await asyncio.wait_for(beginning, DEADLINE_S)
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"result"]
    assert not harness.lost, "no router claimed it"


async def removed(harness: WriterHarness, run: RunLedger) -> bool:
    """Wait until a run that never was is forgotten; False if something is left of it."""
    run_id = run.stored.run_id
    assert await run.flushed(DEADLINE_S)
    assert not harness.writer.backlog.is_removing(run_id)
    assert not harness.lost
    return await harness.store.run(run_id) is None and await harness.store.events(run_id, 0) == []


async def test_a_run_that_is_refused_while_it_is_begun_is_forgotten(harness: WriterHarness) -> None:
    run = harness.run()
    harness.store.open_gate.clear()
    beginning = asyncio.ensure_future(has_begun(run))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    run.over()
    run.remove()
    other = harness.run("other")
    other.over()
    assert not await other.flushed(0.1), "it is begun after"
    assert harness.writer.backlog.is_removing("r")
    harness.store.open_gate.set()
    await asyncio.wait_for(beginning, DEADLINE_S)
    assert harness.store.begun[0] == "r"
    assert await removed(harness, run)


async def test_runs_that_are_refused_together_are_forgotten_without_a_failure(harness: WriterHarness) -> None:
    with capture_logs() as logs:
        runs = [harness.run(run_id) for run_id in ("r", "s", "t")]
        for run in runs:
            await has_begun(run)
            run.over()
            run.remove()
        for run in runs:
            assert await removed(harness, run)
    assert logs == []


async def test_a_run_that_is_refused_while_it_is_written_is_forgotten(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    harness.store.open_gate.clear()
    run.append(1, b"e")
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    run.over()
    run.remove()
    assert harness.writer.backlog.is_removing("r")
    harness.store.open_gate.set()
    assert await removed(harness, run)


async def test_a_run_that_is_refused_before_it_began_late_is_not_begun(harness: WriterHarness) -> None:
    run, other = harness.run(), harness.run("other")
    harness.store.fails = True
    for one in (run, other):
        assert await has_begun(one)
    harness.store.begun.clear()
    run.over()
    run.remove()
    harness.store.fails = False
    assert await other.flushed(DEADLINE_S)
    assert harness.store.begun == ["other"]
    assert await removed(harness, run)


async def test_a_run_that_is_refused_while_it_begins_late_with_others_is_forgotten(harness: WriterHarness) -> None:
    first, run = harness.run("first"), harness.run()
    harness.store.fails = True
    for one in (first, run):
        assert await has_begun(one)
    harness.store.begun.clear()
    harness.store.open_gate.clear()
    harness.store.fails = False
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    run.over()
    run.remove()
    harness.store.open_gate.set()
    assert await first.flushed(DEADLINE_S)
    assert harness.store.begun == ["first", "r"]
    assert await removed(harness, run)


async def test_runs_that_are_refused_before_they_were_written_cost_the_store_nothing(harness: WriterHarness) -> None:
    assert await has_begun(harness.run("live"))
    before = harness.run("r").stored
    await harness.store.begin(replace(before, finished_at=2.0))  # one that no adapter had: its ID is free
    harness.store.fails = True  # a statement would be tried again and again
    for run_id in ("r", "s", "t"):
        run = harness.run(run_id)
        run.changed()
        run.over()
        run.remove()
        assert await run.flushed(0.0)
        assert not harness.writer.backlog.is_removing(run_id)
    assert [run.stored.run_id for run in harness.writer.backlog] == ["live"]
    assert harness.writer.backlog.due() == []
    harness.store.fails = False
    assert (await harness.stored("r")).finished_at == 2.0


async def test_what_another_owner_keeps_by_the_id_of_a_refused_run_stays(harness: WriterHarness) -> None:
    assert await has_begun(harness.run(owner="two"))
    run = harness.run()
    assert not await has_begun(run)
    run.over()
    run.remove()
    assert await run.flushed(DEADLINE_S)
    assert (await harness.stored()).owner == "two"


@pytest.mark.parametrize("fails", [False, True])
async def test_the_id_of_a_run_that_was_refused_may_be_used_again(harness: WriterHarness, *, fails: bool) -> None:
    refused = harness.run()
    await has_begun(refused)
    harness.store.open_gate.clear()
    harness.store.fails = fails
    refused.over()
    refused.remove()
    run = harness.run()
    beginning = asyncio.ensure_future(has_begun(run))
    await asyncio.wait_for(harness.store.is_waiting.wait(), DEADLINE_S)
    assert not beginning.done(), "what is about to be removed is not this one"
    harness.store.open_gate.set()
    assert await asyncio.wait_for(beginning, DEADLINE_S)
    harness.store.fails = False
    run.append(1, b"e")
    assert await run.flushed(DEADLINE_S)
    assert await harness.kept() == [b"e"]


async def test_closing_writes_what_waits(tmp_path: Path) -> None:
    store = Failing(SqliteDatabase(tmp_path / "runs.db"))
    await store.open()
    harness = WriterHarness(store, Writer(store))
    work = asyncio.ensure_future(harness.writer.run())
    run = harness.run()
    await has_begun(run)
    run.append(1, b"e")
    await harness.writer.close()
    await asyncio.wait_for(work, DEADLINE_S)
    assert await harness.kept() == [b"e"]
    await store.close()


async def _until(condition: object) -> None:
    assert callable(condition)
    while not condition():  # noqa: ASYNC110 - what changes it knows of no event
        await asyncio.sleep(0.01)


async def test_the_row_of_a_run_is_written_when_it_changed_and_not_with_every_event(harness: WriterHarness) -> None:
    run = harness.run()
    await has_begun(run)
    snapshot, asked = run.snapshot, []

    def counted() -> StoredRun:
        asked.append(run.last)
        return snapshot()

    run.snapshot = counted
    for sequence in range(1, 4):
        run.append(sequence, b"text", changes_row=False)
        assert await run.flushed(DEADLINE_S)
    stored = await harness.stored()
    assert (stored.logged, stored.state.run.last_sequence) == (3, 3)
    assert 12 <= stored.size <= 15, "as events, or as rows of them"
    assert asked == []
    run.append(4, b"state")
    run.append(5, b"text", changes_row=False)
    assert await run.flushed(DEADLINE_S)
    assert asked == [5]


async def test_what_came_after_an_insertion_whose_answer_was_lost_is_in_the_row_too(harness: WriterHarness) -> None:
    run = harness.run()
    run.append(1, b"one")
    harness.store.fails = harness.store.cut = True
    assert await has_begun(run)
    assert (await harness.stored()).logged == 1, "it was inserted, and the answer was lost"
    run.append(2, b"two")
    harness.store.fails = harness.store.cut = False
    assert await run.flushed(DEADLINE_S)
    assert ((await harness.stored()).logged, await harness.kept()) == (2, [b"one", b"two"])
