"""A child's pipes in the event loop: output always read, input never waited for."""

from __future__ import annotations

import fcntl
import os
import sys
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

PIPE_BYTES = 1 << 20
"""Size asked for the output pipes: some agents exit without waiting until their tail is read."""

READ_BYTES = 1 << 16
"""Most bytes taken in one turn of the loop: fair to other runs, and below malloc's mmap limit."""


def output_pipe() -> tuple[int, int]:
    """Return (read end, write end) of a pipe, enlarged where the system allows, reader unblocked.

    Linux bounds a user's pipe memory (``pipe-user-pages-soft``); beyond that, and elsewhere, the
    pipe keeps its size, and the only defence is to read without pause.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    if sys.platform == "linux":
        try:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            return reader, writer
    return reader, writer


class Pipes:
    """The three pipes of one child, from both sides.

    Attributes:
        ours: Write end of stdin, read ends of stdout and stderr.
        theirs: The other ends, for the child.

    Raises:
        OSError: There are not enough descriptors; none is taken then.
    """

    def __init__(self) -> None:
        opened: list[int] = []
        try:
            for make in (os.pipe, output_pipe, output_pipe):
                opened += make()
        except OSError:
            _close_all(opened)
            raise
        stdin, stdin_writer, stdout_reader, stdout, stderr_reader, stderr = opened
        self.ours = stdin_writer, stdout_reader, stderr_reader
        self.theirs = stdin, stdout, stderr

    def close_theirs(self) -> None:
        """Close the child's ends here: it has its own copies."""
        _close_all(self.theirs)


class OutputPipe:
    """Reads one output pipe to its end, without ever pausing.

    Args:
        loop: The running event loop.
        fd: Non-blocking read end; owned from now on.
        on_data: Called with each piece, in the loop.
        on_eof: Called once, after the last piece: at the end of file, or when `abandon` gives up.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        on_data: Callable[[bytes], None],
        on_eof: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._on_data = on_data
        self._on_eof = on_eof
        self.is_open = True

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._fd, self._read)

    def abandon(self) -> None:
        """Take what is in the pipe now and close it, though something may still hold it open."""
        left = PIPE_BYTES
        while self.is_open and left > 0:
            taken = self._read()
            if not taken:
                break
            left -= taken
        self._close()

    def _read(self) -> int:
        """Pass one piece on; return its size, 0 when there is nothing (now, or ever again)."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._on_data(data)
        else:
            self._close()
        return len(data)

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._on_eof()


class InputPipe:
    """Writes to a child's stdin in the background, as fast as the child takes it.

    A child that has closed its stdin, or is dead, is not an error: what it did not take is dropped.

    Args:
        loop: The running event loop.
        fd: Write end; owned from now on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._fd = fd
        self._waiting: deque[memoryview] = deque()
        self._is_open = True
        self._is_ending = False

    def write(self, data: bytes) -> None:
        """Queue bytes; they are dropped once the pipe is closed."""
        if not self._is_open or self._is_ending or not data:
            return
        self._waiting.append(memoryview(data))
        if len(self._waiting) == 1:
            self._flush()

    def close(self) -> None:
        """Close the pipe once everything queued is written."""
        self._is_ending = True
        if not self._waiting:
            self.abandon()

    def abandon(self) -> None:
        """Close the pipe now and drop what is queued."""
        if self._is_open:
            self._is_open = False
            self._waiting.clear()
            self._loop.remove_writer(self._fd)
            os.close(self._fd)

    def _flush(self) -> None:
        try:
            while self._waiting:
                written = os.write(self._fd, self._waiting[0])
                rest = self._waiting.popleft()[written:]
                if rest:
                    self._waiting.appendleft(rest)
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._flush)
            return
        except OSError:
            self.abandon()
            return
        self._loop.remove_writer(self._fd)
        if self._is_ending:
            self.abandon()


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
