"""A child's pipes in the event loop: output read in bounded pieces, input never waited for."""

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
PIECE_LINES = 128
"""Most bytes and most lines taken in one turn of the loop: fair to other runs, and below malloc's mmap limit."""


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
            close_all(opened)
            raise
        stdin, stdin_writer, stdout_reader, stdout, stderr_reader, stderr = opened
        self.ours = stdin_writer, stdout_reader, stderr_reader
        self.theirs = stdin, stdout, stderr

    def close_ours(self) -> None:
        """Close our ends, if there is no child to use them for."""
        close_all(self.ours)

    def close_theirs(self) -> None:
        """Close the child's ends here: it has its own copies."""
        close_all(self.theirs)


class OutputPipe:
    """Reads one output pipe to its end, a bounded piece in each turn of the loop.

    While it is paused nothing is read: the pipe fills up, and its writer has to wait.

    Args:
        loop: The running event loop.
        fd: Non-blocking read end; owned from now on.
        on_data: Called with each piece, in the loop; at most `PIECE_LINES` lines.
        on_eof: Called once, after the last piece: at the end of file, or when an abandoned pipe is empty.
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
        self._rest = b""
        """What was read, and not passed on yet."""
        self._left: int | None = None
        """How much more is read of an abandoned pipe."""
        self._next: asyncio.Handle | None = None
        self._is_watched = False
        self._is_paused = False
        self._has_begun = False
        self.is_open = True

    def start(self) -> None:
        """Begin to read."""
        self._has_begun = True
        self._go_on()

    def pause(self) -> None:
        """Read no more until `resume`; harmless when it is closed."""
        self._is_paused = True
        self._stop()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._is_paused:
            self._is_paused = False
            self._go_on()

    def abandon(self) -> None:
        """Take what is in the pipe now, and close it then, though something may still hold it open."""
        if self._left is None:
            self._left = PIPE_BYTES
            self._has_begun = True
            self._go_on()

    def _go_on(self) -> None:
        """Read the next piece when there is one, in a turn of its own: other runs have theirs in between."""
        self._stop()
        if self._is_paused or not self._has_begun or not self.is_open:
            return
        if self._rest or self._left is not None:
            self._next = self._loop.call_soon(self._step)
        else:
            self._is_watched = True
            self._loop.add_reader(self._fd, self._step)

    def _stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._fd)

    def _step(self) -> None:
        """Pass one piece on."""
        if not self._rest and not self._read():
            return
        size = end_of_lines(self._rest, PIECE_LINES)
        piece, self._rest = self._rest[:size], self._rest[size:]
        self._on_data(piece)
        if self._rest or self._left is not None or not self._is_watched:
            self._go_on()

    def _read(self) -> bool:
        """Read what is there; False if that is nothing, now or ever again."""
        try:
            data = os.read(self._fd, READ_BYTES) if self._left != 0 else b""
        except BlockingIOError:
            if self._left is not None:
                self._close()
            return False
        if not data:
            self._close()
            return False
        if self._left is not None:
            self._left = max(0, self._left - len(data))
        self._rest = data
        return True

    def _close(self) -> None:
        if self.is_open:
            self._stop()
            self.is_open = False
            os.close(self._fd)
            self._on_eof()


def end_of_lines(data: bytes, most: int) -> int:
    """Return where the first ``most`` lines end; the length of ``data`` if there are no more than these."""
    if data.count(b"\n") <= most:
        return len(data)
    end = 0
    for _ in range(most):
        end = data.index(b"\n", end) + 1
    return end


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


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
