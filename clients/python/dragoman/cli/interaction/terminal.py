"""Reading lines from a terminal without stopping the event loop."""

import asyncio
import os
import termios
from typing import Final

_BACKGROUND_S: Final = 0.5
"""How often a program in the background looks whether it is in the foreground by now."""


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

    async def line(self, *, in_background: bool = True) -> str:
        """Return the next line without its newline.

        Args:
            in_background: whether it may be read while the terminal is another program's, whose user types for that
                one; the system then stops this program until it is in the foreground.

        Raises:
            EndOfInputError: the input has ended.
        """
        while b"\n" not in self._buffer:
            await self._readable()
            if not in_background and not self._is_in_foreground():
                await asyncio.sleep(_BACKGROUND_S)
                continue
            data = os.read(self._descriptor, 65536)
            if not data:
                raise EndOfInputError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def discard(self, *, in_background: bool = True) -> None:
        """Discard what was typed so far; ``in_background`` as for `line`."""
        self._buffer = b""
        if os.isatty(self._descriptor) and (in_background or self._is_in_foreground()):
            termios.tcflush(self._descriptor, termios.TCIFLUSH)

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # it controls no jobs of this session
            return True

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)
