"""Events in a row as one value: each behind its length. Pure."""

from collections.abc import Iterable, Iterator


def pack(events: Iterable[bytes]) -> bytes:
    """Return events as one value."""
    packed = bytearray()
    for data in events:
        length = len(data)
        while length >= 0x80:
            packed.append(length & 0x7F | 0x80)
            length >>= 7
        packed.append(length)
        packed += data
    return bytes(packed)


def unpack(packed: bytes) -> Iterator[bytes]:
    """Yield the events of a value.

    Raises:
        ValueError: it is no such value.
    """
    position = 0
    while position < len(packed):
        length = shift = 0
        while True:
            if position >= len(packed) or shift > 28:
                raise ValueError("a length is truncated or too long")
            byte = packed[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if position + length > len(packed):
            raise ValueError("an event is truncated")
        yield packed[position : position + length]
        position += length
