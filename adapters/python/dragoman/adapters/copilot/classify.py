"""What went wrong, from Copilot's own words: ``session.error``, a refused request, a line on standard error. Pure."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeAlias

from dragoman.sdk import FailureInfo, classify_http, classify_text, failure_from_hint, unknown_session
from dragoman.sdk.fields import Fields, count, text
from dragoman.v1 import event_pb2 as pb

LOGIN_HINT: Final = "Run `copilot login` as the adapter's user, or set COPILOT_GITHUB_TOKEN in env."

Kind: TypeAlias = pb.FailureKind.ValueType
_BY_TYPE: Final[Mapping[str, Kind]] = {
    "authentication": pb.FAILURE_KIND_AUTH_REQUIRED,
    "authorization": pb.FAILURE_KIND_AUTH_REQUIRED,
    "quota": pb.FAILURE_KIND_QUOTA_EXCEEDED,
    "rate_limit": pb.FAILURE_KIND_RATE_LIMITED,
    "context_limit": pb.FAILURE_KIND_CONTEXT_OVERFLOW,
}
_BY_WORDS: Final = (
    (re.compile(r"No (?:GitHub )?OAuth token|[Nn]o authentication information|not (?:logged|signed) in"),
     pb.FAILURE_KIND_AUTH_REQUIRED),
    (re.compile(r"require an explicit model|requires a local model provider|[Ii]nvalid command format|^error: "),
     pb.FAILURE_KIND_INVALID_CONFIG),
    (re.compile(r"prompt (?:as|is) too long|prompt budget|context (?:window|limit|length)"),
     pb.FAILURE_KIND_CONTEXT_OVERFLOW),
    (re.compile(r"Could not connect to|Failed native model HTTP request"), pb.FAILURE_KIND_NETWORK),
    (re.compile(r"No response was returned"), pb.FAILURE_KIND_NO_RESULT),
)  # fmt: skip
_ADVICE: Final[Mapping[Kind, str]] = {
    pb.FAILURE_KIND_AUTH_REQUIRED: LOGIN_HINT,
    pb.FAILURE_KIND_MODEL_NOT_FOUND: "Choose another model.",
    pb.FAILURE_KIND_CONTEXT_OVERFLOW: "Begin a new session, or give less at once.",
    pb.FAILURE_KIND_SESSION_LOST: "It is begun anew.",
}


def failure_of_error(data: Fields, cause: Fields) -> FailureInfo:
    """Say what ``session.error`` means.

    Args:
        data: its data.
        cause: the data of the last ``model.call_failure``, in the service's own words; empty if there is none.
    """
    said, original = text(data, "message"), text(cause, "errorMessage")
    status = count(data, "statusCode") or (count(cause, "statusCode") if original else None)
    kind = _kind(text(data, "errorType"), said, original, status) or _unknown(status)
    hint = classify_text(f"{said}\n{original}", datetime.now(UTC))
    same = hint is not None and pb.FailureKind.Value(f"FAILURE_KIND_{hint.kind}") == kind
    failure = failure_from_hint(hint) if hint is not None and same else FailureInfo(kind, said)
    url = text(data, "url")
    return replace(
        failure,
        message=_sentence(said or original, kind),
        code=_code(kind),
        errors=tuple(dict.fromkeys(filter(None, (said, original)))),
        http_status=status if status is not None and 400 <= status <= 599 else None,
        login_url=failure.login_url or (url if kind == pb.FAILURE_KIND_AUTH_REQUIRED else ""),
    )


def failure_of_words(words: str, *, resumed: bool) -> FailureInfo | None:
    """Say what plain words mean: of a refused request, or on standard error; None if they are not known."""
    said = words.strip()
    if not said:
        return None
    kind = pb.FAILURE_KIND_SESSION_LOST if resumed and unknown_session(said) else _kind("", said, "", None)
    if kind == pb.FAILURE_KIND_UNSPECIFIED:
        return None
    return FailureInfo(kind, _sentence(said, kind), code=_code(kind), errors=(said[:2000],))


def refusal(said: str) -> FailureInfo:
    """Say that the model's service withheld the answer."""
    kind = pb.FAILURE_KIND_MODEL_REFUSED
    message = (
        "The model's service withheld the answer (content filter). Put the task otherwise, or ask another model."
    )
    return FailureInfo(kind, message, code=_code(kind), errors=(said or "content_filter",))


def retry_cause(reason: str, status: int | None) -> Kind:
    """Say why Copilot tries its model again."""
    if status is not None:
        return _kind("", "", "", status)
    return pb.FAILURE_KIND_NETWORK if reason == "streaming_error" else pb.FAILURE_KIND_UNSPECIFIED


def _kind(error_type: str, said: str, original: str, status: int | None) -> Kind:
    if error_type in _BY_TYPE:
        by_type = _BY_TYPE[error_type]
        # Copilot takes each 429 for a rate limit; the service knows better.
        is_quota = by_type == pb.FAILURE_KIND_RATE_LIMITED and _by_text(said) == pb.FAILURE_KIND_QUOTA_EXCEEDED
        return pb.FAILURE_KIND_QUOTA_EXCEEDED if is_quota else by_type
    own = next((kind for pattern, kind in _BY_WORDS if pattern.search(said)), None)
    if own is not None:
        return own
    now = datetime.now(UTC)
    words = original or said
    hint = classify_http(status, words, {}, now) if status is not None else classify_text(words, now)
    if hint is not None and hint.kind != "SESSION_LOST":  # only a run that was to resume one can lose it
        return pb.FailureKind.Value(f"FAILURE_KIND_{hint.kind}")
    if status == 404:
        return pb.FAILURE_KIND_MODEL_NOT_FOUND
    return (
        pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE if status is not None and status >= 500 else pb.FAILURE_KIND_UNSPECIFIED
    )


def _by_text(said: str) -> Kind:
    hint = classify_text(said, datetime.now(UTC))
    return pb.FailureKind.Value(f"FAILURE_KIND_{hint.kind}") if hint else pb.FAILURE_KIND_UNSPECIFIED


def _unknown(status: int | None) -> Kind:
    refused = status is not None and 400 <= status < 500
    return pb.FAILURE_KIND_INVALID_CONFIG if refused else pb.FAILURE_KIND_NO_RESULT


def _code(kind: Kind) -> str:
    return f"copilot_{pb.FailureKind.Name(kind).removeprefix('FAILURE_KIND_').lower()}"


def _sentence(said: str, kind: Kind) -> str:
    first = said.strip().split("\n", 1)[0].removeprefix("Error: ")[:500] or "it failed and does not say why"
    stop = "" if first[-1] in ".!?" else "."
    return f"Copilot: {first}{stop} {_ADVICE.get(kind, '')}".strip()
