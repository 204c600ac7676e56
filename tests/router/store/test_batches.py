"""Events in a row as one value."""

import pytest
from dragoman.router.storage.batches import pack, unpack
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.binary(max_size=300)))
def test_what_was_packed_is_unpacked(events: list[bytes]) -> None:
    assert list(unpack(pack(events))) == events


def test_long_events_too() -> None:
    events = [b"x" * size for size in (127, 128, 16383, 16384, 1 << 20)]
    assert list(unpack(pack(events))) == events


@given(st.binary(max_size=60))
def test_nothing_else_is_taken_for_one(data: bytes) -> None:
    try:
        events = list(unpack(data))
    except ValueError:
        return
    assert list(unpack(pack(events))) == events


@pytest.mark.parametrize("cut", [b"\x05abc", b"\x80", b"\xff\xff\xff\xff\xff\xff\x01"])
def test_a_cut_value_is_no_value(cut: bytes) -> None:
    with pytest.raises(ValueError, match="truncated"):
        list(unpack(cut))
