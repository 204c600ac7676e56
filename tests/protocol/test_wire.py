"""Events as bytes: peek equals a full parse whatever the bytes look like; batches move bytes unchanged."""

import struct

import pytest
from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from dragoman.protocol.wire import (
    FIELD_BY_KIND,
    KIND_BY_FIELD,
    NEVER_BATCHED,
    MalformedEventError,
    Peek,
    join,
    peek,
    split,
    unroll,
)
from dragoman.v1 import event_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from .streams import EPHEMERALS, body, durable, runs

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = 0, 1, 2, 3, 4, 5


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number: int, wire_type: int, value: bytes) -> bytes:
    length = varint(len(value)) if wire_type == BYTES else b""
    return varint(number << 3 | wire_type) + length + value


def sequence(number: int) -> bytes:
    return field(1, FIXED64, struct.pack("<Q", number))


def parsed(data: bytes) -> Peek:
    """What the full parse says; the oracle."""
    event = pb.AgentEvent.FromString(data)
    kind = event.WhichOneof("body")
    return Peek(event.sequence, FIELD_BY_KIND.get(kind or "", 0))


# --- peek


def test_the_kinds_are_those_of_the_contract() -> None:
    assert len(KIND_BY_FIELD) == len(FIELD_BY_KIND) == 28
    hot = {"text", "thinking", "tool_output", "log", "tool_call", "tool_result", "usage"}
    assert {kind for number, kind in KIND_BY_FIELD.items() if number <= 15} == hot
    assert max(KIND_BY_FIELD) < 100


@pytest.mark.parametrize("kind", FIELD_BY_KIND)
def test_every_kind_with_and_without_sequence_and_content(kind: str) -> None:
    for event in (body(kind), durable(kind, 7), durable(kind, 2**64 - 1)):
        assert peek(event.SerializeToString()) == (event.sequence, FIELD_BY_KIND[kind])
    bare = pb.AgentEvent(sequence=3)
    getattr(bare, kind).SetInParent()
    assert peek(bare.SerializeToString()) == (3, FIELD_BY_KIND[kind])


@pytest.mark.parametrize("kind", FIELD_BY_KIND)
def test_programs_without_a_fast_parser_find_cursor_and_kind_at_fixed_places(kind: str) -> None:
    """The promise of the layout: the first nine bytes are the sequence, then comes the body's tag."""
    data = durable(kind, 0x0102030405060708).SerializeToString()
    assert data[:9] == b"\x09\x08\x07\x06\x05\x04\x03\x02\x01"
    assert data[9:].startswith(varint(FIELD_BY_KIND[kind] << 3 | BYTES))
    assert (data[9] < 0x80) is (FIELD_BY_KIND[kind] < 16)


TABLE = {
    "nothing at all": b"",
    "only a sequence": sequence(5),
    "a body, no sequence": field(2, BYTES, b""),
    "the sequence last": field(2, BYTES, b"\x1a\x01x") + field(100, BYTES, b"run") + sequence(9),
    "the envelope first": field(100, BYTES, b"run") + sequence(9) + field(28, BYTES, b""),
    "two sequences": sequence(1) + field(2, BYTES, b"") + sequence(2),
    "a sequence of zero": sequence(0) + field(2, BYTES, b""),
    "two members, the last wins": sequence(1) + field(2, BYTES, b"") + field(28, BYTES, b""),
    "two members, the result first": sequence(1) + field(28, BYTES, b"") + field(2, BYTES, b""),
    "a member after the envelope": sequence(1)
    + field(2, BYTES, b"")
    + field(102, VARINT, b"\x01")
    + field(28, BYTES, b""),
    "one member twice": sequence(1) + field(2, BYTES, b"\x0a\x01a") + field(2, BYTES, b"\x1a\x01b"),
    "a body of a later revision": sequence(1) + field(40, BYTES, b"abc") + field(100, BYTES, b"run"),
    "a later body behind a known one": sequence(1) + field(2, BYTES, b"") + field(40, BYTES, b"abc"),
    "a body's number with another type": sequence(1) + field(2, VARINT, b"\x05"),
    "the sequence's number with another type": field(1, VARINT, b"\x05") + field(2, BYTES, b""),
    "the sequence as bytes": field(1, BYTES, b"12345678") + field(2, BYTES, b""),
    "an unknown fixed32": field(77, FIXED32, b"abcd") + sequence(3) + field(17, BYTES, b""),
    "an unknown fixed64": field(500, FIXED64, b"abcdefgh") + sequence(3) + field(17, BYTES, b""),
    "an unknown group": varint(60 << 3 | START_GROUP)
    + field(2, BYTES, b"")
    + varint(60 << 3 | END_GROUP)
    + sequence(4),
    "a tag longer than needed": b"\x92\x00\x00" + sequence(4),
}


