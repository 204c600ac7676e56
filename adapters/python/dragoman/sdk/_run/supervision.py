"""Work in the adapter's own process, under the clocks of its run and a request to cancel it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.protocol.clocks import Clock, Clocks
from dragoman.sdk._output.parser import FailureInfo
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.waiting import wait_first
from msgspec import Struct

_T = TypeVar("_T")


class FailureError(Exception):
    """Ends an attempt as failed.

    Args:
        info: what went wrong, for the result.
    """

    def __init__(self, info: FailureInfo) -> None:
        super().__init__(info.message)
        self.info = info


class Stopped(Struct, frozen=True):
    """Why work was broken off."""

    cancelled: bool = False
    clock: Clock | None = None
    """The clock that ran out. None: the run was cancelled."""


async def supervise(
    run: Run, clocks: Clocks, work: Coroutine[Any, Any, _T], wake: asyncio.Event, grace_s: float
) -> tuple[_T | None, Stopped | None]:
    """Wait for work, and break it off when the run is cancelled or one of its clocks runs out.

    Args:
        run: whose work it is.
        clocks: its clocks; the work reports its activity to them.
        work: what to do. Broken off, it is cancelled, and again when its grace is over.
        wake: set when the clocks were changed so that they run out earlier.
        grace_s: seconds for the work to end when a clock has run out; a cancelled run has its own.

    Returns:
        What the work returned, None if it was broken off; and why it was.
    """
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    stopped: Stopped | None = None
    try:
        while not task.done() and stopped is None:
            await _until_something(run, clocks, task, wake)
            if not task.done():
                clock = clocks.expired(loop.time())
                if run.cancellation.is_requested or clock is not None:
                    stopped = Stopped(run.cancellation.is_requested, None if run.cancellation.is_requested else clock)
        if stopped is not None:
            run.inputs.drop_all()
            await _break_off(run, task, loop.time() + grace_s)
        if task.cancelled():
            return None, stopped
        return task.result(), stopped
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until_something(run: Run, clocks: Clocks, task: "asyncio.Task[Any]", wake: asyncio.Event) -> None:
    cancellation = run.cancellation
    if cancellation.is_requested:
        return
    deadline = clocks.next()
    timeout_s = None if deadline is None else max(0.0, deadline[0] - asyncio.get_running_loop().time())
    await wait_first(task, wake, cancellation.changed, timeout_s=timeout_s)


async def _break_off(run: Run, task: "asyncio.Task[Any]", deadline: float) -> None:
    task.cancel()
    cancellation, loop = run.cancellation, asyncio.get_running_loop()
    while not task.done():
        until = cancellation.deadline if cancellation.deadline is not None else deadline
        await wait_first(task, cancellation.changed, timeout_s=max(0.0, until - loop.time()))
        if not task.done() and loop.time() >= until:
            task.cancel()
            await asyncio.wait({task})
