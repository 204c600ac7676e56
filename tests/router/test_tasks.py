"""Waiting for one of several things, for conditions, and tasks in the background: what ends with what."""

import asyncio
import contextvars

import pytest
from dragoman.router.model.tasks import Changes, Conditions, Tasks, first_of
from structlog.testing import capture_logs

from tests.sdk.running import travel

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="")


@pytest.mark.parametrize("timeout_s", [None, 5.0])
async def test_what_is_not_first_is_ended(timeout_s: float | None) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("its cleanup too")

    waiting = asyncio.ensure_future(endless())
    await asyncio.sleep(0)
    await first_of(waiting, done, timeout_s=timeout_s)
    assert waiting.cancelled()
    assert ended == ["its cleanup too"]


def test_nothing_is_waited_for_longer_than_it_may() -> None:
    async def waits() -> tuple[float, bool]:
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        began = asyncio.get_running_loop().time()
        await first_of(waiting, timeout_s=7.0)
        return asyncio.get_running_loop().time() - began, waiting.cancelled()

    assert travel(waits) == (7.0, True)


async def test_the_failure_of_a_task_is_logged_and_its_context_is_its_own() -> None:
    seen: list[str] = []

    async def fails() -> None:
        seen.append(NAME.get())
        raise ValueError("x")

    NAME.set("of the call")
    tasks = Tasks()
    with capture_logs() as logs:
        task = tasks.start(fails(), "work")
        cancelled = tasks.start(asyncio.sleep(60), "sleep")
        await asyncio.wait([task])
        await tasks.end()
    assert cancelled.cancelled()
    assert seen == [""]
    ((line),) = logs
    assert (line["event"], line["task"], repr(line["failure"])) == (
        "background task failed",
        "work",
        "ValueError('x')",
    )


async def test_tasks_that_a_cancelled_one_starts_are_ended_too() -> None:
    tasks, ended = Tasks(), list[str]()

    async def second() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("second")

    async def first() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            tasks.start(second(), "second")
            await asyncio.sleep(0)
            ended.append("first")

    tasks.start(first(), "first")
    await asyncio.sleep(0)
    await tasks.end()
    assert ended == ["first", "second"]
    await tasks.end()


def test_a_condition_is_waited_for_until_it_holds_or_the_time_is_over() -> None:
    async def lives() -> None:
        conditions, reached = Conditions(), set[str]()
        assert await conditions.until(lambda: True)
        late = asyncio.ensure_future(conditions.until(lambda: "late" in reached, 9.0))
        soon = asyncio.ensure_future(conditions.until(lambda: "soon" in reached))
        gone = asyncio.ensure_future(conditions.until(lambda: "soon" in reached))
        await asyncio.sleep(0)
        gone.cancel()
        reached.add("soon")
        await asyncio.sleep(0)
        assert not soon.done(), "nothing was checked"
        conditions.check()
        conditions.check()
        assert await soon
        began = asyncio.get_running_loop().time()
        assert not await late
        assert asyncio.get_running_loop().time() - began == 9.0
        assert conditions._waiting == {}

    travel(lives)


async def test_who_waits_for_a_change_is_woken_by_the_next() -> None:
    changes = Changes()
    before = changes.next()
    changes.notify()
    assert before.is_set()
    assert not changes.next().is_set()
