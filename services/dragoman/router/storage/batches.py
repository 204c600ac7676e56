"""Events in a row as one value: each behind its length. Pure."""

from collections.abc import Iterable, Iterator

from dragoman.protocol.wire import encode_varint, read_varint


def pack(events: Iterable[bytes]) -> bytes:
    """Return events as one value."""
    packed = bytearray()
    for data in events:
        packed += encode_varint(len(data))
        packed += data
    return bytes(packed)


def unpack(packed: bytes) -> Iterator[bytes]:
    """Yield the events of a value.

    Raises:
        ValueError: it is no such value.
    """
    position = 0
    while position < len(packed):
        try:
            length, position = read_varint(packed, position)
        except IndexError as error:
            raise ValueError("a length is truncated") from error
        if position + length > len(packed):
            raise ValueError("an event is truncated")
        yield packed[position : position + length]
        position += length
