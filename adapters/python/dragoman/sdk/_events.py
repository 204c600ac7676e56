"""Events on their way out: redacting their string leaves, and keeping them within 1 MiB. Pure."""

import json
from typing import Any

from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.sdk._json import compact
from dragoman.sdk._lines import cut_text
from dragoman.sdk._redaction import Redactor
from dragoman.v1 import event_pb2 as pb
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_ENVELOPE_BYTES = 4096
"""Room for the envelope and the body's small fields."""

_LARGE_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("whole",),
    "thinking": ("whole",),
    "log": ("raw", "text"),
    "tool_call": ("input_json",),
    "tool_result": ("output_json", "content"),
    "message": ("text",),
    "file_change": ("diff",),
    "result": ("raw_json", "raw_tail", "raw_head", "structured_output_json", "summary"),
}
"""Fields that may be cut, those that are missed least first. All bodies here count in `truncated_bytes`."""

_CUTTABLE_ITEMS: dict[str, tuple[str, ...]] = {
    "session": ("tools", "commands", "skills"),
    "started": ("argv", "notes"),
}
"""Lists that are shortened at the end where nothing else can be."""


def redact_event(event: pb.AgentEvent, redactor: Redactor) -> None:
    """Redact the string leaves of the body, in place, and mark the event if anything was.

    Keys, ids of enums and numbers are never touched. Fields named ``*_json`` hold JSON text: there, values
    under keys that name secrets go too, and the text stays verbatim unless something was found.
    """
    kind = event.WhichOneof("body")
    if kind is None:
        return
    if _redact_message(getattr(event, kind), redactor):
        event.redacted = True
    if event.HasField("native") and _redact_message(event.native, redactor):
        event.redacted = True


def _redact_message(message: Message, redactor: Redactor) -> bool:
    changed = False
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            changed |= _redact_strings(message, field, value, redactor)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            changed |= _redact_bytes(message, field, value, redactor)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            changed |= _redact_submessages(value, redactor)
    return changed


def _redact_strings(message: Message, field: FieldDescriptor, value: Any, redactor: Redactor) -> bool:
    redact = redactor.text if not field.name.endswith("_json") else lambda text: redact_json(text, redactor)
    if field.is_repeated:
        shown = [redact(item) for item in value]
        if all(new is old for new, old in zip(shown, value, strict=True)) or shown == list(value):
            return False
        del value[:]
        value.extend(shown)
        return True
    shown_one = redact(value)
    if shown_one == value:
        return False
    setattr(message, field.name, shown_one)
    return True


def _redact_bytes(message: Message, field: FieldDescriptor, value: bytes, redactor: Redactor) -> bool:
    text = value.decode("utf-8", "surrogateescape")
    shown = redactor.text(text)
    if shown == text:
        return False
    setattr(message, field.name, shown.encode("utf-8", "surrogateescape"))
    return True


def _redact_submessages(value: Any, redactor: Redactor) -> bool:
    if isinstance(value, Message):
        return _redact_message(value, redactor)
    if hasattr(value, "items"):
        return _redact_map(value, redactor)
    changed = False
    for item in value:
        changed |= _redact_message(item, redactor)  # all of them, not only up to the first that changes
    return changed


def _redact_map(entries: Any, redactor: Redactor) -> bool:
    changed = False
    for key in list(entries):
        value = entries[key]
        if isinstance(value, Message):
            changed |= _redact_message(value, redactor)
        elif isinstance(value, str):
            shown = redactor.text(value)
            if shown != value:
                entries[key] = shown
                changed = True
    return changed


def redact_json(text: str, redactor: Redactor) -> str:
    """Redact JSON text by value and by key; ``text`` itself if there was nothing, or it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return redactor.text(text)
    shown = redactor.value(value)
    # Secrets may hide in keys too, where only their value tells.
    return redactor.text(text if shown is value else compact(shown))


def fit_event(event: pb.AgentEvent) -> None:
    """Cut the body's large fields until the event has at most 1 MiB; count what was cut."""
    excess = event.ByteSize() - (MAX_EVENT_BYTES - _ENVELOPE_BYTES)
    kind = event.WhichOneof("body")
    if excess <= 0 or kind is None:
        return
    body = getattr(event, kind)
    for name in _LARGE_FIELDS.get(kind, ()):
        value = getattr(body, name)
        size = len(value) if isinstance(value, bytes) else len(value.encode())
        if not size:
            continue
        kept, cut = _cut(value, max(0, size - excess))
        setattr(body, name, kept)
        body.truncated_bytes += cut
        excess -= cut
        if excess <= 0:
            return
    for name in _CUTTABLE_ITEMS.get(kind, ()):
        items = getattr(body, name)
        while items and event.ByteSize() > MAX_EVENT_BYTES - _ENVELOPE_BYTES:
            del items[len(items) // 2 :]


def _cut(value: str | bytes, size: int) -> tuple[str | bytes, int]:
    if isinstance(value, bytes):
        return value[:size], len(value) - size
    return cut_text(value, size)


def split_text(text: str, most_bytes: int = MAX_EVENT_BYTES // 2) -> list[str]:
    """Split text into pieces of at most ``most_bytes`` of UTF-8, between characters."""
    pieces: list[str] = []
    while text:
        piece, cut = cut_text(text, most_bytes)
        pieces.append(piece)
        text = text[len(piece) :] if cut else ""
    return pieces
