"""Failures, by Codex's error codes first and its messages second. Pure but for the present, for waits."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from dragoman.sdk import FailureInfo
from dragoman.sdk.failures import classify_http, classify_text, unknown_session
from dragoman.sdk.fields import Fields, count, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

LOGIN_HINT: Final = agent_spec(__package__).login_hint

_KINDS: Final[Mapping[str, pb.FailureKind.ValueType]] = {
    "contextWindowExceeded": pb.FAILURE_KIND_CONTEXT_OVERFLOW,
    "sessionBudgetExceeded": pb.FAILURE_KIND_QUOTA_EXCEEDED,
    "usageLimitExceeded": pb.FAILURE_KIND_QUOTA_EXCEEDED,
    "rateLimitExceeded": pb.FAILURE_KIND_RATE_LIMITED,
    "serverOverloaded": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "flexUnavailable": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "policyCapacityUnavailable": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "internalServerError": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    "modelNotFound": pb.FAILURE_KIND_MODEL_NOT_FOUND,
    "unauthorized": pb.FAILURE_KIND_AUTH_REQUIRED,
    "cyberPolicy": pb.FAILURE_KIND_MODEL_REFUSED,
    "misalignmentPolicyViolation": pb.FAILURE_KIND_MODEL_REFUSED,
    "tooManyDenials": pb.FAILURE_KIND_PERMISSION_DENIED,
    "inferenceHookDenied": pb.FAILURE_KIND_PERMISSION_DENIED,
}
"""Codes that need no further look at the message (``CodexErrorInfo``)."""
_CONNECTION: Final = frozenset(
    (
        *("httpConnectionFailed", "responseStreamConnectionFailed"),
        *("responseStreamDisconnected", "responseTooManyFailedAttempts"),
    )
)
"""Codes of a connection that failed; an HTTP status is more precise."""
_CONFIG: Final = re.compile(
    r"(?m)^Error: .*(?:config|unknown variant|invalid value)|\bin `[a-z_.]+`\s*$|CODEX_HOME points to"
    r"|^error: (?:unexpected argument|invalid value)"
)
_NO_REPOSITORY: Final = "Not inside a trusted directory"


def failure_of(error: Fields) -> FailureInfo:
    """Return the failure that a ``TurnError`` reports."""
    name, status = _code(error)
    details = "\n".join(part for part in (text(error, "message"), text(error, "additionalDetails")) if part)
    kind, waits, in_words = _kind(name, status, details)
    status = status if status is not None else in_words
    message = text(error, "message").strip() or "Codex reports a failure without a reason."
    if kind == pb.FAILURE_KIND_AUTH_REQUIRED:
        message = f"{message} {LOGIN_HINT}"
    return FailureInfo(
        kind=kind,
        message=message,
        code=f"codex_{_snake(name)}" if name else "codex_error",
        errors=(details,) if details else (),
        retry_not_before=waits,
        http_status=status,
    )


def retry_cause(error: Fields) -> pb.FailureKind.ValueType:
    """Return why Codex calls its model again."""
    name, status = _code(error)
    details = f"{text(error, 'message')}\n{text(error, 'additionalDetails')}"
    return _kind(name, status, details)[0]


def failure_of_text(output: str, *, resumed: bool) -> FailureInfo | None:
    """Return why Codex ended before a turn was over, by what it printed; None for an unknown text."""
    if not output.strip():
        return None
    if resumed and unknown_session(output):
        return lost_session(output)
    if _NO_REPOSITORY in output:
        message = "Codex wants to run in a git repository, or in a directory that its user trusts."
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="codex_no_repository", errors=(output,))
    if _CONFIG.search(output):
        message = f"Codex refuses its configuration: {_first_line(output)}"
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="codex_config", errors=(output,))
    failure = classify_text(output)
    return replace(failure, code="codex_stderr") if failure is not None else None


def lost_session(output: str) -> FailureInfo:
    """Return the failure of a missing thread."""
    message = "Codex does not know this thread."
    return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="codex_thread_not_found", errors=(output,))


def _code(error: Fields) -> tuple[str, int | None]:
    """Return the name in ``codexErrorInfo`` and the HTTP status with it."""
    info = error.get("codexErrorInfo")
    if isinstance(info, str):
        return info, None
    if not isinstance(info, dict) or not info:
        return "", None
    name, detail = next(iter(info.items()))
    status = count(detail, "httpStatusCode") if isinstance(detail, dict) else None
    return name, status if status is None or status < 2**32 else None


def _kind(name: str, status: int | None, words: str) -> tuple[pb.FailureKind.ValueType, datetime | None, int | None]:
    """Return the kind, when to try again, and the HTTP status in the message."""
    known = classify_text(words)
    waits = known.retry_not_before if known is not None else None
    in_words = known.http_status if known is not None else None
    if name in _KINDS:
        return _KINDS[name], waits, in_words
    known = (classify_http(status, words, {}) if status is not None else None) or known
    if known is not None:
        return known.kind, known.retry_not_before or waits, in_words
    if name in _CONNECTION:
        return pb.FAILURE_KIND_NETWORK, None, in_words
    return pb.FAILURE_KIND_PROCESS_CRASHED, None, in_words


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()[:80]


def _first_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0])[:400]
