r"""Messages in a byte stream with their length before them, as language servers write: ``Content-Length: 12``.

Incremental and free of I/O, and of the shape of ``LineSplitter``, so that a parser sees no difference: what comes out
are ``Line``s, each a message. What stands between messages and is no header comes out as the line that it is.
"""

import re
from typing import Final, Literal, Protocol, TypeAlias

from dragoman.sdk._encoding.lines import DEFAULT_MAX_LINE, Line, LineSplitter

Framing: TypeAlias = Literal["lines", "content-length"]
"""How an agent's standard output is cut into messages."""

_LENGTH: Final = re.compile(rb"(?i)content-length:[ \t]*([0-9]{1,12})[ \t]*")
_HEADER: Final = re.compile(rb"[A-Za-z][A-Za-z-]{0,63}:[^\x00-\x1f]*")


class Splitter(Protocol):
    """Cuts a byte stream into messages."""

    def feed(self, data: bytes) -> list[Line]:
        """Read the next bytes and return the messages they complete."""

    def finish(self) -> list[Line]:
        """Return what the stream ended with, and start afresh."""


def make_splitter(framing: Framing, max_bytes: int = DEFAULT_MAX_LINE) -> Splitter:
    """Return what cuts a stream of this framing; of one message at most ``max_bytes`` are kept."""
    return LineSplitter(max_bytes) if framing == "lines" else MessageSplitter(max_bytes)


def with_length(message: bytes) -> bytes:
    """Return a message with its header before it."""
    return b"Content-Length: %d\r\n\r\n" % len(message) + message


class MessageSplitter:
    """Cut a byte stream into messages by their headers, holding at most one message of ``max_bytes``."""

    __slots__ = ("_announced", "_body", "_cut", "_headers", "_left", "_max_bytes")

    def __init__(self, max_bytes: int = DEFAULT_MAX_LINE) -> None:
        self._max_bytes = max_bytes
        self._reset()

    def _reset(self) -> None:
        self._headers = bytearray()
        """The beginning of a line outside of messages."""
        self._announced: int | None = None
        """Bytes of the next message, as its header said; the empty line after it has not come yet."""
        self._left: int | None = None
        """Bytes of the present message that are still to come; None outside of messages."""
        self._body = bytearray()
        self._cut = 0

    def feed(self, data: bytes) -> list[Line]:
        """Read the next bytes of the stream and return the messages they complete."""
        lines: list[Line] = []
        position = 0
        while position < len(data):
            if self._left is None:
                position = self._header(data, position, lines)
            else:
                position = self._content(data, position, lines)
        return lines

    def finish(self) -> list[Line]:
        """Return what came after the last whole message, if anything did, and start afresh."""
        rest = bytes(self._body or self._headers)
        cut = self._cut
        self._reset()
        return [Line(rest, cut, complete=False)] if rest or cut else []

    def _content(self, data: bytes, position: int, lines: list[Line]) -> int:
        assert self._left is not None
        piece = data[position : position + self._left]
        room = self._max_bytes - len(self._body)
        self._body += piece[:room]
        self._cut += max(0, len(piece) - room)
        self._left -= len(piece)
        if not self._left:
            lines.append(Line(bytes(self._body), self._cut, complete=True))
            self._reset()
        return position + len(piece)

    def _header(self, data: bytes, position: int, lines: list[Line]) -> int:
        end = data.find(b"\n", position)
        piece = data[position:] if end < 0 else data[position:end]
        room = self._max_bytes - len(self._headers)
        self._headers += piece[:room]
        self._cut += max(0, len(piece) - room)
        if end < 0:
            return len(data)
        line, cut = bytes(self._headers).removesuffix(b"\r"), self._cut
        self._headers, self._cut = bytearray(), 0
        self._take_header(line, cut, lines)
        return end + 1

    def _take_header(self, line: bytes, cut: int, lines: list[Line]) -> None:
        length = _LENGTH.fullmatch(line)
        if length is not None:
            self._announced = int(length[1])
        elif self._announced is None:
            if line or cut:
                lines.append(Line(line, cut, complete=True))  # an agent that prints where it should not
        elif not line:
            self._left = self._announced or None
            self._announced = None
        elif not _HEADER.fullmatch(line):
            self._announced = None
            lines.append(Line(line, cut, complete=True))
