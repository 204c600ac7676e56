"""The classifier of errors: the rules of ``failure_rules``, applied from top to bottom."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from dragoman.sdk._encoding.lines import cut_text, without_terminal_orders
from dragoman.sdk._output.failure_hint import FailureHint
from dragoman.sdk._output.failure_rules import (
    KIND_BY_STATUS,
    LEADING_STATUS,
    NO_UNKNOWN_SESSION,
    REJECTED,
    RULES,
    STATUS,
    UNKNOWN_SESSION,
    VAGUE,
)
from dragoman.sdk._output.reset_times import parse_reset_time, parse_retry_headers

_MOST_CHARACTERS: Final = 16 * 1024  # of a text that are looked at, at either end
_LONGEST_MESSAGE: Final = 500  # bytes of UTF-8
_LONGEST_URL: Final = 2048
_WAITABLE: Final = frozenset({"QUOTA_EXCEEDED", "RATE_LIMITED", "UPSTREAM_UNAVAILABLE"})

_URL: Final = re.compile(r"https://[^\s\"'<>`\\\x00-\x1f\x7f|^{}]+")
_LOGIN_PART: Final = re.compile(
    r"log-?in|sign-?in|oauth|\bauth(?:enticate|entication|orize)?\b|/device|activate|\bverify|\bsso\b", re.IGNORECASE
)
_LOGIN_CUE: Final = re.compile(
    r"\b(?:visit|open|go to|browse to|navigate to|(?:log|sign) ?in (?:at|with))\b[^\n]{0,60}\Z", re.IGNORECASE
)


def unknown_session(text: str) -> bool:
    """See ``_failures``."""
    return _session_lost(_clean(text)) is not None


def classify_text(text: str, now: datetime, *, status_leads: bool = False) -> FailureHint | None:
    """See ``_failures``."""
    text = _clean(text)
    status = _status(text, leads=status_leads)
    lost = _session_lost(text)
    if lost:
        return _hint("SESSION_LOST", text, lost, status, now)
    for kind, pattern in RULES:
        found = pattern.search(text)
        if found:
            return _hint(_outranked(kind, status), text, found, status, now)
    by_status = _kind_of(status.code) if status else None
    return _hint(by_status, text, status.found, status, now) if status and by_status else None


def classify_http(status: int, body_text: str, headers: Mapping[str, str], now: datetime) -> FailureHint | None:
    """See ``_failures``."""
    if status < 400:
        return None
    body = classify_text(body_text, now)
    kind = _kind_of(status)
    if body and body.kind != "NETWORK" and (status in REJECTED or body.kind not in VAGUE):
        kind = body.kind
    if kind is None:
        return None
    retry = parse_retry_headers(headers, now) or (body.retry_not_before if body else None)
    return FailureHint(
        kind=kind,
        message=body.message if body else f"HTTP status {status}",
        retry_not_before=retry if kind in _WAITABLE else None,
        login_url=_login_url(_clean(body_text)) if kind == "AUTH_REQUIRED" else None,
        http_status=status,
    )


class _Status(NamedTuple):
    code: int
    found: re.Match[str]


def _status(text: str, *, leads: bool) -> _Status | None:
    match = (LEADING_STATUS.search(text) if leads else None) or STATUS.search(text)
    return _Status(int(match[match.lastgroup or 0]), match) if match else None


def _kind_of(status: int) -> str | None:
    if status in REJECTED:
        return "INVALID_CONFIG"
    return KIND_BY_STATUS.get(status, "UPSTREAM_UNAVAILABLE" if status >= 500 else None)


def _outranked(kind: str, status: _Status | None) -> str:
    """Return the kind that text and status together mean: a status outranks a vague text."""
    if status is None or kind not in VAGUE:
        return kind
    is_vaguest = kind in {"NETWORK", "INVALID_CONFIG"}
    return (_kind_of(status.code) if is_vaguest else KIND_BY_STATUS.get(status.code)) or kind


def _session_lost(text: str) -> re.Match[str] | None:
    return None if NO_UNKNOWN_SESSION.search(text) else UNKNOWN_SESSION.search(text)


def _hint(kind: str, text: str, found: re.Match[str], status: _Status | None, now: datetime) -> FailureHint:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    line = text[start : end if end >= 0 else len(text)].strip()
    return FailureHint(
        kind=kind,
        message=cut_text(line, _LONGEST_MESSAGE)[0],
        retry_not_before=parse_reset_time(text, now) if kind in _WAITABLE else None,
        login_url=_login_url(text) if kind == "AUTH_REQUIRED" else None,
        http_status=status.code if status else None,
    )


def _login_url(text: str) -> str | None:
    for match in _URL.finditer(text):
        url = _without_punctuation(match[0])
        authority = re.split("[/?#]", url[len("https://") :], maxsplit=1)[0]
        if not authority or "@" in authority or len(url) > _LONGEST_URL:
            continue  # user@ can make one host look like another
        cue_start = max(0, match.start() - 100)
        if _LOGIN_PART.search(url) or _LOGIN_CUE.search(text[cue_start : match.start()]):
            return url
    return None


def _without_punctuation(url: str) -> str:
    """Return a URL without the end of the sentence or the parenthesis that it stands in."""
    while url:
        last = url[-1]
        is_unpaired = last in ")]" and url.count(last) > url.count("(" if last == ")" else "[")
        if last not in ".,;:!?*_" and not is_unpaired:
            break
        url = url[:-1]
    return url


def _clean(text: str) -> str:
    """Return both ends of ``text``, without colours and other orders to a terminal."""
    if len(text) > 2 * _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}\n{text[-_MOST_CHARACTERS:]}"
    return without_terminal_orders(text)
