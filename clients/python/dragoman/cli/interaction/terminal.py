"""Reading lines from a terminal without stopping the event loop."""

import asyncio
import os
import termios


class EndOfInputError(Exception):
    """The input has ended."""


class LineReader:
    """Reads lines from a terminal's descriptor.

    Args:
        descriptor: an open file descriptor, e.g. standard input's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    async def line(self) -> str:
        """Return the next line without its newline.

        Raises:
            EndOfInputError: the input has ended.
        """
        while b"\n" not in self._buffer:
            await self._readable()
            data = os.read(self._descriptor, 65536)
            if not data:
                raise EndOfInputError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def discard(self) -> None:
        """Discard what was typed so far."""
        self._buffer = b""
        if os.isatty(self._descriptor):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)
