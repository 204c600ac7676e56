"""Texts of a run that arrive in pieces: answers, reasoning, what tools print. Redacted across pieces, then placed.

A secret may begin in one piece and end in another, so each text goes through a redactor of its own, which holds
back what may still become one; offsets are counted in what comes out.
"""

from collections.abc import Callable

from dragoman.protocol.outgoing import redact_written, split_text
from dragoman.protocol.redaction.redactor import Redactor, StreamRedactor
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

KINDS = frozenset({"text", "thinking", "tool_output"})
"""Bodies that belong here."""

_MOST_ITEMS = 1024
"""Items whose place is remembered; an agent that never says that one is complete must not fill the memory."""
_MOST_ENDED = 4096
"""Items that are complete whose length is remembered, should an agent continue one nevertheless."""
_OUTPUT_PIECE_BYTES = 256 * 1024  # of tool output, which may be in an event twice: as text and as bytes

_HARMLESS = 3
"""Characters with which a secret may begin in a frame that is shown: many an innocent word ends with them."""

_Key = tuple[str, str]


class _Item(Struct):
    """One text."""

    redactor: StreamRedactor
    last: pb.AgentEvent
    """The last piece's event, for what is around the text."""
    offset: int = 0


class TextStreams:
    """The texts of one run.

    Args:
        redactor: returns the run's redactor; texts that begin later have the one of that time.
        write: writes an event whose text is redacted.
        write_whole: redacts an event and writes it.
    """

    def __init__(
        self,
        redactor: Callable[[], Redactor],
        write: Callable[[pb.AgentEvent], None],
        write_whole: Callable[[pb.AgentEvent], None],
    ) -> None:
        self._redactor = redactor
        self._write = write
        self._write_whole = write_whole
        self._items: dict[_Key, _Item] = {}
        self._ended: dict[_Key, int] = {}

    def take(self, event: pb.AgentEvent, kind: str) -> None:
        """Handle an event of one of ``KINDS``, and write what is decided of its text."""
        if kind == "tool_output":
            self._take_output(event)
            return
        piece = event.text if kind == "text" else event.thinking
        key = (kind, piece.item_id)
        content = piece.WhichOneof("content")
        if content == "whole":
            self._items.pop(key, None)
            self._write_whole(event)
            self._item(key, event).offset = len(piece.whole.encode()) + piece.truncated_bytes
        elif content == "delta":
            self._feed(key, event, piece.delta)
        else:  # the item is complete
            self._end(key)

    def end_output(self, tool_call_id: str) -> None:
        """Write what is held back of a tool's output; the call has ended."""
        for stream in pb.OutputStream.values():
            self._end(("tool_output", f"{stream}/{tool_call_id}"))

    def end_all(self) -> None:
        """Write whatever is held back."""
        for key in list(self._items):
            self._end(key)
        self._ended.clear()  # items are unique within an attempt

    def _take_output(self, event: pb.AgentEvent) -> None:
        output = event.tool_output
        key = ("tool_output", f"{output.stream}/{output.tool_call_id}")
        # As text that holds its wrong bytes too, so that these pieces join as well.
        self._feed(key, event, output.raw.decode("utf-8", "surrogateescape") if output.raw else output.text)

    def _feed(self, key: _Key, event: pb.AgentEvent, piece: str) -> None:
        item = self._item(key, event)
        shown = item.redactor.feed(piece)
        is_whole = not item.redactor.changed and item.redactor.held <= _HARMLESS
        redact_written(event, self._redactor(), exact=is_whole)
        self._put(key, shown)

    def _item(self, key: _Key, event: pb.AgentEvent) -> _Item:
        item = self._items.get(key)
        if item is None:
            if len(self._items) >= _MOST_ITEMS:
                self._end(next(iter(self._items)))
            item = self._items[key] = _Item(self._redactor().stream(), event, self._ended.pop(key, 0))
        item.last = event
        return item

    def _end(self, key: _Key) -> None:
        item = self._items.get(key)
        if item is None:
            return
        item.last.ClearField("native")
        item.last.redacted = False
        self._put(key, item.redactor.flush())
        self._ended[key] = item.offset
        del self._items[key]
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]

    def _put(self, key: _Key, shown: str) -> None:
        item = self._items[key]
        for part in split_text(shown, _OUTPUT_PIECE_BYTES):
            event = pb.AgentEvent()
            event.CopyFrom(item.last)
            place = _PLACE[key[0]]
            length = place(event, part, item.offset)
            item.offset += length
            event.redacted = event.redacted or item.redactor.changed
            self._write(event)
            item.last.ClearField("native")  # one frame goes with one event


def _place_text(event: pb.AgentEvent, part: str, offset: int) -> int:
    event.text.delta, event.text.offset = part, offset
    return len(part.encode())


def _place_thinking(event: pb.AgentEvent, part: str, offset: int) -> int:
    event.thinking.delta, event.thinking.offset = part, offset
    return len(part.encode())


def _place_output(event: pb.AgentEvent, part: str, offset: int) -> int:
    output = event.tool_output
    data = part.encode("utf-8", "surrogateescape")
    output.text = data.decode("utf-8", "replace")
    output.raw = b"" if output.text == part else data
    output.offset = offset
    return len(data)


_PLACE: dict[str, Callable[[pb.AgentEvent, str, int], int]] = {
    "text": _place_text,
    "thinking": _place_thinking,
    "tool_output": _place_output,
}
