"""Failures, by ``session.error``, a refused request, or a line on standard error. Pure."""

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from dragoman.sdk import FailureInfo, Terminal
from dragoman.sdk.failures import (
    ANSWER_CUT,
    NEW_SESSION,
    OTHER_MODEL,
    REPHRASE,
    SHORTER_PROMPT,
    classify_http,
    classify_text,
    sentence,
    unknown_session,
)
from dragoman.sdk.fields import Fields, count, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_SPEC: Final = agent_spec(__package__)

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
    pb.FAILURE_KIND_AUTH_REQUIRED: _SPEC.login_hint,
    pb.FAILURE_KIND_MODEL_NOT_FOUND: OTHER_MODEL,
    pb.FAILURE_KIND_CONTEXT_OVERFLOW: SHORTER_PROMPT,
    pb.FAILURE_KIND_SESSION_LOST: NEW_SESSION,
}


def failure_of_error(data: Fields, cause: Fields) -> FailureInfo:
    """Return the failure that ``session.error`` reports.

    Args:
        data: its data.
        cause: the data of the last ``model.call_failure``, with the service's own message; empty if there is none.
    """
    message, original = text(data, "message"), text(cause, "errorMessage")
    status = count(data, "statusCode") or (count(cause, "statusCode") if original else None)
    kind = _kind(text(data, "errorType"), message, original, status) or _unknown(status)
    failure = classify_text(f"{message}\n{original}")
    if failure is None or failure.kind != kind:
        failure = FailureInfo(kind, message)
    url = text(data, "url")
    return replace(
        failure,
        message=_sentence(message or original, kind),
        code=_code(kind),
        errors=tuple(dict.fromkeys(filter(None, (message, original)))),
        http_status=status if status is not None and 400 <= status <= 599 else None,
        login_url=failure.login_url or (url if kind == pb.FAILURE_KIND_AUTH_REQUIRED else ""),
    )


def failure_of_text(output: str, *, resumed: bool) -> FailureInfo | None:
    """Return what a refused request or standard error reports; None for an unknown text."""
    message = output.strip()
    if not message:
        return None
    kind = pb.FAILURE_KIND_SESSION_LOST if resumed and unknown_session(message) else _kind("", message, "", None)
    if kind == pb.FAILURE_KIND_UNSPECIFIED:
        return None
    return FailureInfo(kind, _sentence(message, kind), code=_code(kind), errors=(message[:2000],))


def refusal(reason: str) -> FailureInfo:
    """Return the failure of an answer that the model's service withheld."""
    kind = pb.FAILURE_KIND_MODEL_REFUSED
    message = f"The model's service withheld the answer (content filter). {REPHRASE}"
    return FailureInfo(kind, message, code=_code(kind), errors=(reason or "content_filter",))


def output_limit() -> FailureInfo:
    """Return the failure of an answer that was cut at its limit."""
    kind = pb.FAILURE_KIND_OUTPUT_LIMIT
    return FailureInfo(kind, ANSWER_CUT, code=_code(kind), errors=("length",))


def interrupted() -> Terminal:
    """Return the end of a session that was interrupted."""
    message = "Copilot was interrupted, and not by this run."
    failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, "copilot_interrupted")
    return Terminal(succeeded=False, subtype="aborted", failure=failure, interrupted=True)


def retry_cause(reason: str, status: int | None) -> Kind:
    """Return why Copilot calls its model again."""
    if status is not None:
        return _kind("", "", "", status)
    return pb.FAILURE_KIND_NETWORK if reason == "streaming_error" else pb.FAILURE_KIND_UNSPECIFIED


def _kind(error_type: str, message: str, original: str, status: int | None) -> Kind:
    if error_type in _BY_TYPE:
        by_type = _BY_TYPE[error_type]
        # Copilot calls each 429 a rate limit; the service's message is more precise.
        is_quota = by_type == pb.FAILURE_KIND_RATE_LIMITED and _by_text(message) == pb.FAILURE_KIND_QUOTA_EXCEEDED
        return pb.FAILURE_KIND_QUOTA_EXCEEDED if is_quota else by_type
    own = next((kind for pattern, kind in _BY_WORDS if pattern.search(message)), None)
    if own is not None:
        return own
    words = original or message
    known = classify_http(status, words, {}) if status is not None else classify_text(words)
    if status == 404 and (known is None or known.kind == pb.FAILURE_KIND_INVALID_CONFIG):
        return pb.FAILURE_KIND_MODEL_NOT_FOUND
    if known is not None and known.kind != pb.FAILURE_KIND_SESSION_LOST:  # only a run that resumes one can lose it
        return known.kind
    return (
        pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE if status is not None and status >= 500 else pb.FAILURE_KIND_UNSPECIFIED
    )


def _by_text(message: str) -> Kind:
    known = classify_text(message)
    return known.kind if known else pb.FAILURE_KIND_UNSPECIFIED


def _unknown(status: int | None) -> Kind:
    refused = status is not None and 400 <= status < 500
    return pb.FAILURE_KIND_INVALID_CONFIG if refused else pb.FAILURE_KIND_NO_RESULT


def _code(kind: Kind) -> str:
    return f"copilot_{pb.FailureKind.Name(kind).removeprefix('FAILURE_KIND_').lower()}"


def _sentence(message: str, kind: Kind) -> str:
    return sentence(_SPEC.label, message, _ADVICE.get(kind, ""))
