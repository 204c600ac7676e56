"""Failure kinds from error texts and HTTP responses."""

from dragoman.sdk._output.failures import (
    classify_http,
    classify_text,
    failure_of_evidence,
    failure_of_text,
    sentence,
    unknown_session,
)
from dragoman.sdk._output.outcome import failure_message

__all__ = [
    "classify_http",
    "classify_text",
    "failure_message",
    "failure_of_evidence",
    "failure_of_text",
    "sentence",
    "unknown_session",
]
