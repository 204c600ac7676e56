"""What the writer of the run log writes without waiting for more, as others wait for it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import Database
from dragoman.router.storage.logged import LoggedRun, RowState
from dragoman.router.storage.writer import Writer
from dragoman.v1 import router_pb2

from tests.router.store.writer_harness import DEADLINE_S, Failing, WriterHarness


@pytest.mark.parametrize(
    ("does", "hurries"),
    [
        (lambda writer, run: writer.begin(run), True),
        (lambda writer, run: writer.remove(run), True),
        (lambda writer, run: writer.over(run), True),
        (lambda writer, run: writer.flushed(run, DEADLINE_S), True),
        (lambda writer, _run: writer.flushed_all(DEADLINE_S), True),
        (lambda writer, run: writer.backlog.append(run, 1, b"e"), False),
        (lambda writer, run: writer.backlog.changed(run), False),
    ],
    ids=["begin", "remove", "over", "flushed", "flushed_all", "append", "changed"],
)
async def test_what_others_wait_for_is_urgent(does: Callable[[Writer, LoggedRun], Any], hurries: bool) -> None:
    store = Failing(cast("Database", None))
    writer = Writer(store, waiting_bytes=1000)
    run = WriterHarness(store, writer).run()
    writer.backlog.changed(run)
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
    store = Failing(cast("Database", None))
    writer = Writer(store, waiting_bytes=1000)
    row = StoredRun("r", 1.0, "fake", router_pb2.GetRunResponse(), owner="o", lease_until=2.0, logged=3, size=70)
    run = writer.follow(row, lambda: row, lambda _code, _text: None, lambda: None, is_begun=is_begun)
    assert (run.last, run.logged, run.size) == (3, 3, 70)
    assert run.state is (RowState.STORED if is_begun else RowState.NEW)
    assert writer.backlog.find("r") is run