@pytest.mark.parametrize("name", TABLE)
def test_peek_equals_a_full_parse(name: str) -> None:
    assert peek(TABLE[name]) == parsed(TABLE[name])


def test_peek_says_what_the_table_is_about() -> None:
    """The oracle itself is right in the cases that matter."""
    assert peek(TABLE["the sequence last"]) == (9, FIELD_BY_KIND["text"])
    assert peek(TABLE["two members, the last wins"]) == (1, FIELD_BY_KIND["result"])
    assert peek(TABLE["two members, the result first"]) == (1, FIELD_BY_KIND["text"])
    assert peek(TABLE["a member after the envelope"]) == (1, FIELD_BY_KIND["result"])
    assert peek(TABLE["a body of a later revision"]) == (1, 0)
    assert peek(TABLE["an unknown group"]) == (4, 0)
    assert peek(b"") == (0, 0)


pieces = st.one_of(
    st.integers(0, 2**64 - 1).map(sequence),
    st.sampled_from(sorted(KIND_BY_FIELD)).map(lambda number: field(number, BYTES, b"")),
    st.tuples(st.integers(1, 600), st.binary(max_size=4)).map(lambda item: field(item[0], BYTES, item[1])),
    st.tuples(st.integers(1, 600), st.integers(0, 300)).map(lambda item: field(item[0], VARINT, varint(item[1]))),
    st.tuples(st.integers(1, 600), st.binary(min_size=4, max_size=4)).map(
        lambda item: field(item[0], FIXED32, item[1])
    ),
)


@given(st.lists(pieces, max_size=8).map(b"".join))
def test_peek_equals_a_full_parse_for_any_order_of_fields(data: bytes) -> None:
    try:
        expected = parsed(data)
    except DecodeError:
        with pytest.raises(MalformedEventError):
            peek(data)
        return
    assert peek(data) == expected


@given(st.binary(max_size=64))
def test_any_bytes_are_an_event_or_malformed(data: bytes) -> None:
    try:
        expected = parsed(data)
    except DecodeError:
        with pytest.raises(MalformedEventError):
            peek(data)
        with pytest.raises(MalformedEventError):
            split(data)
        return
    assert peek(data) == expected
    assert split(data)


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_cut_event_is_malformed_or_what_is_left_of_it(cut: int) -> None:
    data = durable("text", 7).SerializeToString()
    data = data[: -min(cut, len(data))]
    try:
        expected = parsed(data)
    except DecodeError:
        with pytest.raises(MalformedEventError, match="not an AgentEvent"):
            peek(data)
        return
    assert peek(data) == expected


# --- batches


def event_bytes(kind: str, number: int) -> bytes:
    return durable(kind, number).SerializeToString()


@st.composite
def to_send(draw: st.DrawFn) -> list[bytes]:
    """What a reader is sent at once: some of a run's events, others between them, gaps, fields of later revisions."""
    events = draw(runs())
    begin = draw(st.integers(0, len(events) - 1))
    out: list[bytes] = []
    for event in events[begin:]:
        if draw(st.integers(0, 9)) == 0:
            continue  # missing
        event.native.text = draw(st.text(max_size=200))
        out.append(event.SerializeToString() + draw(st.sampled_from([b"", field(90, BYTES, b"later")])))
        if draw(st.integers(0, 4)) == 0:
            out.append(draw(st.sampled_from(EPHEMERALS))().SerializeToString())
    return out


@given(to_send())
def test_joined_events_are_the_same_events_byte_for_byte(events: list[bytes]) -> None:
    messages = join(events)
    assert [data for message in messages for data in split(message)] == events
    for message in messages:
        event = pb.AgentEvent.FromString(message)
        inner = unroll(event)
        assert inner == [pb.AgentEvent.FromString(data) for data in split(message)]
        if event.HasField("batch"):
            assert len(inner) > 1
            assert peek(message) == (inner[-1].sequence, FIELD_BY_KIND["batch"])
            assert event.SerializeToString() == message
            assert [one.sequence for one in inner] == [*range(inner[0].sequence, event.sequence + 1)]
            assert all(FIELD_BY_KIND[one.WhichOneof("body") or ""] not in NEVER_BATCHED for one in inner)


def test_what_is_no_batch_is_its_own_only_part() -> None:
    event = durable("text", 1)
    data = event.SerializeToString()
    assert split(data) == [data]
    assert unroll(event) == [event]
    assert split(b"") == [b""]


