"""What Copilot's errors mean: their type, their words, their status; and what is said of each."""

from typing import Any

import pytest
from dragoman.adapters.copilot.classify import (
    failure_of_error,
    failure_of_text,
    interrupted,
    output_limit,
    refusal,
    retry_cause,
)
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

SPEC = agent_spec("dragoman.adapters.copilot")


def name_of(kind: pb.FailureKind.ValueType) -> str:
    return pb.FailureKind.Name(kind).removeprefix("FAILURE_KIND_")


@pytest.mark.parametrize(
    ("error_type", "kind", "advice"),
    [
        ("authentication", "AUTH_REQUIRED", SPEC.login_hint),
        ("authorization", "AUTH_REQUIRED", SPEC.login_hint),
        ("quota", "QUOTA_EXCEEDED", ""),
        ("rate_limit", "RATE_LIMITED", ""),
        ("context_limit", "CONTEXT_OVERFLOW", "Start a new session, or send a shorter prompt."),
        ("query", "NO_RESULT", ""),
    ],
)
def test_each_type_alone(error_type: str, kind: str, advice: str) -> None:
    failure = failure_of_error({"errorType": error_type, "message": "It failed"}, {})
    assert (name_of(failure.kind), failure.code) == (kind, f"copilot_{kind.lower()}")
    assert failure.message == f"{SPEC.label}: It failed. {advice}".strip()
    assert (failure.errors, failure.http_status, failure.login_url) == (("It failed",), None, "")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        *((words, "AUTH_REQUIRED") for words in ("No OAuth token", "No GitHub OAuth token", "not logged in")),
        *((words, "AUTH_REQUIRED") for words in ("no authentication information", "not signed in")),
        *((words, "INVALID_CONFIG") for words in ("require an explicit model", "requires a local model provider")),
        *((words, "INVALID_CONFIG") for words in ("Invalid command format", "invalid command format", "error: x")),
        *((words, "CONTEXT_OVERFLOW") for words in ("prompt as too long", "prompt is too long", "prompt budget")),
        *((words, "CONTEXT_OVERFLOW") for words in ("context window", "context limit", "context length")),
        *((words, "NETWORK") for words in ("Could not connect to x", "Failed native model HTTP request")),
        ("No response was returned", "NO_RESULT"),
    ],
)
def test_words_alone(words: str, kind: str) -> None:
    failure = failure_of_text(f" {words}\n", resumed=False)
    assert failure is not None
    assert (name_of(failure.kind), failure.code, failure.errors) == (kind, f"copilot_{kind.lower()}", (words,))


@pytest.mark.parametrize(
    ("status", "kind", "shown"),
    [
        (400, "INVALID_CONFIG", 400),
        (404, "MODEL_NOT_FOUND", 404),
        (418, "INVALID_CONFIG", 418),
        (499, "INVALID_CONFIG", 499),
        (500, "UPSTREAM_UNAVAILABLE", 500),
        (599, "UPSTREAM_UNAVAILABLE", 599),
        (600, "UPSTREAM_UNAVAILABLE", None),
        (399, "NO_RESULT", None),
    ],
)
def test_a_status_alone(status: int, kind: str, shown: int | None) -> None:
    failure = failure_of_error({"statusCode": status}, {})
    assert (name_of(failure.kind), failure.http_status) == (kind, shown)


def test_the_services_own_words_are_more_precise() -> None:
    quota = failure_of_error({"errorType": "rate_limit", "message": "You exceeded your current quota"}, {})
    assert name_of(quota.kind) == "QUOTA_EXCEEDED"
    cause: dict[str, Any] = {"errorMessage": "model `x` not found", "statusCode": 404}
    unknown = failure_of_error({"message": "It failed"}, cause)
    assert (name_of(unknown.kind), unknown.http_status) == ("MODEL_NOT_FOUND", 404)
    assert unknown.errors == ("It failed", "model `x` not found")
    assert unknown.message == f"{SPEC.label}: It failed. Choose another model."
    assert failure_of_error({"message": "It failed"}, {"statusCode": 404}).http_status is None
    assert failure_of_error({}, cause).message == f"{SPEC.label}: model `x` not found. Choose another model."


@pytest.mark.parametrize(("error_type", "url"), [("authentication", "https://x/login"), ("quota", "")])
def test_where_to_log_in(error_type: str, url: str) -> None:
    assert failure_of_error({"errorType": error_type, "url": "https://x/login"}, {}).login_url == url


def test_a_session_is_only_lost_if_one_was_to_go_on() -> None:
    words = "No session found matching 'a-1'"
    lost = failure_of_text(words, resumed=True)
    assert lost is not None
    assert (name_of(lost.kind), lost.code) == ("SESSION_LOST", "copilot_session_lost")
    assert lost.message == f"{SPEC.label}: {words}. A new session is started."
    assert failure_of_text(words, resumed=False) is None
    assert failure_of_text("  \n", resumed=True) is None
    long = failure_of_text("error: " + "x" * 3000, resumed=False)
    assert long is not None
    assert len(long.errors[0]) == 2000


def test_answers_that_are_not_whole() -> None:
    assert (name_of(output_limit().kind), output_limit().code) == ("OUTPUT_LIMIT", "copilot_output_limit")
    assert output_limit().errors == ("length",)
    assert (name_of(refusal("").kind), refusal("").code) == ("MODEL_REFUSED", "copilot_model_refused")
    assert (refusal("").errors, refusal("why").errors) == (("content_filter",), ("why",))
    end = interrupted()
    assert (end.succeeded, end.subtype, end.interrupted) == (False, "aborted", True)
    assert end.failure is not None
    assert (name_of(end.failure.kind), end.failure.code) == ("PROCESS_CRASHED", "copilot_interrupted")


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("streaming_error", None, "NETWORK"),
        ("other", None, "UNSPECIFIED"),
        ("streaming_error", 429, "RATE_LIMITED"),
        ("", 500, "UPSTREAM_UNAVAILABLE"),
    ],
)
def test_why_it_tries_again(reason: str, status: int | None, kind: str) -> None:
    assert name_of(retry_cause(reason, status)) == kind
