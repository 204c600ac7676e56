"""An event that happens once, and what it interrupts: without a task of its own for each that waits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

__all__ = [
    "Signal",
    "interruptible",
]


class Signal(asyncio.Event):
    """An ``asyncio.Event`` that also calls back."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: set[Callable[[], object]] = set()

    def set(self) -> None:
        """Set it, and make the calls."""
        if not self.is_set():
            super().set()
            for call in tuple(self._calls):
                call()

    @contextlib.contextmanager
    def calling(self, call: Callable[[], object]) -> Iterator[None]:
        """Have this called should it be set while the block runs, or be set already."""
        if self.is_set():
            call()
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)


@contextlib.asynccontextmanager
async def interruptible() -> AsyncIterator[Callable[[], None]]:
    """Yield a function that ends the block with ``TimeoutError``, wherever it waits."""
    async with asyncio.timeout(None) as scope:

        def interrupt() -> None:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

        yield interrupt
