"""What went wrong, from error texts of agents and of the services behind them.

The rules are a table, searched from top to bottom. What will not go away by itself stands before what
may: "invalid API key (status 401), retrying after rate limit" is about the key. A number counts only
where the text around it says that it is an HTTP status; a build that failed with "429 errors" is no
rate limit.

The text given must be that of an error: a terminal frame, an error event, the standard error of a
program that failed. In prose the same words mean nothing.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from dragoman.protocol.texts import cut_text
from dragoman.sdk._encoding.lines import without_terminal_orders
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
from dragoman.sdk._output.outcome import Evidence
from dragoman.sdk._output.parser import FailureInfo
from dragoman.sdk._output.reset_times import parse_reset_time, parse_retry_headers
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_MOST_CHARACTERS: Final = 16 * 1024  # of a text that are looked at, at either end
_LONGEST_MESSAGE: Final = 500  # bytes of UTF-8
_LONGEST_URL: Final = 2048
_WAITABLE: Final = frozenset(
    {pb.FAILURE_KIND_QUOTA_EXCEEDED, pb.FAILURE_KIND_RATE_LIMITED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE}
)
Kind: TypeAlias = pb.FailureKind.ValueType

_URL: Final = re.compile(r"https://[^\s\"'<>`\\\x00-\x1f\x7f|^{}]+")
_LOGIN_PART: Final = re.compile(
    r"log-?in|sign-?in|oauth|\bauth(?:enticate|entication|orize)?\b|/device|activate|\bverify|\bsso\b", re.IGNORECASE
)
_LOGIN_CUE: Final = re.compile(
    r"\b(?:visit|open|go to|browse to|navigate to|(?:log|sign) ?in (?:at|with))\b[^\n]{0,60}\Z", re.IGNORECASE
)


def unknown_session(text: str) -> bool:
    """Return whether an error says that the session to resume is not there, in any agent's wording.

    Only meaningful for a run that was to resume one, and that failed.
    """
    return _session_lost(_clean(text)) is not None


def classify_text(text: str, now: datetime | None = None, *, status_leads: bool = False) -> FailureInfo | None:
    """Return what an error text says; None if it says nothing known.

    The message of the failure is the line that says so. It may hold whatever the agent wrote: redact it.

    Args:
        text: See the module: the text of an error, not prose. Of a very long one, both ends are read.
        now: The time, with a zone, that waits and timestamps without a zone are relative to; None: the present.
        status_leads: Whether a number at the begin of a line is an HTTP status, as in "400 Bad field x". Only for the
            errors of a client library that writes them so, never for what a program printed.
    """
    text = _clean(text)
    status = _status(text, leads=status_leads)
    lost = _session_lost(text)
    if lost:
        return _failure(pb.FAILURE_KIND_SESSION_LOST, text, lost, status, now)
    for kind, pattern in RULES:
        found = pattern.search(text)
        if found:
            return _failure(_outranked(kind, status), text, found, status, now)
    by_status = _kind_of(status.code) if status else None
    return _failure(by_status, text, status.found, status, now) if status and by_status else None


def classify_http(
    status: int, body_text: str, headers: Mapping[str, str], now: datetime | None = None
) -> FailureInfo | None:
    """Return what a response says; None if it is no error, or one of no known kind.

    Args:
        status: The HTTP status. It outranks the body, except where the body is more precise.
        body_text: The body; empty if there was none.
        headers: For ``Retry-After`` and its relatives, their names in any case.
        now: See ``classify_text``.
    """
    if status < 400:
        return None
    now = now or datetime.now(UTC)
    body = classify_text(body_text, now)
    kind = _kind_of(status)
    if body and body.kind != pb.FAILURE_KIND_NETWORK and (status in REJECTED or body.kind not in VAGUE):
        kind = body.kind
    if kind is None:
        return None
    retry = parse_retry_headers(headers, now) or (body.retry_not_before if body else None)
    return FailureInfo(
        kind=kind,
        message=body.message if body else f"HTTP status {status}",
        retry_not_before=retry if kind in _WAITABLE else None,
        login_url=_login_url(_clean(body_text)) if kind == pb.FAILURE_KIND_AUTH_REQUIRED else "",
        http_status=status,
    )


def sentence(agent: str, message: str, advice: str = "") -> str:
    """Return what an agent's error says in its first line, up to 500 characters, as a sentence, and what to do."""
    first = message.strip().split("\n", 1)[0].removeprefix("API Error: ").removeprefix("Error: ")[:500]
    if not first:
        return f"{agent} failed. {advice}".strip()
    stop = "" if first[-1] in ".!?" else "."
    return f"{agent}: {first}{stop} {advice}".strip()


