"""How much a request, and what an adapter says of itself, may hold: one table, checked on the wire before parsing.

Parsing comes after the check, as parsing 16 MiB of tiny entries alone takes more than a second. The check is one pass
over tags and lengths, stops at the first bound that is passed, and names the field. Bytes that are no protobuf are
left to the parser. The comments of ``proto/`` repeat the numbers; ``tests/protocol/test_bounds.py`` compares them.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid_fields
from dragoman.protocol.limits import MAX_REQUEST_BYTES, MIB
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from msgspec import Struct, field

KIB: Final = 1024


class Bound(Struct, frozen=True):
    """What one field may hold."""

    entries: int = 256
    """Of a list or a map."""
    name_bytes: int = 512
    """Of each key of a map."""
    text_bytes: int = 4 * KIB
    """Of a text, or of each text or value of bytes in a list or map."""
    total_bytes: int = MAX_REQUEST_BYTES
    """Of a map's names and values together."""


MOST_ELEMENTS: Final = 20_000
"""Fields, list items and map entries of one request, at every depth, together."""
MOST_VALUES: Final = 2_000
"""Values within the Structs of one request together; a list and an object count as values, too."""
DEEPEST: Final = 32
"""Levels of objects and lists within a Struct."""
LONGEST_DURATION_S: Final = 315_360_000
"""Ten years."""
MOST_FALLBACKS: Final = 16

_ANY_TEXT: Final = Bound(text_bytes=MAX_REQUEST_BYTES)
_KEPT_NAME: Final = Bound(text_bytes=512)
"""What runs and sessions are found by: databases keep such names in indexes, which have little room."""
_VARIABLES: Final = Bound(entries=1024, name_bytes=256, text_bytes=128 * KIB, total_bytes=512 * KIB)
"""The environment of a program: Linux gives one variable 128 KiB."""
_LABELS: Final = Bound(entries=64, name_bytes=128, text_bytes=1 * KIB)
_ATTACHED_NAME: Final = Bound(text_bytes=128)
_DOCUMENT: Final = Bound(text_bytes=256 * KIB)

BOUNDS: Final[Mapping[str, Bound]] = {
    # By message and field; "*" is any message. What is not named here has the defaults of ``Bound``.
    "*.adapter": Bound(text_bytes=256),
    "*.run_id": Bound(text_bytes=256),
    "*.env": _VARIABLES,
    "*.labels": _LABELS,
    "*.task_key": _KEPT_NAME,
    "*.agent_id": _KEPT_NAME,
    "*.company_id": _KEPT_NAME,
    "Agent.id": _KEPT_NAME,
    "ExecuteRequest.prompt": _ANY_TEXT,
    "ExecuteRequest.prompt_template": Bound(text_bytes=64 * KIB),
    "ExecuteRequest.system_prompt": _ANY_TEXT,
    "ExecuteRequest.auth_token": Bound(text_bytes=32 * KIB),
    "ExecuteRequest.mcp_servers": Bound(entries=64),
    "Instructions.text": _ANY_TEXT,
    "SessionSelector.handover": _ANY_TEXT,
    "Context.linked_issue_ids": Bound(text_bytes=512),
    "Workspace.additional_directories": Bound(entries=64),
    "SkillFiles.content": Bound(entries=1024, name_bytes=1 * KIB, text_bytes=MAX_REQUEST_BYTES),
    "McpStdio.args": Bound(text_bytes=32 * KIB),
    "McpStdio.env": Bound(entries=128, name_bytes=256, text_bytes=32 * KIB, total_bytes=128 * KIB),
    "McpHttp.url": Bound(text_bytes=8 * KIB),
    "McpHttp.headers": Bound(entries=64, name_bytes=256, text_bytes=8 * KIB, total_bytes=64 * KIB),
    "ExecuteRequest.attachments": Bound(entries=32),
    "Attachment.name": _ATTACHED_NAME,
    "Attachment.media_type": _ATTACHED_NAME,
    "Attachment.content": Bound(text_bytes=8 * MIB),
    "Permissions.rules": Bound(entries=512),
    "Fallback.adapters": Bound(entries=MOST_FALLBACKS, text_bytes=256),
    "Fallback.on": Bound(entries=64),
    "Fallback.configs": Bound(entries=MOST_FALLBACKS, name_bytes=256),
    "StoredAgent.description": Bound(text_bytes=1 * KIB),
    "StoredAgent.system_prompt": _DOCUMENT,
    "StoredAgent.mcp_servers": Bound(entries=64),
    "SendRequest.text": Bound(text_bytes=MIB),
    "SendRequest.attachments": Bound(entries=32),
    "InputAnswer.text": _ANY_TEXT,
    "InputAnswer.value_json": _ANY_TEXT,
    "InputAnswer.updated_input_json": _ANY_TEXT,
    "InputAnswer.message": _ANY_TEXT,
    "Value.string_value": _ANY_TEXT,
    # A Struct is bounded as a whole: MOST_VALUES, DEEPEST.
    "Struct.fields": Bound(entries=MOST_VALUES, name_bytes=1 * KIB),
    "ListValue.values": Bound(entries=MOST_VALUES),
    # What an adapter says of itself is kept, listed and sent to every client that lists adapters.
    "DescribeResponse.aliases": Bound(entries=32, text_bytes=128),
    "DescribeResponse.label": Bound(text_bytes=256),
    "DescribeResponse.version": Bound(text_bytes=256),
    "DescribeResponse.instance_id": Bound(text_bytes=256),
    "DescribeResponse.models": Bound(entries=1000),
    "DescribeResponse.duties": Bound(entries=64),
    "DescribeResponse.config_schema_json": _DOCUMENT,
    "DescribeResponse.configuration_doc": _DOCUMENT,
    "Model.id": Bound(text_bytes=256),
    "Model.label": Bound(text_bytes=256),
    "Capabilities.items": Bound(entries=128),
    "Capability.note": Bound(text_bytes=1 * KIB),
}


