"""What the services' errors mean, and how long to wait for another try."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dragoman.adapters.model_api.failures import (
    ServiceError,
    cut,
    failure_of,
    failure_of_stop,
    retry_delay,
    turns_used_up,
)
from dragoman.adapters.model_api.reply import Reply
from dragoman.sdk import FailureInfo
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (
            {"status": 401, "body": '{"error":{"type":"authentication_error","message":"invalid x-api-key"}}'},
            pb.FAILURE_KIND_AUTH_REQUIRED,
            "authentication_error",
        ),
        (
            {"status": 403, "body": '{"error":{"type":"permission_error","message":"not allowed"}}'},
            pb.FAILURE_KIND_AUTH_REQUIRED,
            "permission_error",
        ),
        ({"status": 404, "body": "<html>not here</html>"}, pb.FAILURE_KIND_INVALID_CONFIG, "http_404"),
        ({"status": 307, "body": ""}, pb.FAILURE_KIND_INVALID_CONFIG, "http_307"),
        (
            {"body": '{"error":{"type":"overloaded_error","message":"Overloaded"}}'},
            pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
            "overloaded_error",
        ),
        ({"trouble": "garbage"}, pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, "garbage"),
        ({"trouble": "network"}, pb.FAILURE_KIND_NETWORK, "connection_failed"),
    ],
)
def test_kinds(error: dict[str, Any], kind: int, code: str) -> None:
    info = failure_of(ServiceError("It went wrong.", **error), NOW)
    assert (info.kind, info.code) == (kind, code)
    assert info.message
    assert info.errors


def test_a_cut_is_distinguished() -> None:
    assert failure_of(cut(), NOW).code == "stream_cut"


@given(st.text(max_size=200), st.text(max_size=200), st.one_of(st.none(), st.integers(300, 600)))
def test_no_answer_raises(message: str, body: str, status: int | None) -> None:
    assert failure_of(ServiceError(message, status=status, body=body), NOW).kind


def info(kind: pb.FailureKind.ValueType, wait_s: float | None = None) -> FailureInfo:
    until = None if wait_s is None else datetime.now(UTC) + timedelta(seconds=wait_s)
    return FailureInfo(kind, "", retry_not_before=until)


def test_how_long_to_wait() -> None:
    error = ServiceError("")
    limited, down = pb.FAILURE_KIND_RATE_LIMITED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
    assert retry_delay(error, info(pb.FAILURE_KIND_AUTH_REQUIRED), 1, 0) is None
    assert retry_delay(error, info(limited, 3600), 1, 0) is None, "a person would rather know"
    assert retry_delay(error, info(limited, 2), 1, 0) == pytest.approx(2.05, abs=1.5)
    assert [retry_delay(error, info(down), tries, 1) for tries in (1, 2, 3, 9)] == [0.5, 1.0, 2.0, 8.0]
    assert retry_delay(ServiceError("", headers={"x-should-retry": "false"}), info(down), 1, 0) is None


@pytest.mark.parametrize(
    ("stop", "kind", "code", "advice"),
    [
        ("refusal", pb.FAILURE_KIND_MODEL_REFUSED, "refusal", "choose another model."),
        ("length", pb.FAILURE_KIND_OUTPUT_LIMIT, "max_tokens", "Raise config.maxTokens"),
        ("context", pb.FAILURE_KIND_CONTEXT_OVERFLOW, "context_window", "Start a new session"),
    ],
)
def test_an_answer_that_is_not_whole(stop: Any, kind: int, code: str, advice: str) -> None:
    reply = Reply("m1")
    reply.stop, reply.stop_word = stop, "its_word"
    failure = failure_of_stop(reply)
    assert failure is not None
    assert (failure.kind, failure.code, failure.errors) == (kind, code, ("its_word",))
    assert advice in failure.message
    reply.stop = "end"
    assert failure_of_stop(reply) is None


def test_no_turns_are_left() -> None:
    failure = turns_used_up(7)
    assert (failure.kind, failure.code) == (pb.FAILURE_KIND_MAX_TURNS, "max_turns")
    assert "7 turns. Raise config.maxTurns" in failure.message


@pytest.mark.parametrize(
    ("window", "kind"),
    [("rejected", pb.FAILURE_KIND_QUOTA_EXCEEDED), ("allowed", pb.FAILURE_KIND_RATE_LIMITED)],
)
def test_a_window_that_is_used_up_is_a_quota(window: str, kind: int) -> None:
    headers = {"anthropic-ratelimit-unified-status": window}
    failure = failure_of(ServiceError("No.", status=429, headers=headers), NOW)
    assert (failure.kind, failure.http_status) == (kind, 429)