def failure_of_text(text: str, code: str, *, status_leads: bool = False) -> FailureInfo | None:
    """Return what an error text of an agent means; None if it says nothing known. See ``classify_text``."""
    failure = classify_text(text, status_leads=status_leads)
    return replace(failure, code=code, errors=(text,)) if failure is not None else None


def failure_of_evidence(evidence: Evidence, agent: str, *, status_leads: bool = False) -> FailureInfo | None:
    """Return what the agent's final error means, or else its standard error; None if it says nothing known.

    Args:
        evidence: how the attempt ended.
        agent: the agent's name, with which the codes begin.
        status_leads: see ``classify_text``.
    """
    terminal = evidence.report.terminal
    message = terminal.failure.message if terminal and terminal.failure else evidence.stderr_tail
    if evidence.resumed and unknown_session(message):
        lost = f"{agent} knows no such session."
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, lost, f"{agent}_session", (message,))
    return failure_of_text(message, f"{agent}_error", status_leads=status_leads)


class _Status(NamedTuple):
    code: int
    found: re.Match[str]


def _status(text: str, *, leads: bool) -> _Status | None:
    match = (LEADING_STATUS.search(text) if leads else None) or STATUS.search(text)
    return _Status(int(match[match.lastgroup or 0]), match) if match else None


def _kind_of(status: int) -> Kind | None:
    if status in REJECTED:
        return pb.FAILURE_KIND_INVALID_CONFIG
    return KIND_BY_STATUS.get(status, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE if status >= 500 else None)


def _outranked(kind: Kind, status: _Status | None) -> Kind:
    """Return the kind that text and status together mean: a status outranks a vague text."""
    if status is None or kind not in VAGUE:
        return kind
    is_vaguest = kind in {pb.FAILURE_KIND_NETWORK, pb.FAILURE_KIND_INVALID_CONFIG}
    return (_kind_of(status.code) if is_vaguest else KIND_BY_STATUS.get(status.code)) or kind


def _session_lost(text: str) -> re.Match[str] | None:
    return None if NO_UNKNOWN_SESSION.search(text) else UNKNOWN_SESSION.search(text)


def _failure(
    kind: Kind, text: str, found: re.Match[str], status: _Status | None, now: datetime | None
) -> FailureInfo:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    line = text[start : end if end >= 0 else len(text)].strip()
    return FailureInfo(
        kind=kind,
        message=cut_text(line, _LONGEST_MESSAGE)[0],
        retry_not_before=parse_reset_time(text, now or datetime.now(UTC)) if kind in _WAITABLE else None,
        login_url=_login_url(text) if kind == pb.FAILURE_KIND_AUTH_REQUIRED else "",
        http_status=status.code if status else None,
    )


def _login_url(text: str) -> str:
    for match in _URL.finditer(text):
        url = _without_punctuation(match[0])
        authority = re.split("[/?#]", url[len("https://") :], maxsplit=1)[0]
        if not authority or "@" in authority or len(url) > _LONGEST_URL:
            continue  # user@ can make one host look like another
        cue_start = max(0, match.start() - 100)
        if _LOGIN_PART.search(url) or _LOGIN_CUE.search(text[cue_start : match.start()]):
            return url
    return ""


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