def check_size(size: int) -> None:
    """Refuse a request of more bytes than any server accepts.

    Raises:
        DragomanError: MESSAGE_TOO_LARGE.
    """
    if size > MAX_REQUEST_BYTES:
        most = MAX_REQUEST_BYTES // MIB
        message = f"the request has {size:,} bytes, and at most {most} MiB are accepted; give large inputs as files"
        raise DragomanError(Reason.MESSAGE_TOO_LARGE, message)


def check_request(kind: Descriptor, data: bytes) -> None:
    """Refuse a request that is too large in any way.

    Args:
        kind: the request's type.
        data: the request, serialized.

    Raises:
        DragomanError: MESSAGE_TOO_LARGE, or INVALID_REQUEST with the field whose bound is passed.
    """
    check_size(len(data))
    violation = first_violation(kind, data)
    if violation is not None:
        raise invalid_fields([violation])


def first_violation(kind: Descriptor, data: bytes) -> FieldViolation | None:
    """Return the first bound that a serialized message passes; ``None`` if it passes none, or cannot be read."""
    try:
        _Walk(data).message(_layout(kind), 0, len(data), "", 0)
    except _ViolationError as error:
        return error.violation
    except (IndexError, _MalformedError):
        return None  # the parser says so
    return None


class _ViolationError(Exception):
    def __init__(self, path: str, description: str) -> None:
        super().__init__(path)
        self.violation = FieldViolation(path, description)


class _MalformedError(Exception):
    pass


_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_SHOWN: Final = 64  # characters of a map's key that a path shows
_LONGEST_VARINT: Final = 63  # bits before the last of its ten bytes


class _Field(Struct):
    """What the walk needs to know of one field."""

    name: str
    bound: Bound
    is_repeated: bool
    is_text: bool
    is_packable: bool
    inner: "_Layout | None"


class _Layout(Struct):
    """What the walk needs to know of one message type."""

    name: str
    is_map_entry: bool
    fields: dict[int, _Field] = field(default_factory=dict)


@functools.cache
def _layout(kind: Descriptor) -> _Layout:
    layouts: dict[str, _Layout] = {}

    def layout_of(message: Descriptor) -> _Layout:
        if message.full_name not in layouts:
            layout = _Layout(message.full_name, bool(message.GetOptions().map_entry))
            layouts[message.full_name] = layout
            for one in message.fields:
                layout.fields[one.number] = _Field(
                    one.name,
                    BOUNDS.get(f"{message.name}.{one.name}") or BOUNDS.get(f"*.{one.name}") or Bound(),
                    one.is_repeated,
                    one.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES},
                    one.is_repeated and one.cpp_type not in _NEVER_PACKED,
                    layout_of(one.message_type) if one.message_type is not None else None,
                )
        return layouts[message.full_name]

    return layout_of(kind)


_NEVER_PACKED: Final = frozenset({FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE})


