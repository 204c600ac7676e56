"""An event that happens once, and what it interrupts: without a task of its own for each that waits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

__all__ = [
    "Signal",
    "interruptible",
]


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

    @contextlib.contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Have this called should it be set while the block runs, or be set already."""
        if self._is_set:
            call()
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)


@contextlib.asynccontextmanager
async def interruptible() -> AsyncIterator[Callable[[], None]]:
    """Yield a function that ends the block with ``TimeoutError``, wherever it waits."""
    async with asyncio.timeout(None) as scope:

        def interrupt() -> None:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

        yield interrupt
