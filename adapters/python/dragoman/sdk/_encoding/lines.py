r"""Bytes from a child process, made into lines and text of bounded size.

Everything here is incremental and free of I/O: bytes go in as they were read, whole values come
out, and how the bytes were cut on the way never shows in what comes out.

Lines end at byte ``\n`` and nowhere else. ``str.splitlines`` and friends also break at U+2028,
which Codex and Gemini print raw inside JSON.
"""

import codecs
import re
from typing import Final, NamedTuple

DEFAULT_MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one line that are kept by default."""

_CARRIAGE_RETURN: Final = 0x0D
_TERMINAL_ORDER: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class Line(NamedTuple):
    """One line of output, without its line end."""

    data: bytes
    """The line, at most ``max_line`` bytes of it."""

    cut_bytes: int
    """Bytes dropped from the end because the line was longer than that."""

    complete: bool
    """Whether a line end was seen; false only for what the stream ended with."""


_EMPTY: Final = Line(b"", 0, complete=True)


class LineSplitter:
    r"""Cut a byte stream into lines, holding at most one line of ``max_line`` bytes.

    A ``\r`` before the ``\n`` belongs to the line end. Empty lines are lines.
    """

    __slots__ = ("_cut", "_cut_ends_in_return", "_max_line", "_pending")

    def __init__(self, max_line: int = DEFAULT_MAX_LINE) -> None:
        if max_line < 1:
            raise ValueError("max_line must be at least 1 byte")
        self._max_line = max_line
        self._pending = bytearray()
        self._cut = 0
        self._cut_ends_in_return = False

    def feed(self, data: bytes) -> list[Line]:
        """Read the next bytes of the stream and return the lines they complete."""
        # split() works at memory speed and looks only at what is new, so neither a flood of short
        # lines nor one long line in small pieces costs more than its bytes.
        first, *rest = data.split(b"\n")
        if not rest:
            self._extend(first)
            return []
        last = rest.pop()
        lines = [self._end_first(first)]
        lines += [self._whole(piece) if piece else _EMPTY for piece in rest]
        self._extend(last)
        return lines

    def finish(self) -> list[Line]:
        """Return what came after the last line end, if anything did, and start afresh."""
        if not self._pending and not self._cut:
            return []
        line = Line(bytes(self._pending), self._cut, complete=False)
        self._reset()
        return [line]

    def _extend(self, piece: bytes) -> None:
        room = self._max_line - len(self._pending)
        if len(piece) <= room:
            self._pending += piece
            return
        self._pending += piece[:room]
        self._cut += len(piece) - room
        self._cut_ends_in_return = piece[-1] == _CARRIAGE_RETURN

    def _end_first(self, piece: bytes) -> Line:
        if not self._pending and not self._cut:
            return self._whole(piece)
        self._extend(piece)
        cut = self._cut
        if cut:
            cut -= self._cut_ends_in_return
        elif self._pending[-1] == _CARRIAGE_RETURN:
            del self._pending[-1]
        line = Line(bytes(self._pending), cut, complete=True)
        self._reset()
        return line

    def _whole(self, piece: bytes) -> Line:
        if piece.endswith(b"\r"):
            piece = piece[:-1]
        cut = len(piece) - self._max_line
        if cut <= 0:
            return Line(piece, 0, complete=True)
        return Line(piece[: self._max_line], cut, complete=True)

    def _reset(self) -> None:
        self._pending = bytearray()  # a new one: clearing would keep the memory of the longest line
        self._cut = 0
        self._cut_ends_in_return = False


class HeadTail:
    """Keep the first ``head`` and the last ``tail`` bytes of a stream; count what is between.

    An agent says who it is first and how it ended last; a capture of one end alone loses the other.
    """

    __slots__ = ("_head", "_head_size", "_tail", "_tail_size", "_total")

    def __init__(self, head: int, tail: int) -> None:
        if head < 0 or tail < 0:
            raise ValueError("head and tail are numbers of bytes")
        self._head_size = head
        self._tail_size = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes fed so far."""
        return self._total

    @property
    def dropped(self) -> int:
        """Bytes fed and no longer held."""
        return max(0, self._total - self._head_size - self._tail_size)

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the stream."""
        self._total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._tail_size:
            return
        self._tail += data[-self._tail_size :]
        # Trimmed at twice the size, so that a byte is moved once on average and not once per feed.
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def parts(self) -> tuple[str, int, str]:
        """Return the text of the head, the number of bytes missing after it, the text of the tail.

        With nothing missing the head is everything. Where the cut fell inside a character, the
        bytes of that character count as missing.
        """
        tail = bytes(self._tail[-self._tail_size :]) if self._tail_size else b""
        if not self.dropped:
            return (bytes(self._head) + tail).decode("utf-8", "replace"), 0, ""
        whole_head = _without_cut_end(bytes(self._head))
        whole_tail = _without_cut_start(tail)
        dropped = self._total - len(whole_head) - len(whole_tail)
        head_text = whole_head.decode("utf-8", "replace")
        return head_text, dropped, whole_tail.decode("utf-8", "replace")

    def text(self) -> str:
        """Return everything held as one text that says where bytes are missing, and how many."""
        head, dropped, tail = self.parts()
        if not dropped:
            return head
        return f"{head}\n[... {dropped} bytes dropped ...]\n{tail}"


def _without_cut_end(data: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    waiting, _ = decoder.getstate()
    return data[: len(data) - len(waiting)]


def _without_cut_start(data: bytes) -> bytes:
    # A character has at most three continuation bytes (10xxxxxx).
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def without_terminal_orders(text: str) -> str:
    """Return ``text`` without colours, links, and other orders to a terminal."""
    return _TERMINAL_ORDER.sub("", text) if "\x1b" in text else text
