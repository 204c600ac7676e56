"""Events on their way out: redacting their string leaves, and keeping them within 1 MiB. Pure."""

import json
from typing import Any

from dragoman.protocol.errors import DragomanError, FieldViolation
from dragoman.protocol.limits import MAX_EVENT_BYTES, MAX_NATIVE_BYTES
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.texts import compact, cut_text, struct_values, well_formed
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_SPARE_BYTES = 4096
"""Room for what is written after the cut: the count of it, and longer length prefixes."""
_LONGEST_LEAF = 2 * MAX_EVENT_BYTES
"""Characters of one text that are looked through for secrets; no event holds as many."""
_UNTOUCHED = frozenset({"dragoman.v1.SessionHandle"})
"""Messages that come back to us as they left."""

_LARGE_FIELDS: dict[str, tuple[str, ...]] = {
    "tool_result": ("output_json", "content"),
    "result": ("raw_json", "raw_tail", "raw_head", "structured_output_json", "summary"),
}
"""Fields to cut, those that are missed least first. Elsewhere the largest part is cut."""


def redact_event(event: pb.AgentEvent, redactor: Redactor) -> int:
    """Redact the string leaves of the body and of ``native``, in place, and mark the event if anything was.

    Keys, ids, numbers and enums are never touched: they are what events, answers and sessions are matched by.
    Fields named ``*_json`` hold JSON text: there, values under keys that name secrets go too, and the text
    stays verbatim unless something was found. Texts that no event could hold are shortened first.

    Returns:
        The bytes that were cut and are not in the body's own ``truncated_bytes``.
    """
    kind = event.WhichOneof("body")
    walk = _Redaction(redactor)
    if kind is not None:
        walk.message(getattr(event, kind))
    if event.HasField("native"):
        _redact_native(event.native, walk)
    if walk.changed:
        event.redacted = True
    return _count(event, walk.cut_bytes)


def redacted_error(error: DragomanError, redactor: Redactor) -> DragomanError:
    """Return an error without secrets; a wrong field may quote its value."""
    return DragomanError(
        error.reason,
        redactor.text(error.message),
        {name: redactor.text(value) for name, value in error.metadata.items()},
        [FieldViolation(redactor.text(item.path), redactor.text(item.description)) for item in error.violations],
        error.retry_after_s,
        error.status,
    )


def redact_written(event: pb.AgentEvent, redactor: Redactor, *, exact: bool) -> None:
    """Redact ``native`` of an event whose text was redacted as part of a stream.

    Args:
        event: changed in place.
        redactor: the run's.
        exact: whether no secret begins or ends in the frame's text. Else it is removed, as no search finds half a
            secret in it.
    """
    if not event.HasField("native"):
        return
    walk = _Redaction(redactor)
    if exact:
        _redact_native(event.native, walk)
    else:
        event.native.text = "[redacted]"
        walk.changed = True
    event.redacted = event.redacted or walk.changed


def _redact_native(native: pb.NativeFrame, walk: "_Redaction") -> None:
    shown = redact_json(native.text, walk.redactor)
    walk.changed |= shown != native.text
    native.ClearField("text")
    walk.message(native)
    native.text, cut = cut_text(shown, MAX_NATIVE_BYTES)
    native.truncated_bytes += cut


class _Redaction:
    """A walk over a message, and what it did."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.changed = False
        self.cut_bytes = 0

    def message(self, message: Message) -> None:
        """Redact a message in place."""
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                self._strings(message, field, value)
            elif field.type == FieldDescriptor.TYPE_BYTES:
                shown = self._bytes(value)
                if shown != value:
                    setattr(message, field.name, shown)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                self._submessages(value)

    def _strings(self, message: Message, field: FieldDescriptor, value: Any) -> None:
        if _is_id(field.name):
            return
        if field.is_repeated:
            shown = [self._text(item, field.name) for item in value]
            if shown != list(value):
                del value[:]
                value.extend(shown)
            return
        shown_one = self._text(value, field.name)
        if shown_one != value:
            setattr(message, field.name, shown_one)

    def _text(self, text: str, name: str) -> str:
        if name.endswith("_json"):  # whole, as cut JSON has no keys any more
            shown = redact_json(text, self.redactor)
        else:
            text = self._shortened(text)
            shown = self.redactor.text(text)
        self.changed |= shown != text
        return shown

    def _bytes(self, data: bytes) -> bytes:
        text = self._shortened(data.decode("utf-8", "surrogateescape"))
        shown = self.redactor.text(text)
        self.changed |= shown != text
        return shown.encode("utf-8", "surrogateescape")

    def _shortened(self, text: str) -> str:
        if len(text) <= _LONGEST_LEAF:
            return text
        kept = text[:_LONGEST_LEAF]
        # A secret must not be cut in two: no search would find its first half.
        kept = kept[: self.redactor.undecided(kept)]
        self.cut_bytes += len(text[len(kept) :].encode("utf-8", "surrogateescape"))
        return kept

    def _submessages(self, value: Any) -> None:
        if isinstance(value, struct_pb2.Struct):
            self._struct(value)
        elif isinstance(value, Message):
            if value.DESCRIPTOR.full_name not in _UNTOUCHED:
                self.message(value)
        elif _is_map(value):
            self._map(value)
        else:
            for item in value:
                self.message(item)

    def _struct(self, struct: struct_pb2.Struct) -> None:
        try:
            value = struct_values(struct)
        except ValueError:  # it holds a number that JSON lacks, put there by accident
            struct.Clear()
            self.changed = True
            return
        shown = self.redactor.value(value)
        if isinstance(shown, dict) and shown is not value:
            struct.Clear()
            struct.update(shown)
            self.changed = True

    def _map(self, entries: Any) -> None:
        for key in list(entries):
            value = entries[key]
            if isinstance(value, Message):
                self.message(value)
            elif isinstance(value, str):
                shown = self._text(value, "")
                if shown != value:
                    entries[key] = shown


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "_ids"))


def redact_json(text: str, redactor: Redactor) -> str:
    """Redact JSON text by value and by key; ``text`` itself if there was nothing, or it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return redactor.text(text)
    shown = redactor.value(value)
    # Secrets may be in keys too, where only their value shows them. JSON can hold half a character; text cannot.
    return redactor.text(text if shown is value else well_formed(compact(shown)))


