"""Writing to standard output without blocking the event loop on a slow terminal or a full pipe.

A thread writes. So Ctrl-C works while ``less`` shows the first page, and a router in this process continues to serve.
The pending output is bounded: beyond the bound, `Output.write` waits.
"""

import asyncio
import contextlib
import io
import os
import queue
import threading
from typing import TextIO

_PENDING_BYTES = 256 * 1024


class Output:
    """Writes text to a stream, in order, without buffering.

    Args:
        stream: the stream. Characters that it cannot encode are escaped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pending = 0
        self._written = asyncio.Event()
        self._failure: OSError | None = None
        # A daemon thread: a write to a stopped terminal cannot be interrupted, and the program must be able to exit.
        threading.Thread(target=self._work, name="output", daemon=True).start()

    async def write(self, text: str) -> None:
        """Write ``text``; wait only while too much output is pending.

        Raises:
            OSError: the stream cannot be written, e.g. ``BrokenPipeError``.
        """
        if not text:
            return
        data = text.encode(self._encoding, errors="backslashreplace")
        self._pending += len(data)
        self._queue.put(data)
        await self._wait_below(_PENDING_BYTES)

    async def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: the stream cannot be written.
        """
        await self._wait_below(0)

    def close(self) -> None:
        """End the thread after the pending output."""
        self._queue.put(None)

    async def _wait_below(self, limit: int) -> None:
        while self._pending > limit and self._failure is None:
            self._written.clear()
            await self._written.wait()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (data := self._queue.get()) is not None:
            failure: OSError | None = None
            try:
                self._write_all(data)
            except OSError as error:
                failure = error
            # The loop may be closed already.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._done, len(data), failure)
            if failure is not None:
                return

    def _done(self, size: int, failure: OSError | None) -> None:
        self._pending -= size
        self._failure = failure
        self._written.set()

    def _write_all(self, data: bytes) -> None:
        try:
            descriptor = self._stream.fileno()
        except (io.UnsupportedOperation, AttributeError):
            self._stream.write(data.decode(self._encoding))
            self._stream.flush()
            return
        # Not through Python's buffer: a blocked write would hold its lock, which the interpreter needs at exit.
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
