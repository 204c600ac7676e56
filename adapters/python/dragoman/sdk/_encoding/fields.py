"""Reading JSON from an untrusted source: a value of the wrong type reads as absent. Pure."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias

from dragoman.sdk._encoding.config import as_int, as_object, as_string
from dragoman.sdk._encoding.json_text import JsonValue

Fields: TypeAlias = Mapping[str, JsonValue]
"""A JSON object."""

_MOST: Final = 2**63 - 1
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, in Unix seconds; Timestamp goes no further."""


def text(fields: Fields, key: str) -> str:
    """Return the text under ``key``; empty if there is none."""
    return as_string(fields.get(key), "")


def inner(fields: Fields, key: str) -> Fields:
    """Return the object under ``key``; empty if there is none."""
    return as_object(fields.get(key), {})


def objects(fields: Fields, key: str) -> list[Fields]:
    """Return the objects in the list under ``key``; what else it holds is left out."""
    value = fields.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def count(fields: Fields, key: str) -> int | None:
    """Return the number under ``key``, if it is whole and not negative."""
    value = as_int(fields.get(key), None)
    return value if value is not None and 0 <= value <= _MOST else None


def number(fields: Fields, key: str) -> float | None:
    """Return the number under ``key``, if it is finite and not negative."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def iso_moment(fields: Fields, key: str) -> datetime | None:
    """Return a time of RFC 3339 with its offset; None if there is none that a timestamp can hold."""
    try:
        moment = datetime.fromisoformat(text(fields, key))
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def unix_moment(fields: Fields, key: str) -> datetime | None:
    """Return the time under ``key``, in Unix seconds; None if there is none that a timestamp can hold."""
    seconds = number(fields, key)
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None and 0 < seconds <= _LATEST_S else None