def fit_event(event: pb.AgentEvent) -> int:
    """Cut what is large in an event until it has at most 1 MiB, and count it in the body's ``truncated_bytes``.

    Returns:
        The bytes that were cut, if the body has no place to count them.
    """
    kind = event.WhichOneof("body")
    excess = event.ByteSize() - (MAX_EVENT_BYTES - _SPARE_BYTES)
    if excess <= 0 or kind is None:
        return 0
    if kind == "log":
        return _count(event, _fit_log(event.log))
    cut_bytes = 0
    if kind == "input_request":
        # Half an input is none that could be changed and sent back.
        cut_bytes = len(event.input_request.editable_input_json.encode())
        event.input_request.ClearField("editable_input_json")
    for name in _LARGE_FIELDS.get(kind, ()):
        cut_bytes += _cut_field(getattr(event, kind), name, excess - cut_bytes)
    while (excess := event.ByteSize() - (MAX_EVENT_BYTES - _SPARE_BYTES)) > 0:
        cut = _cut_largest(event, excess)
        if not cut:
            break
        cut_bytes += cut
    return _count(event, cut_bytes)


def _count(event: pb.AgentEvent, cut_bytes: int) -> int:
    kind = event.WhichOneof("body")
    body = getattr(event, kind) if kind is not None else None
    if not cut_bytes or body is None or "truncated_bytes" not in body.DESCRIPTOR.fields_by_name:
        return cut_bytes
    body.truncated_bytes += cut_bytes
    return 0


def _fit_log(log: pb.Log) -> int:
    """Cut a line, and its text with it: both say the same, so a byte is counted once."""
    if not log.raw:
        log.text, cut = cut_text(log.text, MAX_EVENT_BYTES - 2 * _SPARE_BYTES)
        return cut
    # A byte that is no UTF-8 takes one in `raw`, and three as U+FFFD in `text`.
    kept = log.raw[: MAX_EVENT_BYTES // 4 - _SPARE_BYTES]
    cut = len(log.raw) - len(kept)
    log.raw, log.text = kept, kept.decode("utf-8", "replace")
    return cut


def _cut_field(message: Message, name: str, excess: int) -> int:
    if excess <= 0:
        return 0
    value = getattr(message, name)
    kept, cut = _cut_value(value, excess)
    setattr(message, name, kept)
    return cut


def _cut_largest(message: Message, excess: int) -> int:
    """Cut the largest part of a message by ``excess`` bytes, or by less if it is smaller; return how many."""
    fields = [entry for entry in message.ListFields() if entry[0].type in _CUTTABLE]
    if not fields:
        return 0
    field, value = max(fields, key=lambda entry: _size(entry[1]))
    if isinstance(value, Message):
        return _cut_largest(value, excess)
    if isinstance(value, str | bytes):
        return _cut_field(message, field.name, excess)
    return _cut_among(value, excess)


_CUTTABLE = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE})


def _cut_among(items: Any, excess: int) -> int:
    """Cut within the largest of several values if that is enough, else leave out the second half of them."""
    keys: list[Any] = list(items) if _is_map(items) else list(range(len(items)))
    largest = max(keys, key=lambda key: _size(items[key]))
    value = items[largest]
    if _size(value) > excess:
        if isinstance(value, Message):
            return _cut_largest(value, excess)
        items[largest], cut = _cut_value(value, excess)
        return cut
    dropped = keys[len(keys) // 2 :]
    cut = sum(_size(items[key]) + _size(key) for key in dropped)
    for key in reversed(dropped):
        del items[key]
    return max(1, cut)


def _cut_value(value: Any, excess: int) -> tuple[Any, int]:
    if isinstance(value, bytes):
        kept = value[: max(0, len(value) - excess)]
        return kept, len(value) - len(kept)
    return cut_text(value, max(0, len(value.encode()) - excess))


def _size(value: Any) -> int:
    if isinstance(value, Message):
        return value.ByteSize()
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, int | float):
        return 1
    if _is_map(value):
        return sum(_size(key) + _size(value[key]) for key in value)
    return sum(map(_size, value))


def _is_map(value: Any) -> bool:
    return hasattr(value, "items")


def split_text(text: str, most_bytes: int = MAX_EVENT_BYTES // 2) -> list[str]:
    """Split text into pieces of at most ``most_bytes`` of UTF-8, between characters."""
    most = most_bytes // 4  # no character takes more than four bytes
    return [text[start : start + most] for start in range(0, len(text), most)]
