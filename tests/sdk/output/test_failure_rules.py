"""One text for each branch of the patterns that identify failures; without its branch a failure has no kind."""

import pytest
from dragoman.sdk._output.failure_rules import (
    KIND_BY_STATUS,
    LEADING_STATUS,
    NO_UNKNOWN_SESSION,
    REFRESH_TOKENS,
    REJECTED,
    RULES,
    STATUS,
    UNKNOWN_SESSION,
    VAGUE,
)
from dragoman.v1 import event_pb2 as pb

TEXTS = {
    "MAX_TURNS": (
        *("error_max_turns", "FatalTurnLimitedError", "reached max turns", "exceeded the maximum number of turns"),
        *("hit max_turns", "max session turns reached", "maximum turns were exceeded", "max_turns limit hit"),
    ),
    "OUTPUT_LIMIT": (
        *("incomplete: max_tokens", "incomplete: max_output_tokens", '"finish_reason":"length"'),
        *("stop_reason = max_tokens", "stopreason: max_output_tokens", '{\\"stop_reason\\":\\"max_tokens\\"}'),
        *("exceeded the output token maximum", "exceeded the 32000 output token maximum"),
        *("response was truncated by the output limit", "response is cut off: token limits"),
    ),
    "CONTEXT_OVERFLOW": (
        *("prompt too long", "the input is too large", "messages are too long", "requests too large"),
        *("conversation too long", "context is too long", "context window full", "context length exceeded"),
        *("context_limit: 9 is too much", "context_length_exceeded", "request_too_large", "maximum context length"),
        *("ContextOverflowError", "exceeds the model's maximum context", "exceed your max input tokens"),
        *("exceeding the number of tokens",),
    ),
    "MODEL_NOT_FOUND": (
        *("model_not_found", "ProviderModelNotFoundError", "unknown model", "invalid model", "unrecognized model"),
        *("unsupported model", "model x not found", "the models x does not exist", "model x doesn't exist"),
        *("model x is not supported", "model x is not available", "no such model", "x is not a valid model"),
        *("an issue with the selected model", "not_found_error: model", "you do not have access to the model"),
        *("this key does not have access to this model",),
    ),
    "AUTH_REQUIRED": (
        *("not logged in", "not signed in", "please run /login", "please log in", "please sign in"),
        *("login required", "log in is required", "authentication error", "authentication_failed"),
        *("authentication required", "authentication is required", "not able to authenticate"),
        *("not authenticated", "unauthenticated", "reauthenticate", "re-authenticate", "invalid auth method"),
        *("no auth type found", "no authentication method is set", "no auth type selected"),
        *("no authentication information found", "no auth credentials set", "invalid api key", "incorrect x-api-key"),
        *("wrong_api_key", "missing api keys", "expired api-key", "revoked api key", "no api key", "no_api_key"),
        *("api key not found", "api_key not valid", "api keys are not set", "api key not configured"),
        *("apikey is invalid", "api key missing", "api key has expired", "api key was revoked"),
        *("set the MY_API_KEY", "specify an api key", "provide your api key", "configure api key", "check API_KEY"),
        *("missing environment variable: `X_KEY`", "missing environment variable: X_TOKEN", "missing bearer"),
        *("permission_error", "oauth token expired", "access_token is invalid", "auth tokens revoked"),
        *("refresh token has expired", "provider token is invalid", "refresh token was already used"),
        *("refresh token is already been used", "refresh_token_reused", "refresh_token_expired"),
        *("refresh_token_invalidated", "session expired", "session has expired"),
    ),
    "QUOTA_EXCEEDED": (
        *("insufficient_quota", "billing_hard_limit_reached", "usage_limit_reached", "billing_error"),
        *("hit your usage limit", "reached the session limits", "exceeded a weekly limit", "hit the monthly limit"),
        *("hit the daily limit", "exceeded its spending limit", "reached the plan limit", "usage limit reached"),
        *("session limit was reached", "weekly limits reached", "monthly limit has been reached"),
        *("daily limit reached", "spending limit reached", "5-hour limit reached", "you hit your limit"),
        *("reached your limit", "exceeded your quota", "exceeded your current quota", "exceeded your monthly quota"),
        *("exceeded your daily quota", "quota exceeded", "quota was exhausted", "quota has been reached"),
        *("quota will reset", "exhausted your capacity", "exhausted your daily quota", "exhausted your quota"),
        *("out of credits", "out of quota", "out of usage", "credit balance is too low", "insufficient credits"),
        *("insufficient funds", "insufficient balance", "no credits left"),
    ),
    "MODEL_REFUSED": (
        *("this violates our usage policies", "it violates the content policy", "content_filter"),
        *("content policy violation", "content_policy_violation", 'stop_reason": "refusal', "finish_reason=safety"),
        *("finishReason: PROHIBITED_CONTENT", "blocked by our safety system", "flagged for a policy"),
        *("blocked due to the content filter", "flagged by moderation"),
    ),
    "INVALID_CONFIG": ("invalid_request_error", "INVALID_ARGUMENT", "bad_request_error", "BadRequestError"),
    "RATE_LIMITED": (
        *("rate limit", "rate-limited", "rate limiting", "rate_limit_error", "ratelimit exceeded", "rate limits"),
        *(
            "rate limit reached",
            "too many requests",
            "requests per minute",
            "requests per second",
            "requests per day",
        ),
        *("resource_exhausted", "resource has been exhausted", "quota exceeded: 5 per minute", "throttled"),
        *("throttling",),
    ),
    "UPSTREAM_UNAVAILABLE": (
        *("overloaded", "overloaded_error", "temporarily unavailable", "currently overloaded", "high demand"),
        *("internal server error", "server error", "server_error", "bad gateway", "service unavailable"),
        *("service_unavailable", "the server had an error", "gateway timeout", "gateway time-out", "upstream error"),
        *("upstream connect error", "upstream request timeout", "at capacity"),
    ),
    "NETWORK": (
        *(f"E{name}" for name in ("CONNREFUSED", "CONNRESET", "CONNABORTED", "TIMEDOUT", "NOTFOUND", "HOSTUNREACH")),
        *("ENETUNREACH", "EAI_AGAIN", "EPIPE", "fetch failed", "socket hang up", "network error"),
        *("network is unreachable", "getaddrinfo", "connection error", "connection failed", "connection refused"),
        *("connection reset", "connection closed", "connection aborted", "connection timed out", "connection lost"),
        *("unable to connect", "could not connect", "cannot connect", "failed to connect", "stream disconnected"),
        *("stream closed", "stream ended", "could not resolve host", "name resolution", "terminated"),
        *("error sending request", "certificate has expired", "certificate verify failed"),
        *("self signed certificate", "self-signed certificate", "request timed out", "premature close"),
        *("other side closed", "UND_ERR_SOCKET", "error decoding the response body", "error reading body"),
        *("tcp connect error", "dns error"),
    ),
}
"""By kind. Each is of that kind by these words alone."""
UNKNOWN = (
    *("no conversation found with session id", "unknown session", "invalid thread id", "unknown conversation"),
    *("unknown chat", "invalid checkpoint identifier", "session not found", "threads x-1 was not found"),
    *("chat 'x' could not be found", "resume id: 17 is not found", "checkpoint file not found"),
    *("conversation history not found", "session transcript not found", "session with id a_b not found"),
    *("thread for 12 not found", "chat named 'a b' not found", "not a valid uuid", "is not a uuid"),
    *("--resume requires a valid session", "does not match any session title", "missing rollout path"),
    *("no rollout found for thread", "cannot resume", "can't resume", "could not resume", "couldn't resume"),
    *("failed to resume", "unable to resume", "error resuming", "resource not found: /a/session/b"),
    *("no previous session found", "no saved conversations exist", "no session found", "no conversation matching"),
    *("no sessions with", "no session exists", "no session, task, or name matched", "error: no session."),
    *("no conversation", "NotFoundError", "previous_message_id"),
)
KNOWN = (
    *("session x is already in use", "session x already exists", "unknown session state", "invalid session event"),
    *("unknown session type", "invalid session option", "unknown session mode", "invalid session update"),
    *("unknown session storage", "invalid session token", "invalid session cookie", "invalid session key"),
    *("unknown session configuration",),
)
REFRESH = {
    "refresh_token_reused": (
        "refresh_token_reused",
        "refresh token was already used",
        "refresh token already been used",
    ),
    "refresh_token_expired": (
        *("refresh_token_expired", "refresh token expired", "refresh token has expired", "refresh token is expired"),
        *("refresh token was expired",),
    ),
    "refresh_token_invalidated": (
        *("refresh_token_invalidated", "refresh token revoked", "refresh token is invalidated"),
        *("refresh token was invalid", "refresh token has been rejected"),
    ),
}
STATUSES = (
    *(f"429 {words}" for words in ("bad request", "unauthorized", "unauthorised", "payment required", "forbidden")),
    *(f"429: {words}" for words in ("not found", "request timeout", "conflict", "gone", "payload too large")),
    *(f"429 - {words}" for words in ("content too large", "request entity too large", "unprocessable")),
    *(f"429, {words}" for words in ("too many requests", "internal server error", "not implemented", "bad gateway")),
    *(f"429 {words}" for words in ("service unavailable", "gateway timeout", "gateway time-out", "overloaded")),
    *(f"429 {words}" for words in ("the server had an error", "rate limit", "incorrect api key", "status code")),
    *("429 invalid x-api-key", "HTTP 429", "HTTP/2 429", "HTTP/1.1 429", "HTTP status 429", "HTTP error code: 429"),
    *(
        "status 429",
        "status code 429",
        "status_code=429",
        '"statusCode": 429',
        '\\"status\\": 429',
        "status of 429",
    ),
    *("api error 429", "API_error: 429", "api error: (429)", "request rejected (429)", "error: 429", "code=429,"),
    *('"code": 429}', "error code: 429", "error_code = 429;", '{\\"code\\":429}', "code: 429 {", "error: 429)"),
)


