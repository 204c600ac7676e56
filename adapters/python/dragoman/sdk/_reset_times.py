"""When to try again: the many ways in which agents and their services say it, as a moment in time."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from typing import Final
from zoneinfo import ZoneInfo

_LONGEST_WAIT: Final = timedelta(days=62)
"""A moment further away than this is a misreading."""

_UNIT_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# The zone names that people write and the zone database lacks.
_ZONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pt", "pst", "pdt"), "America/Los_Angeles"),
    **dict.fromkeys(("mt", "mst", "mdt"), "America/Denver"),
    **dict.fromkeys(("ct", "cst", "cdt"), "America/Chicago"),
    **dict.fromkeys(("et", "est", "edt"), "America/New_York"),
    **dict.fromkeys(("cet", "cest"), "Europe/Berlin"),
    **dict.fromkeys(("bst",), "Europe/London"),
}

_CUE: Final = (
    r"(?:(?:reset|refresh|renew)s?|(?:try|retry)(?:\s+(?:again|your\s+request))?|retry[-_ ]?(?:after|delay)"
    r"|available(?:\s+again)?|wait)"
)
_LINK: Final = r"(?:\"?\s*[:=]\s*\"?|\s+(?:on|at|in|after|for|until|by)\s+|\s+)"
_UNIT: Final = r"(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)(?![a-z])"
_AMOUNT: Final = rf"[0-9]{{1,9}}(?:\.[0-9]{{1,12}})?\s?{_UNIT}"
_CLOCK: Final = r"(?P<hour>[0-9]{1,2})(?![0-9])(?::(?P<minute>[0-9]{2}))?(?::[0-9]{2})?\s?(?P<half>[ap]\.?m\.?)?"
_DATE: Final = (
    rf"(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?\s+(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<year>[12][0-9]{{3}}))?"
    r"(?:,|\s+at)?\s+"
)
_ZONE: Final = r"(?:\s?\(?(?P<zone>[A-Za-z]{2,}(?:/[A-Za-z_+-]+[0-9]*){0,2})\)?)?"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


_DURATION: Final = _pattern(rf"\b{_CUE}{_LINK}(?P<amounts>{_AMOUNT}(?:(?:,?\s*(?:and\s+)?){_AMOUNT}){{0,5}})")
_PLAIN_SECONDS: Final = _pattern(
    r"\bretry[-_ ]?after\"?\s*[:=]?\s*\"?(?P<seconds>[0-9]{1,9})(?![0-9:.-])(?!\s?[a-z])"
)
_STAMP: Final = _pattern(
    rf"\b{_CUE}{_LINK}(?P<stamp>20[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}[T ][0-9:.]{{5,18}}(?:Z|[+-][0-9:]{{4,5}})?)"
)
_EPOCH: Final = _pattern(
    r"\blimit reached\s?\|\s?(?P<epoch>[0-9]{10})\b|\bresets?(?:_?at)?\"?\s*[:=]\s*(?P<at>[0-9]{10})\b"
)
_DAY_AND_TIME: Final = _pattern(rf"\b{_CUE}{_LINK}{_DATE}{_CLOCK}{_ZONE}")
_TIME: Final = _pattern(rf"\b{_CUE}{_LINK}{_CLOCK}{_ZONE}")
_ONE_AMOUNT: Final = _pattern(rf"([0-9.]+)\s?({_UNIT})")


def parse_reset_time(text: str, now: datetime) -> datetime | None:
    """Return the moment that ``text`` says to wait for, in UTC; None if it names none.

    Args:
        text: An error message: "resets 3pm (Europe/Berlin)", "try again in 2 hours 5 minutes",
            "retryDelay": "34.07s", "resets at 2026-11-22T10:00:00Z".
        now: The present, with a zone. A time of day without a zone is meant in that zone; it is the
            next such time.
    """
    for pattern, moment in _READERS:
        match = pattern.search(text)
        if match:
            return _sane(moment(match, now), now)
    return None


def parse_retry_headers(headers: Mapping[str, str], now: datetime) -> datetime | None:
    """Return the moment that a response's headers say to wait for, in UTC; None if they name none.

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


def _by_day_and_time(match: re.Match[str], now: datetime) -> datetime | None:
    clock = _clock(match)
    zone = _zone(match["zone"], now)
    if clock is None:
        return None
    month = 1 + _MONTHS.index(match["month"].lower())
    local = now.astimezone(zone)
    years = [int(match["year"])] if match["year"] else [local.year, local.year + 1]
    for year in years:
        try:
            moment = datetime.combine(datetime(year, month, int(match["day"]), tzinfo=zone).date(), clock, zone)
        except ValueError:
            continue
        if moment > now:
            return moment
    return None


def _by_time(match: re.Match[str], now: datetime) -> datetime | None:
    clock = _clock(match)
    if clock is None or not (match["half"] or match["minute"]):
        return None  # a bare number is no time of day
    zone = _zone(match["zone"], now)
    today = datetime.combine(now.astimezone(zone).date(), clock, zone)
    return today if today > now else today + timedelta(days=1)


_READERS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str], datetime], datetime | None]], ...]] = (
    (_STAMP, _by_stamp),
    (_EPOCH, _by_epoch),
    (_DURATION, _by_duration),
    (_PLAIN_SECONDS, _by_seconds),
    (_DAY_AND_TIME, _by_day_and_time),
    (_TIME, _by_time),
)


def _clock(match: re.Match[str]) -> time | None:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    half = (match["half"] or "").lower()[:1]
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    return time(hour, minute) if hour < 24 and minute < 60 else None


def _zone(name: str | None, now: datetime) -> tzinfo:
    here = now.tzinfo or UTC
    if not name:
        return here
    if name.upper() in {"UTC", "GMT", "Z"}:
        return UTC
    try:
        return ZoneInfo(_ZONES.get(name.lower(), name))
    except (ValueError, OSError, LookupError):  # no such zone, or no zone database on this machine
        return here


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
