"""Failure kinds from error texts and HTTP responses, and what to do about a failure."""

from dragoman.sdk._output.advice import (
    ANSWER_CUT,
    CHECK_NETWORK,
    NEW_SESSION,
    OTHER_MODEL,
    REPHRASE,
    SHORTER_ANSWER,
    SHORTER_PROMPT,
    WAIT,
)
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
    "ANSWER_CUT",
    "CHECK_NETWORK",
    "NEW_SESSION",
    "OTHER_MODEL",
    "REPHRASE",
    "SHORTER_ANSWER",
    "SHORTER_PROMPT",
    "WAIT",
    "classify_http",
    "classify_text",
    "failure_message",
    "failure_of_evidence",
    "failure_of_text",
    "sentence",
    "unknown_session",
]