def name_of(kind: pb.FailureKind.ValueType) -> str:
    return pb.FailureKind.Name(kind).removeprefix("FAILURE_KIND_")


def kinds_of(text: str) -> list[str]:
    return [name_of(kind) for kind, found in RULES if found.search(text)]


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_has_its_kind(kind: str) -> None:
    for text in TEXTS[kind]:
        assert kinds_of(text)[:1] == [kind], text
        assert kinds_of(text.upper())[:1] == [kind], text


def test_each_kind_has_its_texts() -> None:
    assert [name_of(kind) for kind, _ in RULES] == list(TEXTS)


def test_a_session_is_unknown() -> None:
    for text in UNKNOWN:
        assert UNKNOWN_SESSION.search(text), text
        assert not NO_UNKNOWN_SESSION.search(text), text


def test_a_session_is_known() -> None:
    assert [text for text in KNOWN if not NO_UNKNOWN_SESSION.search(text)] == []


@pytest.mark.parametrize("code", REFRESH)
def test_why_a_login_is_not_renewed(code: str) -> None:
    for text in REFRESH[code]:
        assert [name for name, pattern in REFRESH_TOKENS if pattern.search(text)] == [code], text


def test_a_number_is_a_status() -> None:
    for text in STATUSES:
        found = STATUS.search(text)
        assert found, text
        assert [value for value in found.groupdict().values() if value] == ["429"], text


def test_a_number_at_the_begin_of_a_line_may_be_a_status() -> None:
    for text in ("429 Slow down", "429: Slow down", "a line\n429 Slow down"):
        found = LEADING_STATUS.search(text)
        assert found, text
        assert found["leading"] == "429"
    for text in ("429", "429: ", "4290 Slow down", "429-Slow down", "x 429 Slow down", "329 Slow"):
        assert not LEADING_STATUS.search(text), text


def test_what_a_status_says() -> None:
    assert sorted(REJECTED) == [400, 404, 405, 409, 410, 415, 422]
    assert {status: name_of(kind) for status, kind in KIND_BY_STATUS.items()} == {
        401: "AUTH_REQUIRED",
        402: "QUOTA_EXCEEDED",
        403: "AUTH_REQUIRED",
        407: "NETWORK",
        408: "UPSTREAM_UNAVAILABLE",
        413: "CONTEXT_OVERFLOW",
        429: "RATE_LIMITED",
    }
    vague = {"RATE_LIMITED", "UPSTREAM_UNAVAILABLE", "NETWORK", "INVALID_CONFIG"}
    assert set(map(name_of, VAGUE)) == vague
