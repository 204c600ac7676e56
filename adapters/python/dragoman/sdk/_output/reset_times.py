"""The earliest time of a retry, as services state it: durations, ISO 8601, seconds since 1970, response headers.

Times of day ("resets 3pm") are not read: the agents that print them also report the moment as a number.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from dragoman.sdk._output.failure_rules import LazyPattern

_LONGEST_WAIT: Final = timedelta(days=62)
"""A moment further away than this is a misreading."""

_UNIT_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_CUE: Final = (
    r"(?:(?:reset|refresh|renew)s?|(?:try|retry)(?:\s+(?:again|your\s+request))?|retry[-_ ]?(?:after|delay)"
    r"|available(?:\s+again)?|wait)"
)
_LINK: Final = r"(?:\"?\s*[:=]\s*\"?|\s+(?:on|at|in|after|for|until|by)\s+|\s+)"
_UNIT: Final = r"(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)(?![a-z])"
_AMOUNT: Final = rf"[0-9]{{1,9}}(?:\.[0-9]{{1,12}})?\s?{_UNIT}"


_DURATION: Final = LazyPattern(rf"\b{_CUE}{_LINK}(?P<amounts>{_AMOUNT}(?:(?:,?\s*(?:and\s+)?){_AMOUNT}){{0,5}})")
_PLAIN_SECONDS: Final = LazyPattern(
    r"\bretry[-_ ]?after\"?\s*[:=]?\s*\"?(?P<seconds>[0-9]{1,9})(?![0-9:.-])(?!\s?[a-z])"
)
_STAMP: Final = LazyPattern(
    rf"\b{_CUE}{_LINK}(?P<stamp>20[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}[T ][0-9:.]{{5,18}}(?:Z|[+-][0-9:]{{4,5}})?)"
)
_EPOCH: Final = LazyPattern(
    r"\blimit reached\s?\|\s?(?P<epoch>[0-9]{10})\b|\bresets?(?:_?at)?\"?\s*[:=]\s*(?P<at>[0-9]{10})\b"
)
_ONE_AMOUNT: Final = re.compile(r"([0-9.]+)\s?([a-z]+)", re.IGNORECASE)


def parse_reset_time(text: str, now: datetime) -> datetime | None:
    """Return the time that ``text`` asks to wait for, in UTC; None if it names none.

    Args:
        text: An error message: "try again in 2 hours 5 minutes", "retryDelay": "34.07s",
            "resets at 2026-11-22T10:00:00Z".
        now: The present, with a zone; a timestamp without one is in that zone.
    """
    for pattern, moment in _READERS:
        match = pattern.search(text)
        if match:
            return _sane(moment(match, now), now)
    return None


def parse_retry_headers(headers: Mapping[str, str], now: datetime) -> datetime | None:
    """Return the time that a response's headers ask to wait for, in UTC; None if they name none.

    Knows ``Retry-After`` in seconds and as a date, ``Retry-After-Ms``, and the resets of Anthropic's
    unified limit and of GitHub, in seconds since 1970.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = _number(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return _sane(_later(now, milliseconds / 1000), now)
    after = lower.get("retry-after", "")
    seconds = _number(after)
    if seconds is not None:
        return _sane(_later(now, seconds), now)
    try:
        return _sane(parsedate_to_datetime(after), now)
    except ValueError:
        pass
    for name in ("anthropic-ratelimit-unified-reset", "x-ratelimit-reset"):
        epoch = _number(lower.get(name))
        if epoch is not None:
            return _sane(_at_epoch(epoch), now)
    return None


def _by_duration(match: re.Match[str], now: datetime) -> datetime | None:
    seconds = 0.0
    for amount, unit in _ONE_AMOUNT.findall(match["amounts"]):
        name = unit.lower()
        seconds += float(amount) * _UNIT_SECONDS["ms" if name.startswith(("ms", "mil")) else name[0]]
    return _later(now, seconds)


def _by_seconds(match: re.Match[str], now: datetime) -> datetime | None:
    return _later(now, float(match["seconds"]))


def _by_stamp(match: re.Match[str], now: datetime) -> datetime | None:
    try:
        moment = datetime.fromisoformat(match["stamp"])
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)


def _by_epoch(match: re.Match[str], _now: datetime) -> datetime | None:
    return _at_epoch(float(match["epoch"] or match["at"]))


_READERS: Final[tuple[tuple[LazyPattern, Callable[[re.Match[str], datetime], datetime | None]], ...]] = (
    (_STAMP, _by_stamp),
    (_EPOCH, _by_epoch),
    (_DURATION, _by_duration),
    (_PLAIN_SECONDS, _by_seconds),
)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _later(now: datetime, seconds: float) -> datetime | None:
    return now + timedelta(seconds=seconds) if seconds <= _LONGEST_WAIT.total_seconds() else None


def _at_epoch(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _sane(moment: datetime | None, now: datetime) -> datetime | None:
    """Return ``moment`` in UTC if it is worth waiting for: ahead, and not absurdly far."""
    if moment is None:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC) if timedelta(0) < aware - now <= _LONGEST_WAIT else None
