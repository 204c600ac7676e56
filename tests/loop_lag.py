"""How long an event loop was held, in CPU time of its own thread: on a busy machine as on an idle one."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_BEAT_S: Final = 0.005
MOST_S: Final = 0.1
"""What one request may hold the loop."""


class LoopLag:
    """The longest time that the loop's thread worked between two beats."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        """Beat until cancelled."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(_BEAT_S)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - before)
            before = now


@asynccontextmanager
async def loop_lag() -> AsyncIterator[LoopLag]:
    """Watch the running loop while the block runs."""
    # What earlier tests left behind is not to be collected, nor looked through, in the time that is measured.
    # It stays frozen: every measurement would look through it again.
    gc.collect()
    gc.freeze()
    lag = LoopLag()
    watch = asyncio.ensure_future(lag.watch())
    await asyncio.sleep(0)
    try:
        yield lag
    finally:
        await asyncio.sleep(2 * _BEAT_S)  # the last beat is to see the last step
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
