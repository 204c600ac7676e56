"""Points in time and durations in frames: what has another type reads as absent. Pure."""

from datetime import UTC, datetime
from typing import Final

from dragoman.sdk.fields import Fields, number
from google.protobuf import duration_pb2

_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, in Unix seconds; Timestamp goes no further."""
_LONGEST_MS: Final = 315_576_000_000_000
"""Ten thousand years; Duration goes no further."""


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
    value = duration_pb2.Duration()
    value.FromMilliseconds(int(milliseconds))
    return value
