"""Protobuf's well-known types as plain Python values."""

from dragoman.protocol.errors import invalid
from dragoman.protocol.texts import JsonValue, struct_values
from google.protobuf import duration_pb2, struct_pb2


def struct_to_dict(struct: struct_pb2.Struct, path: str = "config") -> dict[str, JsonValue]:
    """Return a Struct as Python values, whole numbers as ints.

    Raises:
        DragomanError: it holds a number that is none; the error names ``path``.
    """
    try:
        return struct_values(struct)
    except ValueError as error:
        raise invalid(path, "holds a number that is infinite or not a number") from error


def seconds(duration: duration_pb2.Duration) -> float:
    """Return a duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def duration(value_s: float | None) -> duration_pb2.Duration | None:
    """Return seconds as a Duration; None for None."""
    return None if value_s is None else duration_pb2.Duration(seconds=int(value_s), nanos=int(value_s % 1 * 1e9))
