"""A word to whoever waits at a terminal, when something takes longer than expected."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def patience(text: str, *, after_s: float) -> AsyncIterator[None]:
    """Say ``text`` on standard error if the block takes longer, and somebody sits there.

    Args:
        text: one line, neutral.
        after_s: seconds.
    """

    def say() -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    due = asyncio.get_running_loop().call_later(after_s, say) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if due is not None:
            due.cancel()