class _Walk:
    """One pass over a serialized message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._elements = 0
        self._values = 0

    def message(self, layout: _Layout, start: int, end: int, path: str, depth: int) -> None:
        """Check one message, which is between two positions."""
        counts: dict[int, list[int]] = {}
        for number, wire_type, begin, stop in self._entries(start, end, path):
            known = layout.fields.get(number)
            if known is None or (wire_type != _BYTES and not known.is_repeated):
                continue
            own = known.name if not path else f"{path}.{known.name}"
            if known.is_repeated:
                count = counts.setdefault(number, [0, 0])
                is_packed = known.is_packable and wire_type == _BYTES
                count[0] += self._packed(begin, stop, known, own) if is_packed else 1
                count[1] += stop - begin
                self._check_list(known, count, own)
                if known.inner is None and not known.is_text:
                    continue
                if known.inner is None or not known.inner.is_map_entry:
                    own = f"{own}[{count[0] - 1}]"
            if wire_type == _BYTES:
                self._value(known, begin, stop, own, depth)

    def _entries(self, start: int, end: int, path: str) -> Iterator[tuple[int, int, int, int]]:
        """Yield the number, wire type, beginning and end of each field of a message."""
        data, at = self._data, start
        while at < end:
            self._elements += 1
            if self._elements > MOST_ELEMENTS:
                message = f"has more than {MOST_ELEMENTS:,} fields, list items and map entries together"
                raise _ViolationError(path or "request", f"the request {message}; the one too many is here")
            tag, at = _varint(data, at)
            wire_type = tag & 7
            begin = at
            if wire_type == _BYTES:
                length, begin = _varint(data, at)
                at = begin + length
            elif wire_type == _VARINT:
                _, at = _varint(data, at)
            elif wire_type == _FIXED64:
                at += 8
            elif wire_type == _FIXED32:
                at += 4
            elif wire_type not in {_GROUP, _END_GROUP}:
                raise _MalformedError
            if at > end:
                raise _MalformedError
            yield tag >> 3, wire_type, begin, at

    def _value(self, known: _Field, begin: int, stop: int, path: str, depth: int) -> None:
        if known.inner is None:
            if known.is_text and stop - begin > known.bound.text_bytes:
                _refuse_length(path, known.bound.text_bytes)
        elif known.inner.is_map_entry:
            self._map_entry(known, begin, stop, path, depth)
        else:
            self._inner(known.inner, begin, stop, path, depth)

    def _inner(self, layout: _Layout, begin: int, stop: int, path: str, depth: int) -> None:
        match layout.name:
            case "google.protobuf.Duration":
                self._duration(begin, stop, path)
            case "google.protobuf.Struct" | "google.protobuf.ListValue":
                self._struct(layout, begin, stop, path, depth + 1)
            case "google.protobuf.Value":
                self._struct_value(layout, begin, stop, path, depth)
            case _:
                self.message(layout, begin, stop, path, depth)

    def _map_entry(self, known: _Field, begin: int, stop: int, path: str, depth: int) -> None:
        assert known.inner is not None
        key, value = b"", (0, 0)
        for number, wire_type, first, last in self._entries(begin, stop, path):
            if number == 1:
                if last - first > known.bound.name_bytes:
                    _refuse_length(path, known.bound.name_bytes, "a name in it ")
                key = self._data[first:last]
            elif number == 2 and wire_type == _BYTES:
                value = (first, last)
        own = f"{path}.{key.decode('utf-8', 'replace')[:_SHOWN]}"
        inner = known.inner.fields[2].inner
        if inner is not None:
            self._inner(inner, *value, own, depth)
        elif value[1] - value[0] > known.bound.text_bytes:
            _refuse_length(own, known.bound.text_bytes)

    # Within a Struct paths name the keys alone, as people write them.

    def _struct(self, layout: _Layout, begin: int, stop: int, path: str, depth: int) -> None:
        if depth > DEEPEST:
            raise _ViolationError(path, f"must not be nested more than {DEEPEST} levels deep")
        of = layout.fields[1]
        for number, wire_type, first, last in self._entries(begin, stop, path):
            if number != 1 or wire_type != _BYTES or of.inner is None:
                continue
            if of.inner.is_map_entry:
                self._map_entry(of, first, last, path, depth)
            else:
                self._struct_value(of.inner, first, last, path, depth)

    def _struct_value(self, layout: _Layout, begin: int, stop: int, path: str, depth: int) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            message = f"the objects of the request have more than {MOST_VALUES:,} values together"
            raise _ViolationError(path, f"{message}; the one too many is here")
        for number, wire_type, first, last in self._entries(begin, stop, path):
            known = layout.fields.get(number)
            if known is not None and known.inner is not None and wire_type == _BYTES:
                self._struct(known.inner, first, last, path, depth + 1)

    def _check_list(self, known: _Field, count: list[int], path: str) -> None:
        bound = known.bound
        if count[0] > bound.entries:
            raise _ViolationError(path, f"must not have more than {bound.entries:,} entries")
        if count[1] > bound.total_bytes:
            message = f"its names and values must not have more than {bound.total_bytes:,} bytes together"
            raise _ViolationError(path, message)

    def _packed(self, begin: int, stop: int, known: _Field, path: str) -> int:
        if stop - begin > known.bound.entries * 10:  # bytes of the longest varint
            raise _ViolationError(path, f"must not have more than {known.bound.entries:,} entries")
        return sum(byte < 0x80 for byte in self._data[begin:stop])

    def _duration(self, begin: int, stop: int, path: str) -> None:
        if stop - begin > _SHOWN:
            return  # a Duration with fields of a later revision, or one field many times; the last one counts
        try:
            sent = Duration.FromString(self._data[begin:stop])
        except DecodeError:
            raise _MalformedError from None
        if problem := wrong_duration(sent):
            raise _ViolationError(path, problem)


def wrong_duration(sent: Duration) -> str | None:
    """Return what is wrong with a duration in a request; ``None`` if nothing is."""
    if sent.seconds < 0 or sent.nanos < 0:
        return "must not be negative"
    if sent.seconds > LONGEST_DURATION_S or sent.nanos >= 1_000_000_000:
        return f"must not be longer than {LONGEST_DURATION_S:,} s, and its nanos must be below 1,000,000,000"
    return None


def _refuse_length(path: str, most: int, what: str = "") -> NoReturn:
    raise _ViolationError(path, f"{what}must not be longer than {most:,} bytes")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _LONGEST_VARINT:
            raise _MalformedError
