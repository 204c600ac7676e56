"""An event that happens once, and what it interrupts: without a task of its own for each that waits."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType


class Signal:
    """Is set once, and then calls back. Small, as each run and each stream has some."""

    __slots__ = ("_calls", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._calls: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and make the calls."""
        if not self._is_set:
            self._is_set = True
            for call in tuple(self._calls):
                call()

    async def wait(self) -> None:
        """Wait until it is set."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        with self.calling(wake):
            await waiter

    def calling(self, call: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        """Have this called should it be set while the block runs, or be set already."""
        if self._is_set:
            call()
        return _Calling(self._calls, call)


class _Calling:
    """The block of ``Signal.calling``. No generator, which takes three times the memory."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: list[Callable[[], object]], call: Callable[[], object]) -> None:
        self._calls = calls
        self._call = call

    def __enter__(self) -> None:
        self._calls.append(self._call)

    def __exit__(self, *_failure: object) -> None:
        self._calls.remove(self._call)


def interruptible() -> contextlib.AbstractAsyncContextManager[Callable[[], None]]:
    """Return a block that gives a function which ends it with ``TimeoutError``, wherever it waits."""
    return _Interruptible()


class _Interruptible:
    """The block of ``interruptible``; no generator either."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> Callable[[], None]:
        await self._scope.__aenter__()
        return self._interrupt

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(kind, failure, trace)

    def _interrupt(self) -> None:
        if not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())
