"""What the writer of the run log writes without waiting for more, as others wait for it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from dragoman.router.model.assignment import Unassigned
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import Database
from dragoman.router.storage.ledger import RunLedger
from dragoman.router.storage.logged import RowState
from dragoman.router.storage.retention import RetentionPolicy
from dragoman.router.storage.run_log import RunLog
from dragoman.router.storage.writer import Writer
from dragoman.router.system import SystemClock
from dragoman.v1 import router_pb2

from tests.router.store.writer_harness import DEADLINE_S, Failing, WriterHarness, has_begun


@pytest.mark.parametrize(
    ("does", "hurries"),
    [
        (lambda writer, run: has_begun(run), True),
        (lambda writer, run: run.remove(), True),
        (lambda writer, run: run.over(), True),
        (lambda writer, run: run.flushed(DEADLINE_S), True),
        (lambda writer, _run: writer.flushed(writer.backlog, DEADLINE_S), True),
        (lambda writer, run: run.append(1, b"e"), False),
        (lambda writer, run: run.changed(), False),
    ],
    ids=["begin", "remove", "over", "flushed", "flushed_all", "append", "changed"],
)
async def test_what_others_wait_for_is_urgent(does: Callable[[Writer, RunLedger], Any], hurries: bool) -> None:
    store = Failing(cast("Database", None))
    writer = Writer(store, waiting_bytes=1000)
    run = WriterHarness(store, writer).run()
    run.changed()
    writer.backlog.work.clear()
    done = does(writer, run)
    waits = asyncio.ensure_future(done) if asyncio.iscoroutine(done) else None
    for _ in range(3):
        await asyncio.sleep(0)
    assert writer.backlog.work.is_set()
    assert writer.backlog.hurry.is_set() == hurries
    if waits is not None:
        waits.cancel()


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_run_is_written_on_from_where_the_store_has_it(is_begun: bool) -> None:
    log = RunLog(Failing(cast("Database", None)), SystemClock(), "o", kept=RetentionPolicy(1.0, 1))
    row = StoredRun("r", 1.0, "fake", router_pb2.GetRunResponse(), owner="o", lease_until=2.0, logged=3, size=70)
    record = RunRecord("r", "fake", 1.0)
    run = log.follow(record, Unassigned, lambda _code, _text: None, lambda: None, row if is_begun else None)
    assert (run.last, run.logged, run.size) == ((3, 3, 70) if is_begun else (0, 0, 0))
    assert run.state is (RowState.STORED if is_begun else RowState.NEW)
    assert log.writer.backlog.find("r") is run


async def test_what_waits_for_a_run_does_not_wait_for_its_refusal() -> None:
    store = Failing(cast("Database", None))
    writer = Writer(store, waiting_bytes=1000)  # it does not run: nothing else ends the wait
    run = WriterHarness(store, writer).run()
    run.changed()
    waiting = asyncio.ensure_future(run.flushed(DEADLINE_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    run.remove()
    assert await waiting
