"""Waiting for several things, background tasks, and notices of changes."""

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from dragoman.protocol.logs import Logger

T = TypeVar("T")

_log = Logger("dragoman.router")


def nothing(*_of: object) -> None:
    """Do nothing: what is called where nothing is to be done."""


async def first_of(*waits: Awaitable[Any], timeout_s: float | None = None) -> None:
    """Wait until one of these is done, or for ``timeout_s`` seconds; end those that are not."""
    futures = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


class Held(Generic[T]):
    """Something that is given back at the end of a block. No generator, which takes five times the memory."""

    __slots__ = ("_give_back", "_value")

    def __init__(self, value: T, give_back: Callable[[], None]) -> None:
        self._value = value
        self._give_back = give_back

    def __enter__(self) -> T:
        """Return it."""
        return self._value

    def __exit__(self, *_failure: object) -> None:
        """Give it back."""
        self._give_back()


class Tasks:
    """Background tasks that are not forgotten."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task; what it raises is logged."""
        # In a context of its own: it outlives the call that starts it, and so should not log as part of that.
        task = asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("background task failed", task=task.get_name(), failure=failure)

    async def end(self) -> None:
        """Cancel those that still run, and wait for them."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Their callbacks run in the loop's next turn.
            await asyncio.sleep(0)


class Conditions:
    """Wakes those that wait for a condition. What may bring one about ends with ``check``."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def until(self, reached: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition holds at a ``check``; False if it does not within ``timeout_s`` seconds."""
        if reached():
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = reached
        try:
            if timeout_s is None:
                await waiter
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await waiter
        finally:
            del self._waiting[waiter]
        return waiter.done() and not waiter.cancelled()

    def check(self) -> None:
        """Wake those whose conditions hold."""
        for waiter, reached in self._waiting.items():
            if not waiter.done() and reached():
                waiter.set_result(None)


class Changes:
    """Wakes the tasks that wait for the list of adapters to change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake the tasks that wait."""
        self._next.set()
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return an event that is set with the next change."""
        return self._next
