"""Every way of saying when to try again comes down to one moment, or to none."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from dragoman.sdk._output.reset_times import parse_reset_time, parse_retry_headers
from hypothesis import given
from hypothesis import strategies as st

# A Sunday, 09:00 in Berlin, 03:00 in New York, midnight in Los Angeles.
NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)


def at(month: int, day: int, hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, month, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Durations.
        ("Please try again in 20s.", at(11, 22, 8, 0, 20)),
        ("Please try again in 6m0s", at(11, 22, 8, 6)),
        ("Please retry in 1.5s", NOW + timedelta(seconds=1.5)),
        ("try again in 250ms", NOW + timedelta(milliseconds=250)),
        ("retry in 300 milliseconds", NOW + timedelta(milliseconds=300)),
        ("Your quota will reset after 20h51m44s.", NOW + timedelta(hours=20, minutes=51, seconds=44)),
        ("try again in 2 days 3 hours 5 minutes.", NOW + timedelta(days=2, hours=3, minutes=5)),
        ("try again in 1 hour, 5 minutes and 3 seconds", NOW + timedelta(hours=1, minutes=5, seconds=3)),
        ('"retryDelay": "34.074824224s"', NOW + timedelta(seconds=34.074824224)),
        ("Rate limit reached (mock); Retry-After: 1 seconds", NOW + timedelta(seconds=1)),
        ("available again in 2 weeks", NOW + timedelta(weeks=2)),
        ("please wait 5 minutes", NOW + timedelta(minutes=5)),
        # Seconds, stamps, seconds since 1970.
        ("retry-after: 30", NOW + timedelta(seconds=30)),
        ('"retry_after": 12,', NOW + timedelta(seconds=12)),
        ("resets at 2026-11-22T10:00:00Z", at(11, 22, 10)),
        ("retry after 2026-11-22T10:00:00.5+01:00", at(11, 22, 9) + timedelta(seconds=0.5)),
        ("resets at 2026-11-22 10:00:00", at(11, 22, 10)),
        ("Claude AI usage limit reached|1795338000", datetime.fromtimestamp(1795338000, UTC)),
        ('"resets_at": 1795338000', datetime.fromtimestamp(1795338000, UTC)),
        # Times of day are not read.
        ("You've hit your limit · resets 3pm (Europe/Berlin)", None),
        ("try again at Nov 23rd, 2026 3:45 PM", None),
        ("resets 10:30", None),
        # Nothing, or nothing to wait for.
        ("", None),
        ("rate limit reached, try again later", None),
        ("resets 3", None),
        ("resets at 2026-11-22T07:00:00Z", None),
        ("resets at 2026-99-99T07:00:00Z", None),
        ("try again in 999999999 days", None),
        ("try again in 0s", None),
        ("usage limit reached|9999999999", None),
        ("retry 2/10", None),
        ("retrying in 5 months", None),
    ],
)
def test_moments_named_in_texts(text: str, expected: datetime | None) -> None:
    assert parse_reset_time(text, NOW) == expected


@pytest.mark.parametrize(
    "link", [":", "=", '": "', *(f" {word} " for word in ("on", "at", "in", "after", "for")), " by ", " "]
)
def test_a_wait_has_many_words(link: str) -> None:
    for cue in (
        *("reset", "resets", "refresh", "renew", "renews", "try again", "retry again", "try", "retry", "WAIT"),
        *("try your request", "retry your request", "retry after", "retry-after", "retry_delay", "retrydelay"),
        *("available", "available again"),
    ):
        assert parse_reset_time(f"{cue}{link}90s", NOW) == at(11, 22, 8, 1, 30), cue
        assert parse_reset_time(f"{cue}{link}2026-11-22T10:00:00Z", NOW) == at(11, 22, 10), cue


@pytest.mark.parametrize(
    ("units", "seconds"),
    [
        (("ms", "millisecond", "milliseconds"), 0.001),
        (("s", "sec", "secs", "second", "seconds"), 1),
        (("m", "min", "mins", "minute", "minutes"), 60),
        (("h", "hr", "hrs", "hour", "hours"), 3600),
        (("d", "day", "days"), 86400),
        (("w", "week", "weeks"), 604800),
    ],
)
def test_units_of_time(units: tuple[str, ...], seconds: float) -> None:
    for unit in units:
        for text in (f"retry in 2{unit}", f"retry in 2 {unit.upper()}.", f"retry in 0s 2{unit}"):
            assert parse_reset_time(text, NOW) == NOW + timedelta(seconds=2 * seconds), text
        assert parse_reset_time(f"retry in 2{unit}x", NOW) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("retry in 1h 2m 3s 4ms 0s 5s", 3728.004),
        ("retry in 1h, 2m and 3s", 3723),
        ("retry until 7s", 7),
        ("retry-after 7", 7),
        ("retryafter=7", 7),
        ('retry_after":"7"', 7),
        ("retry after 7 parsecs", None),
        ("retry-after: 7:30", None),
        ("retry-after: 7-8", None),
        ("retry-after: 1234567890123", None),
        ("retry in 62 days", 62 * 86400),
        ("retry in 63 days", None),
        ("retry in 62 days 1s", None),
    ],
)
def test_amounts_of_time(text: str, seconds: float | None) -> None:
    assert parse_reset_time(text, NOW) == (None if seconds is None else NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    "text", ["limit reached|%", "limit reached | %", "reset=%", 'resetAt": %', "resets:%", "reset_at = %"]
)
def test_seconds_since_1970(text: str) -> None:
    assert parse_reset_time(text.replace("%", "1795338000"), NOW) == datetime.fromtimestamp(1795338000, UTC)


def test_a_timestamp_without_a_zone_is_in_the_local_one() -> None:
    local = NOW.astimezone(ZoneInfo("America/Los_Angeles"))
    assert parse_reset_time("resets at 2026-11-22 10:00:00", local) == at(11, 22, 18)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "30"}, NOW + timedelta(seconds=30)),
        ({"retry-after": " 1.5 "}, NOW + timedelta(seconds=1.5)),
        ({"Retry-After": "Sun, 22 Nov 2026 10:00:00 GMT"}, at(11, 22, 10)),
        ({"Retry-After": "Sun, 22 Nov 2026 12:00:00 +0200"}, at(11, 22, 10)),
        ({"Retry-After": "Sun, 22 Nov 2026 07:00:00 GMT"}, None),
        ({"retry-after-ms": "250", "retry-after": "30"}, NOW + timedelta(milliseconds=250)),
        ({"Anthropic-Ratelimit-Unified-Reset": "1795338000"}, datetime.fromtimestamp(1795338000, UTC)),
        ({"X-RateLimit-Reset": "1795338000"}, datetime.fromtimestamp(1795338000, UTC)),
        ({"Retry-After": "soon", "X-RateLimit-Reset": "1795338000"}, datetime.fromtimestamp(1795338000, UTC)),
        ({"X-RateLimit-Reset": "1e300"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "1e12"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_moments_named_in_headers(headers: dict[str, str], expected: datetime | None) -> None:
    assert parse_retry_headers(headers, NOW) == expected


pieces = st.sampled_from(
    (
        *("resets", "try again", "retry after", " at ", " in ", " ", "3", "45", ":", "2026-11-22", "T", "10:00"),
        *("2100", "s", "h", "days", "Z", "|", "1795338000", "limit reached", "99999999", "é"),
    )
)


@given(st.lists(pieces, max_size=12).map("".join) | st.text())
def test_whatever_is_read_lies_ahead_and_in_utc(text: str) -> None:
    for moment in (parse_reset_time(text, NOW), parse_retry_headers({"Retry-After": text}, NOW)):
        if moment is not None:
            assert timedelta(0) < moment - NOW <= timedelta(days=62)
            assert moment.tzinfo is UTC
