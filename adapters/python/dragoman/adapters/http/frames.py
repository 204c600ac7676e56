"""The frames of a streamed answer: server-sent events, or lines of JSON. Pure."""

from collections.abc import Iterator
from typing import Final

from dragoman.sdk import Line
from dragoman.sdk.parsing import LineSplitter

MOST_LINE_BYTES: Final = 4 * 1024 * 1024
"""Of one line; the rest of a longer one is cut, which makes it no JSON."""
EVENT_STREAM: Final = "text/event-stream"
DONE: Final = b"[DONE]"
"""Ends the streams of many services."""


class Frames:
    """Splits a stream into frames.

    Args:
        media_type: of the answer; decides between the two formats.
    """

    def __init__(self, media_type: str) -> None:
        self._splitter = LineSplitter(MOST_LINE_BYTES)
        self._is_sse = media_type == EVENT_STREAM
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Read bytes, and yield the frames that they complete."""
        for line in self._splitter.feed(chunk):
            yield from self._line(line)

    def finish(self) -> Iterator[bytes]:
        """Yield the frame that has no end."""
        for line in self._splitter.finish():
            yield from self._line(line)
        yield from self._event()

    def _line(self, line: Line) -> Iterator[bytes]:
        data = line.data.removeprefix(b"\xef\xbb\xbf")
        if not self._is_sse:
            if data.strip():
                yield data
            return
        if not data:
            yield from self._event()
            return
        name, _, value = data.partition(b":")
        if name == b"data":  # other fields have no content; comments keep the connection open
            self._data.append(value.removeprefix(b" "))

    def _event(self) -> Iterator[bytes]:
        if self._data:
            data, self._data = b"\n".join(self._data), []
            yield data
