"""What went wrong, in the protocol's words. Pure."""

from datetime import UTC, datetime
from typing import Final

from dragoman.adapters.http.exchange import Answer, ExchangeError
from dragoman.sdk import (
    FailureInfo,
    Job,
    classify_http,
    classify_text,
    failure_from_hint,
    parse_json_object,
    unknown_session,
)
from dragoman.sdk import fields as read
from dragoman.v1 import event_pb2 as pb

_LONGEST: Final = 500
_LONGEST_BODY: Final = 16 * 1024
_EXCHANGE: Final = {
    "answer_too_large": pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
    "answer_compressed": pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
    "response_timeout": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
}


def failure_of_exchange(error: ExchangeError) -> FailureInfo:
    """Say what it means that there was no whole answer."""
    kind = _EXCHANGE.get(error.code, pb.FAILURE_KIND_NETWORK)
    return FailureInfo(kind, error.message, code=error.code, errors=(error.message,))


def refused(reason: str) -> FailureInfo:
    """Return the failure of a request that was not made, or not followed."""
    message = f"The request was not made: {reason}."
    return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="host_refused", errors=(message,))


def failure_of_answer(answer: Answer, job: Job) -> FailureInfo:
    """Say what an answer with a status of failure means."""
    body = answer.body[:_LONGEST_BODY].decode("utf-8", "replace")
    said = _said(answer.body) or f"HTTP status {answer.status}"
    code, errors = f"http_{answer.status}", (said,)
    if job.session.resumes and answer.status in {404, 409, 410, 422} and unknown_session(body):
        return FailureInfo(
            pb.FAILURE_KIND_SESSION_LOST, said, code="session_unknown", errors=errors, http_status=answer.status
        )
    hint = classify_http(answer.status, body, answer.headers, datetime.now(UTC))
    kind = failure_from_hint(hint).kind if hint is not None else pb.FAILURE_KIND_INVALID_CONFIG
    retry = hint.retry_not_before if hint is not None else None
    message = f"The service answered with status {answer.status}: {said}"
    return FailureInfo(kind, message, code=code, errors=errors, retry_not_before=retry, http_status=answer.status)


def failure_of_word(word: str, job: Job) -> FailureInfo:
    """Say what it means that the service says it failed."""
    said = word[:_LONGEST]
    if job.session.resumes and unknown_session(word):
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, said, code="session_unknown", errors=(said,))
    hint = classify_text(word, datetime.now(UTC))
    kind = failure_from_hint(hint).kind if hint is not None else pb.FAILURE_KIND_PROCESS_CRASHED
    retry = hint.retry_not_before if hint is not None else None
    message = f"The service says that the work failed: {said}"
    return FailureInfo(kind, message, code="reported", errors=(said,), retry_not_before=retry)


def unreadable(said: str) -> FailureInfo:
    """Return the failure of an answer that is not what was agreed."""
    message = f"The service's answer cannot be read: {said[:_LONGEST]}"
    return FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, message, code="answer_unreadable", errors=(message,))


def _said(body: bytes) -> str:
    fields = parse_json_object(body)
    if fields is None:
        return body[:_LONGEST].decode("utf-8", "replace").strip()
    error = read.inner(fields, "error")
    words = (
        read.text(error, "message"),
        read.text(fields, "error"),
        read.text(fields, "message"),
        read.text(fields, "detail"),
    )
    return next((word for word in words if word), "")[:_LONGEST]
