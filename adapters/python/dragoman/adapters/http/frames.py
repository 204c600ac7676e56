"""A streamed answer, cut into what it says: server-sent events, or lines of JSON. Pure."""

from collections.abc import Iterator
from typing import Final

from dragoman.sdk import Line, LineSplitter

MOST_LINE_BYTES: Final = 4 * 1024 * 1024
"""Of one line; the rest of a longer one is cut, which makes it no JSON."""
EVENT_STREAM: Final = "text/event-stream"
DONE: Final = b"[DONE]"
"""By which many services end a stream."""


class Frames:
    """Cuts a stream.

    Args:
        media_type: of the answer; decides between the two formats.
    """

    def __init__(self, media_type: str) -> None:
        self._splitter = LineSplitter(MOST_LINE_BYTES)
        self._is_sse = media_type == EVENT_STREAM
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take bytes, and yield the frames that they complete."""
        for line in self._splitter.feed(chunk):
            yield from self._line(line)

    def finish(self) -> Iterator[bytes]:
        """Yield what came without its end."""
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
        if name == b"data":  # other fields say nothing that an agent means; comments keep the line open
            self._data.append(value.removeprefix(b" "))

    def _event(self) -> Iterator[bytes]:
        if self._data:
            data, self._data = b"\n".join(self._data), []
            yield data
