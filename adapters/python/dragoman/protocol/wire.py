"""Events as bytes: reading sequence and kind without parsing, and batches.

``sequence`` is a fixed64 in field 1 and the body's fields come next by number, so serializers that write
fields in order (all known ones do; none promises to) put the sequence into bytes 1 to 8 and the body's tag at
byte 9. Anything else falls back to walking the message's top-level fields.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from dragoman.protocol.limits import MAX_BATCH_BYTES
from dragoman.v1 import event_pb2 as pb

_SEQUENCE_TAG = 0x09
_FIRST_BODY = 2
_LAST_BODY = 99
_BODIES = pb.AgentEvent.DESCRIPTOR.oneofs_by_name["body"].fields

KIND_BY_FIELD: dict[int, str] = {field.number: field.name for field in _BODIES}
"""The oneof's field numbers and names, e.g. ``{2: "text", ...}``."""
FIELD_BY_KIND: dict[str, int] = {name: number for number, name in KIND_BY_FIELD.items()}

RESULT = FIELD_BY_KIND["result"]
BATCH = FIELD_BY_KIND["batch"]
STARTED = FIELD_BY_KIND["started"]

NEVER_BATCHED = frozenset(
    FIELD_BY_KIND[kind]
    for kind in (
        "started",
        "session",
        "state",
        "input_request",
        "input_resolved",
        "attempt_ended",
        "gap",
        "result",
        "batch",
    )
)
"""Field numbers of bodies that a batch never carries."""


class MalformedEventError(ValueError):
    """The bytes are not an ``AgentEvent``."""


class Peek(NamedTuple):
    """What can be told of an event without parsing it."""

    sequence: int
    """0 for an ephemeral event."""
    field: int
    """The body's field number; 0 if there is none or it is unknown."""


def peek(data: bytes) -> Peek:
    """Read sequence and kind of a serialized event.

    Raises:
        MalformedEventError: ``data`` is not a protobuf message.
    """
    if len(data) > 10 and data[0] == _SEQUENCE_TAG:
        tag = data[9]
        if tag < 0x80 and tag & 7 == 2:
            return Peek(int.from_bytes(data[1:9], "little"), tag >> 3)
        second = data[10]
        if tag & 7 == 2 and second < 0x80:
            field = (tag & 0x7F | second << 7) >> 3
            if field <= _LAST_BODY:
                return Peek(int.from_bytes(data[1:9], "little"), field)
    return _walk(data)


def _walk(data: bytes) -> Peek:
    sequence = 0
    body = 0
    position = 0
    while position < len(data):
        field, wire_type, position = _tag(data, position)
        if field == 1 and wire_type == 1:
            sequence = int.from_bytes(data[position : position + 8], "little")
        elif _FIRST_BODY <= field <= _LAST_BODY and wire_type == 2:
            body = field  # the last member of a oneof wins
        position = _skip(data, position, wire_type)
    return Peek(sequence, body)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise MalformedEventError("a number is cut or too long")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _tag(data: bytes, position: int) -> tuple[int, int, int]:
    tag, position = _varint(data, position)
    return tag >> 3, tag & 7, position


def _skip(data: bytes, position: int, wire_type: int) -> int:
    if wire_type == 0:
        _, position = _varint(data, position)
    elif wire_type == 1:
        position += 8
    elif wire_type == 2:
        length, position = _varint(data, position)
        position += length
    elif wire_type == 5:
        position += 4
    else:
        raise MalformedEventError(f"wire type {wire_type} does not exist")
    if position > len(data):
        raise MalformedEventError("the message is cut")
    return position


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def join(events: Iterable[bytes]) -> bytes:
    """Make one batch event of serialized events, in order. Bytes are moved, nothing is parsed.

    Raises:
        ValueError: nothing to join, an event without sequence or of a kind that is never batched, sequences
            that do not grow, or more than 256 KiB.
    """
    last = 0
    parts = bytearray()
    for data in events:
        sequence, field = peek(data)
        if sequence <= last:
            raise ValueError("a batch's events have growing sequences")
        if field in NEVER_BATCHED:
            raise ValueError(f"{KIND_BY_FIELD[field]} is never batched")
        last = sequence
        parts += b"\x0a" + _encode_varint(len(data)) + data
    if not last:
        raise ValueError("a batch has events")
    if len(parts) > MAX_BATCH_BYTES:
        raise ValueError("a batch has at most 256 KiB")
    tag = _encode_varint(BATCH << 3 | 2)
    return b"\x09" + struct.pack("<Q", last) + tag + _encode_varint(len(parts)) + bytes(parts)


def split(data: bytes) -> list[bytes]:
    """Return the serialized events of a batch event; a list of ``data`` itself for any other event.

    Raises:
        MalformedEventError: ``data`` is not a protobuf message.
    """
    if peek(data).field != BATCH:
        return [data]
    events: list[bytes] = []
    for body in _members(data, BATCH):
        events.extend(_members(body, 1))
    return events


def _members(data: bytes, wanted: int) -> list[bytes]:
    found: list[bytes] = []
    position = 0
    while position < len(data):
        field, wire_type, position = _tag(data, position)
        start = position
        position = _skip(data, position, wire_type)
        if field == wanted and wire_type == 2:
            length, begin = _varint(data, start)
            found.append(data[begin : begin + length])
    return found


def unroll(event: pb.AgentEvent) -> list[pb.AgentEvent]:
    """Return the events of a batch; a list of ``event`` itself for any other event."""
    if event.WhichOneof("body") == "batch":
        return list(event.batch.events)
    return [event]
