"""Taking the secrets of a request out of the events of an adapter that does not do it itself. Pure.

One event in is one event out, as the adapter's sequences have no room for more. A text that arrives in pieces may end
with what could be the beginning of a secret; then its event waits for the next one: a piece of the same text gets the
undecided end, before anything else it is shown after all, or masked if it is long enough to be a secret.
"""

import copy
from collections import OrderedDict
from typing import Any, Final

from dragoman.protocol.outgoing import fit_event, redact_event, redact_written
from dragoman.protocol.redaction.redactor import Redactor, StreamRedactor
from dragoman.protocol.texts import utf8_bytes
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_MOST_ITEMS: Final = 1024
"""Texts in pieces that are remembered."""

_Key = tuple[object, ...]


class _Item(Struct):
    """One text that arrives in pieces."""

    stream: StreamRedactor
    shift: int = 0
    """The bytes by which it is shorter as it is published, up to its present end."""


class EventRedactor:
    """Redacts the events of one attempt, in their order."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._items: OrderedDict[_Key, _Item] = OrderedDict()
        self._held: tuple[pb.AgentEvent, _Key, _Item] | None = None
        """An event that waits, the text that it is a piece of, and how that was before it."""

    def restart(self) -> None:
        """Take note that the stream begins anew: what waits here comes again."""
        if self._held is not None:
            _event, key, before = self._held
            self._items[key], self._held = before, None

    def take(self, event: pb.AgentEvent) -> list[pb.AgentEvent]:
        """Take a new event, and return those that are decided now."""
        kind = event.WhichOneof("body")
        if not event.sequence and kind != "gap":
            self._redact(event)
            return [event]
        key = _key_of(event, kind)
        ready = self._release(key)
        if kind == "started":
            self._items.clear()
        if key is None:
            self._redact_whole(event, kind)
            return [*ready, event]
        before = self._feed(event, key)
        if self._items[key].stream.unshown:
            self._held = event, key, before
            return ready
        return [*ready, event]

    def _redact(self, event: pb.AgentEvent) -> None:
        redact_event(event, self._redactor)
        fit_event(event)

    def _redact_whole(self, event: pb.AgentEvent, kind: str | None) -> None:
        if kind not in {"text", "thinking"}:
            self._redact(event)
            return
        piece = getattr(event, kind)
        before = utf8_bytes(piece.whole) + piece.truncated_bytes
        self._redact(event)
        item = self._item((kind, piece.item_id))
        item.stream, item.shift = (
            self._redactor.stream(),
            before - utf8_bytes(piece.whole) - piece.truncated_bytes,
        )

    def _feed(self, event: pb.AgentEvent, key: _Key) -> _Item:
        """Put what is decided of a piece in its place; return how its text was before."""
        body, field = _piece_of(event)
        item = self._item(key)
        before = _Item(copy.copy(item.stream), item.shift)
        text = getattr(body, field)
        size = len(getattr(body, "raw", b"")) or utf8_bytes(text)
        if size != utf8_bytes(text):
            body.ClearField("raw")  # a secret in it might be cut in two
            event.redacted = True
        shown = item.stream.feed(text)
        setattr(body, field, shown)
        body.offset = max(0, body.offset - item.shift)
        item.shift += size - utf8_bytes(shown)
        event.redacted = event.redacted or item.stream.changed
        redact_written(event, self._redactor, exact=not before.stream.held and not item.stream.held)
        return before

    def _release(self, key: _Key | None) -> list[pb.AgentEvent]:
        if self._held is None:
            return []
        event, its_key, _before = self._held
        self._held = None
        if its_key != key:
            item, (body, field) = self._items[its_key], _piece_of(event)
            shown = item.stream.release()
            setattr(body, field, getattr(body, field) + shown)
            item.shift -= utf8_bytes(shown)
            event.redacted = event.redacted or item.stream.changed
        return [event]

    def _item(self, key: _Key) -> _Item:
        item = self._items.setdefault(key, _Item(self._redactor.stream()))
        self._items.move_to_end(key)
        if len(self._items) > _MOST_ITEMS:
            self._items.popitem(last=False)
        return item


def _key_of(event: pb.AgentEvent, kind: str | None) -> _Key | None:
    """Return the text that an event is a piece of; ``None`` if it is no piece."""
    if kind in {"text", "thinking"} and getattr(event, kind).WhichOneof("content") == "delta":
        return kind, getattr(event, kind).item_id
    return (kind, event.tool_output.tool_call_id, event.tool_output.stream) if kind == "tool_output" else None


def _piece_of(event: pb.AgentEvent) -> tuple[Any, str]:
    kind = event.WhichOneof("body")
    assert kind is not None
    return getattr(event, kind), "text" if kind == "tool_output" else "delta"
