"""A notice at a terminal that something takes longer than expected."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def slow_notice(text: str, *, after_s: float) -> AsyncIterator[None]:
    """Write ``text`` to standard error if the block takes longer, and standard error is a terminal.

    Args:
        text: one line without control characters.
        after_s: the time limit, in seconds.
    """

    def write() -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    due = asyncio.get_running_loop().call_later(after_s, write) if sys.stderr.isatty() else None
    try:
        yield
    finally:
        if due is not None:
            due.cancel()
