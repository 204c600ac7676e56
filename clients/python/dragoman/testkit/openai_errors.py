"""What the OpenAI Responses API, and ChatGPT's backend for Codex, say differently when something is wrong."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dragoman.testkit.conversation import Conversation
from dragoman.testkit.dialect import ErrorAnswer
from dragoman.testkit.openai_chat import openai_failure
from dragoman.testkit.scenarios import Cause, Failure

#: When a used-up window ends: the first second of the year 2100, so that tests need no clock.
RESETS_AT = 4_102_444_800

_OWN: Mapping[Cause, Mapping[str, Any]] = {
    "quota": {
        "type": "usage_limit_reached",
        "code": None,
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": RESETS_AT,
    },
    "overflow": {
        "message": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    },
    "overloaded": {
        "type": "service_unavailable_error",
        "code": "server_is_overloaded",
        "message": "Our servers are currently overloaded. Please try again later.",
    },
}


def responses_failure(failure: Failure, conversation: Conversation) -> ErrorAnswer:
    """Return an error answer: status, body, and the headers by which a limit is told."""
    usual = openai_failure(failure, conversation)
    assert isinstance(usual.body, dict)
    error = {**usual.body["error"], **_OWN.get(failure.cause, {})}
    if failure.message:
        error["message"] = failure.message
    headers = dict(usual.headers)
    if failure.cause == "quota":
        error["resets_in_seconds"] = failure.retry_after_s
        headers |= {
            "x-codex-primary-used-percent": "100",
            "x-codex-primary-window-minutes": "300",
            "x-codex-primary-reset-at": str(RESETS_AT),
        }
    elif failure.retry_after_s is not None:
        error["message"] += f" Please try again in {failure.retry_after_s}s."
    return replace(usual, body={"error": error}, headers=headers)


def error_in_stream(failure: Failure, conversation: Conversation) -> dict[str, Any]:
    """Return what ``response.failed`` holds as its ``error``: code and message."""
    body = responses_failure(failure, conversation).body
    assert isinstance(body, dict)
    error = body["error"]
    return {"code": error["code"] or error["type"], "message": error["message"]}