def test_all_that_may_be_in_one_batch_is() -> None:
    kinds = sorted(kind for kind, number in FIELD_BY_KIND.items() if number not in NEVER_BATCHED)
    events = [event_bytes(kind, number) for number, kind in enumerate(kinds, 1)]
    assert len(join(events)) == 1
    assert join([]) == []


@pytest.mark.parametrize(
    "between",
    [
        event_bytes("text", 1),
        event_bytes("text", 4),
        event_bytes("heartbeat", 0),
        event_bytes("text", 0),
        sequence(3),
        b"no event",
        *(event_bytes(KIND_BY_FIELD[number], 3) for number in sorted(NEVER_BATCHED)),
    ],
)
def test_what_may_not_be_in_a_batch_stays_by_itself(between: bytes) -> None:
    before, after = [event_bytes("text", 1), event_bytes("log", 2)], [event_bytes("text", 6), event_bytes("text", 7)]
    messages = join([*before, between, *after])
    assert messages == [*join(before), between, *join(after)]
    assert len(messages) == 3


@pytest.mark.parametrize("size", [100, MAX_BATCH_BYTES // 8, MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES])
def test_a_batch_is_at_most_256_kib_as_a_whole(size: int) -> None:
    event = durable("log", 1)
    event.log.text = "x" * size
    events = []
    for event.sequence in range(1, 3 + 3 * MAX_BATCH_BYTES // size):
        events.append(event.SerializeToString())
    messages = join(events)
    assert [data for message in messages for data in split(message)] == events
    is_batchable = size < MAX_BATCH_BYTES // 2
    assert {pb.AgentEvent.FromString(message).HasField("batch") for message in messages[:-1]} == {is_batchable}
    if is_batchable:
        assert max(map(len, messages)) <= MAX_BATCH_BYTES == 256 * 1024
        fewest = min(len(split(message)) for message in messages[:-1])
        assert fewest == MAX_BATCH_EVENTS or min(map(len, messages[:-1])) + len(events[0]) > MAX_BATCH_BYTES * 0.9


def test_batches_written_in_strange_ways_split_into_the_same_events() -> None:
    one, two = event_bytes("text", 1), event_bytes("log", 2)
    whole = [pb.AgentEvent.FromString(one), pb.AgentEvent.FromString(two)]
    parts = field(32, BYTES, field(1, BYTES, one)), field(32, BYTES, field(1, BYTES, two))
    group = varint(9 << 3 | START_GROUP) + varint(9 << 3 | END_GROUP)
    ways = {
        "in two pieces": sequence(2) + parts[0] + parts[1],
        "the sequence last": parts[0] + field(100, BYTES, b"run") + parts[1] + sequence(2),
        "with a group inside": sequence(2) + field(32, BYTES, field(1, BYTES, one) + group + field(1, BYTES, two)),
        "with a group beside": group + sequence(2) + parts[0] + parts[1],
        "with unknown fields": sequence(2)
        + field(
            32,
            BYTES,
            field(7, VARINT, b"\x01")
            + field(1, BYTES, one)
            + field(8, FIXED32, b"abcd")
            + field(9, FIXED64, b"abcdefgh")
            + field(1, BYTES, two),
        ),
    }
    for name, data in ways.items():
        assert [pb.AgentEvent.FromString(part) for part in split(data)] == whole, name
    replaced = sequence(2) + parts[0] + field(2, BYTES, b"") + parts[1]
    assert [pb.AgentEvent.FromString(part) for part in split(replaced)] == whole[1:]
    ended = sequence(2) + parts[0] + field(28, BYTES, b"")
    assert split(ended) == [ended]
    assert peek(ended) == (2, FIELD_BY_KIND["result"])


def test_bytes_are_kept_whatever_stands_beside_them() -> None:
    """An event with its fields in another order would look otherwise if it were written anew."""
    odd = field(100, BYTES, b"run-1") + field(2, BYTES, b"") + sequence(1)
    assert pb.AgentEvent.FromString(odd).SerializeToString() != odd
    beside = [
        field(7, VARINT, b"\xff\x01"),
        field(8, FIXED32, b"abcd"),
        field(9, FIXED64, b"abcdefgh"),
        field(500, BYTES, b"x"),
    ]
    for extra in beside:
        data = extra + sequence(1) + field(32, BYTES, extra + field(1, BYTES, odd) + extra) + extra
        assert split(data) == [odd]


def test_an_event_with_text_that_is_not_utf8_is_malformed() -> None:
    bad = sequence(1) + field(2, BYTES, field(3, BYTES, b"\xff"))
    with pytest.raises(MalformedEventError):
        peek(bad)
