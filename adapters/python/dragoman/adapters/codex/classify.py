"""What went wrong, from Codex's error codes first and its words second. Pure but for the present, for waits."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from dragoman.sdk import FailureInfo, classify_http, classify_text, failure_from_hint, unknown_session
from dragoman.sdk.fields import Fields, count, text
from dragoman.v1 import event_pb2 as pb

LOGIN_HINT: Final = "Run `codex login` as the adapter's user, or give the key of your provider in env."

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
"""Codes that say all there is to say (``CodexErrorInfo``)."""
_CONNECTION: Final = frozenset(
    (
        *("httpConnectionFailed", "responseStreamConnectionFailed"),
        *("responseStreamDisconnected", "responseTooManyFailedAttempts"),
    )
)
"""Codes of a connection that failed: with an HTTP status, that says more."""
_CONFIG: Final = re.compile(
    r"(?m)^Error: .*(?:config|unknown variant|invalid value)|\bin `[a-z_.]+`\s*$|CODEX_HOME points to"
    r"|^error: (?:unexpected argument|invalid value)"
)
_NO_REPOSITORY: Final = "Not inside a trusted directory"


def failure_of(error: Fields) -> FailureInfo:
    """Return what a ``TurnError`` means."""
    name, status = _code(error)
    said = "\n".join(part for part in (text(error, "message"), text(error, "additionalDetails")) if part)
    kind, waits = _kind(name, status, said)
    message = text(error, "message").strip() or "Codex says that it failed, and not why."
    if kind == pb.FAILURE_KIND_AUTH_REQUIRED:
        message = f"{message} {LOGIN_HINT}"
    return FailureInfo(
        kind=kind,
        message=message,
        code=f"codex_{_snake(name)}" if name else "codex_error",
        errors=(said,) if said else (),
        retry_not_before=waits,
        http_status=status,
    )


def retry_cause(error: Fields) -> pb.FailureKind.ValueType:
    """Return why Codex tries again."""
    name, status = _code(error)
    said = f"{text(error, 'message')}\n{text(error, 'additionalDetails')}"
    return _kind(name, status, said)[0]


def failure_of_words(said: str, *, resumed: bool) -> FailureInfo | None:
    """Return what the words mean with which Codex ended before a turn was over; None if they are not known."""
    if not said.strip():
        return None
    if resumed and unknown_session(said):
        return lost_session(said)
    if _NO_REPOSITORY in said:
        message = "Codex wants to run in a git repository, or in a directory that its user trusts."
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="codex_no_repository", errors=(said,))
    if _CONFIG.search(said):
        message = f"Codex refuses its configuration: {_first_line(said)}"
        return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="codex_config", errors=(said,))
    hint = classify_text(said, datetime.now(UTC))
    return failure_from_hint(hint, code="codex_stderr") if hint is not None else None


def lost_session(said: str) -> FailureInfo:
    """Return the failure of a thread that is not there."""
    message = "Codex has no such thread (any more)."
    return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, code="codex_thread_not_found", errors=(said,))


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


def _kind(name: str, status: int | None, said: str) -> tuple[pb.FailureKind.ValueType, datetime | None]:
    now = datetime.now(UTC)
    words = classify_text(said, now) if said.strip() else None
    waits = words.retry_not_before if words is not None else None
    if name in _KINDS:
        return _KINDS[name], waits
    hint = classify_http(status, said, {}, now) if status is not None else None
    hint = hint or words
    if hint is not None:
        return pb.FailureKind.Value(f"FAILURE_KIND_{hint.kind}"), hint.retry_not_before or waits
    if name in _CONNECTION:
        return pb.FAILURE_KIND_NETWORK, None
    return pb.FAILURE_KIND_PROCESS_CRASHED, None


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()[:80]


def _first_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0])[:400]
