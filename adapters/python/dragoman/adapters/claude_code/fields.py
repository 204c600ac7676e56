"""Reading frames that nobody vouches for: whatever is not what it should be reads as absent. Pure."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias

from dragoman.sdk import JsonValue, as_int, as_object, as_string
from google.protobuf import duration_pb2

Fields: TypeAlias = Mapping[str, JsonValue]
"""A JSON object."""

_MOST: Final = 2**63 - 1
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, in Unix seconds; Timestamp goes no further."""
_LONGEST_MS: Final = 315_576_000_000_000
"""Ten thousand years; Duration goes no further."""


def text(fields: Fields, key: str) -> str:
    """Return the text under ``key``; empty if there is none."""
    return as_string(fields.get(key), "")


def inner(fields: Fields, key: str) -> Fields:
    """Return the object under ``key``; empty if there is none."""
    return as_object(fields.get(key), {})


def objects(fields: Fields, key: str) -> list[Fields]:
    """Return the objects in the list under ``key``; what else it holds is left out."""
    return list(_objects(fields.get(key)))


def _objects(value: JsonValue) -> Iterable[Fields]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def count(fields: Fields, key: str) -> int | None:
    """Return the number under ``key``, if it is whole and not negative."""
    number = as_int(fields.get(key), None)
    return number if number is not None and 0 <= number <= _MOST else None


def number(fields: Fields, key: str) -> float | None:
    """Return the number under ``key``, if it is finite and not negative."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def moment(fields: Fields, key: str) -> datetime | None:
    """Return the Unix time in seconds under ``key``."""
    seconds = number(fields, key)
    if seconds is None or not 0 < seconds <= _LATEST_S:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def duration(fields: Fields, key: str) -> duration_pb2.Duration | None:
    """Return the milliseconds under ``key`` as a Duration."""
    milliseconds = number(fields, key)
    if milliseconds is None or milliseconds > _LONGEST_MS:
        return None
    made = duration_pb2.Duration()
    made.FromMilliseconds(int(milliseconds))
    return made
