"""Error answers of OpenAI's APIs, the same for Chat Completions and Responses."""

from collections.abc import Mapping
from typing import Any

from dragoman.testkit.model_server.api import ErrorAnswer
from dragoman.testkit.model_server.conversation import Conversation
from dragoman.testkit.model_server.script import Cause, Failure
from msgspec import Struct

#: When a used-up window ends: the first second of the year 2100, so that tests need no clock.
RESETS_AT = 4_102_444_800


class _Words(Struct, frozen=True):
    """One kind of error: HTTP status, ``type``, ``code`` and usual text."""

    status: int
    kind: str
    code: str | None
    text: str


#: https://platform.openai.com/docs/guides/error-codes and answers of the service.
_TEMPLATES: Mapping[Cause, _Words] = {
    "unauthorized": _Words(
        401,
        "invalid_request_error",
        "invalid_api_key",
        "Incorrect API key provided: sk-fake**********0000. You can find your API key at "
        "https://platform.openai.com/account/api-keys.",
    ),
    "forbidden": _Words(
        403,
        "request_forbidden",
        "unsupported_country_region_territory",
        "Country, region, or territory not supported",
    ),
    "rate_limited": _Words(
        429,
        "requests",
        "rate_limit_exceeded",
        "Rate limit reached for {model} in organization org-scripted on requests per min (RPM): "
        "Limit 3, Used 3, Requested 1.",
    ),
    "quota": _Words(429, "usage_limit_reached", None, "The usage limit has been reached"),
    "no_credit": _Words(
        429,
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    "overflow": _Words(
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "no_model": _Words(
        404,
        "invalid_request_error",
        "model_not_found",
        "The model `{model}` does not exist or you do not have access to it.",
    ),
    "malformed": _Words(400, "invalid_request_error", None, "We could not parse the JSON body of your request."),
    "overloaded": _Words(
        503,
        "service_unavailable_error",
        "server_is_overloaded",
        "Our servers are currently overloaded. Please try again later.",
    ),
    "server_error": _Words(
        500, "server_error", None, "The server had an error while processing your request. Sorry about that!"
    ),
}


def error_object(failure: Failure, conversation: Conversation) -> dict[str, Any]:
    """Return the value of ``error``: message, type, code, and the retry delay if the script has one."""
    template = _TEMPLATES[failure.cause]
    text = failure.message or template.text.replace("{model}", conversation.model)
    error: dict[str, Any] = {"message": text, "type": template.kind, "param": None, "code": template.code}
    if failure.cause == "quota":
        error |= {"plan_type": "plus", "resets_at": RESETS_AT, "resets_in_seconds": failure.retry_after_s}
    elif failure.retry_after_s is not None:
        error["message"] += f" Please try again in {failure.retry_after_s}s."
    return error


def error_answer(failure: Failure, conversation: Conversation) -> ErrorAnswer:
    """Return an error answer: status, body, and the headers of a rate limit."""
    headers = {"x-request-id": "req_scripted"}
    if failure.retry_after_s is not None:
        headers["retry-after"] = str(failure.retry_after_s)
    if failure.cause == "quota":
        headers |= {
            "x-codex-primary-used-percent": "100",
            "x-codex-primary-window-minutes": "300",
            "x-codex-primary-reset-at": str(RESETS_AT),
        }
    return ErrorAnswer(_TEMPLATES[failure.cause].status, {"error": error_object(failure, conversation)}, headers)
