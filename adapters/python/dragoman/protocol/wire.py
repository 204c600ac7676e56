"""Events as bytes: reading sequence and kind, joining and splitting batches.

``sequence`` is a fixed64 in field 1 and the body's fields come next by number, so serializers that write
fields in order (all known ones do; none promises to) put the sequence into bytes 1 to 8 and the body's tag at
byte 9. Programs without a fast parser may rely on that and fall back to a parse. Here the parse is the fast
way: it takes a microsecond, as long as looking at the bytes in Python, and is right for any order of fields.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import DecodeError

_BODIES = pb.AgentEvent.DESCRIPTOR.oneofs_by_name["body"].fields

KIND_BY_FIELD: dict[int, str] = {field.number: field.name for field in _BODIES}
"""The oneof's field numbers and names, e.g. ``{2: "text", ...}``."""
FIELD_BY_KIND: dict[str, int] = {name: number for number, name in KIND_BY_FIELD.items()}

BATCH = FIELD_BY_KIND["batch"]
RESULT = FIELD_BY_KIND["result"]

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
        "input_accepted",
        "input_dropped",
        "run_updated",
    )
)
"""Field numbers of bodies that a batch never carries."""


_BATCHED = frozenset(KIND_BY_FIELD[field] for field in KIND_BY_FIELD.keys() - NEVER_BATCHED)
_LARGE_BYTES = MAX_BATCH_BYTES // 2
_HEAD_BYTES = 16
"""More than what a batch has before its events: its sequence, and tag and length of its body."""
_PART_BYTES = 4
"""Tag and length of an event in a batch, at most: no event there has 2 MiB."""


class MalformedEventError(ValueError):
    """The bytes are not an ``AgentEvent``."""


class Peek(NamedTuple):
    """Where an event stands and what it is."""

    sequence: int
    """0 for an ephemeral event."""
    field: int
    """The body's field number; 0 if there is none or it is of a later revision."""


def peek(data: bytes) -> Peek:
    """Read sequence and kind of a serialized event.

    Raises:
        MalformedEventError: ``data`` is not an ``AgentEvent``.
    """
    event = _parse(data)
    kind = event.WhichOneof("body")
    return Peek(event.sequence, FIELD_BY_KIND[kind] if kind else 0)


def _parse(data: bytes) -> pb.AgentEvent:
    try:
        return pb.AgentEvent.FromString(data)
    except DecodeError as error:
        raise MalformedEventError("these bytes are not an AgentEvent") from error


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it.

    Raises:
        IndexError: the data ends before it does.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def encode_varint(value: int) -> bytes:
    """Return a number in seven bits a byte, the lowest first, as Protobuf has it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def join(events: Iterable[bytes]) -> list[bytes]:
    """Return messages with these events, in order: neighbours that may share a batch as one, the others as they are.

    Bytes are moved, nothing is written anew.

    Args:
        events: serialized events.
    """
    messages: list[bytes] = []
    waiting: list[bytes] = []
    size, last = 0, 0
    for data in events:
        sequence = _sequence_in_batch(data)
        part_bytes = len(data) + _PART_BYTES
        is_full = size + part_bytes > MAX_BATCH_BYTES or len(waiting) == MAX_BATCH_EVENTS
        if waiting and (is_full or sequence != last + 1):
            messages.append(_message(waiting, last))
            waiting = []
        if not sequence:
            messages.append(data)
            continue
        size = size + part_bytes if waiting else _HEAD_BYTES + part_bytes
        waiting.append(data)
        last = sequence
    if waiting:
        messages.append(_message(waiting, last))
    return messages


def _sequence_in_batch(data: bytes) -> int:
    """Return the sequence of an event that may be in a batch; 0 if it may not, or is too large to gain by it."""
    if len(data) > _LARGE_BYTES:
        return 0
    try:
        event = pb.AgentEvent.FromString(data)
    except DecodeError:
        return 0  # for its reader to judge
    return event.sequence if event.WhichOneof("body") in _BATCHED else 0


def _message(events: list[bytes], last: int) -> bytes:
    if len(events) == 1:
        return events[0]
    parts = bytearray()
    for data in events:
        parts += b"\x0a" + encode_varint(len(data)) + data
    return b"\x09" + struct.pack("<Q", last) + encode_varint(BATCH << 3 | 2) + encode_varint(len(parts)) + parts


def split(data: bytes) -> list[bytes]:
    """Return the serialized events of a batch event; a list of ``data`` itself for any other event.

    Raises:
        MalformedEventError: ``data`` is not an ``AgentEvent``.
    """
    event = _parse(data)
    if event.WhichOneof("body") != "batch":
        return [data]
    bodies = _members(data, BATCH)
    if bodies is not None and len(bodies) == 1:
        events = _members(bodies[0], 1)
        if events is not None:
            return events
    # An encoding that no serializer writes; then equal events are good enough.
    return [inner.SerializeToString() for inner in event.batch.events]


def _members(data: bytes, field_number: int) -> list[bytes] | None:
    """Return the values of one field in a well-formed message; ``None`` if it contains groups."""
    found: list[bytes] = []
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        wire_type = tag & 7
        if wire_type == 0:
            _, position = read_varint(data, position)
        elif wire_type == 1:
            position += 8
        elif wire_type == 2:
            length, position = read_varint(data, position)
            if tag >> 3 == field_number:
                found.append(data[position : position + length])
            position += length
        elif wire_type == 5:
            position += 4
        else:
            return None
    return found


def unroll(event: pb.AgentEvent) -> list[pb.AgentEvent]:
    """Return the events of a batch; a list of ``event`` itself for any other event."""
    if event.WhichOneof("body") == "batch":
        return list(event.batch.events)
    return [event]
