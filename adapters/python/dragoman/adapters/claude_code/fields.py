"""Points in time in frames, where what has another type reads as absent. Pure."""

from datetime import UTC, datetime
from typing import Final

from dragoman.sdk.fields import Fields, number

_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, in Unix seconds; Timestamp goes no further."""


def moment(fields: Fields, key: str) -> datetime | None:
    """Return the Unix time in seconds under ``key``."""
    seconds = number(fields, key)
    if seconds is None or not 0 < seconds <= _LATEST_S:
        return None
    return datetime.fromtimestamp(seconds, UTC)
