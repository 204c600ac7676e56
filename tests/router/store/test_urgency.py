"""What the writer of the run log writes without waiting for more, as others wait for it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from dragoman.router.storage.database import Database
from dragoman.router.storage.logged import LoggedRun
from dragoman.router.storage.writer import Writer

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
