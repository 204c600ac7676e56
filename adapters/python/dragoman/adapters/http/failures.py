"""Failures of requests and answers. Pure."""

from typing import Final

from dragoman.adapters.http.exchange import Answer, ExchangeError
from dragoman.sdk import FailureInfo, Job
from dragoman.sdk import fields as read
from dragoman.sdk.failures import classify_http, classify_text, unknown_session
from dragoman.sdk.fields import parse_json_object
from dragoman.v1 import event_pb2 as pb

_LONGEST: Final = 500
_LONGEST_BODY: Final = 16 * 1024
_EXCHANGE: Final = {
    "answer_too_large": pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
    "answer_compressed": pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
    "response_timeout": pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
}


def failure_of_exchange(error: ExchangeError) -> FailureInfo:
    """Return the failure of a missing or incomplete answer."""
    kind = _EXCHANGE.get(error.code, pb.FAILURE_KIND_NETWORK)
    return FailureInfo(kind, error.message, code=error.code, errors=(error.message,))


def refused(reason: str) -> FailureInfo:
    """Return the failure of a request that was not made, or not followed."""
    message = f"The request was not made: {reason}."
    return FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="host_refused", errors=(message,))


def failure_of_answer(answer: Answer, job: Job) -> FailureInfo:
    """Return the failure of an answer with an error status."""
    body = answer.body[:_LONGEST_BODY].decode("utf-8", "replace")
    message = _message(answer.body) or f"HTTP status {answer.status}"
    code, errors = f"http_{answer.status}", (message,)
    if job.session.resumes and answer.status in {404, 409, 410, 422} and unknown_session(body):
        return FailureInfo(
            pb.FAILURE_KIND_SESSION_LOST, message, code="session_unknown", errors=errors, http_status=answer.status
        )
    known = classify_http(answer.status, body, answer.headers)
    kind = known.kind if known is not None else pb.FAILURE_KIND_INVALID_CONFIG
    retry = known.retry_not_before if known is not None else None
    message = f"The service answered with status {answer.status}: {message}"
    return FailureInfo(kind, message, code=code, errors=errors, retry_not_before=retry, http_status=answer.status)


def reported_failure(error: str, job: Job) -> FailureInfo:
    """Return the failure of an error that the service reports in its answer."""
    errors = (error[:_LONGEST],)
    if job.session.resumes and unknown_session(error):
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, errors[0], code="session_unknown", errors=errors)
    known = classify_text(error)
    kind = known.kind if known is not None else pb.FAILURE_KIND_PROCESS_CRASHED
    retry = known.retry_not_before if known is not None else None
    message = f"The service reports a failure: {errors[0]}"
    return FailureInfo(kind, message, code="reported", errors=errors, retry_not_before=retry)


def unreadable(reason: str) -> FailureInfo:
    """Return the failure of an answer in an unexpected form."""
    message = f"The service's answer cannot be read: {reason[:_LONGEST]}"
    return FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, message, code="answer_unreadable", errors=(message,))


def _message(body: bytes) -> str:
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
