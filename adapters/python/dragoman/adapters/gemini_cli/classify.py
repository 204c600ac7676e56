"""Failures, by Google's own status and message first, then by Gemini CLI's exit code and last lines."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from dragoman.sdk import FailureInfo, fields
from dragoman.sdk.failures import (
    OTHER_MODEL,
    REPHRASE,
    SHORTER_ANSWER,
    SHORTER_PROMPT,
    WAIT,
    failure_of_text,
    sentence,
    unknown_session,
)
from dragoman.sdk.fields import parse_json_object
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

LOGIN_HINT: Final = agent_spec(__package__).login_hint
_AGENT: Final = agent_spec(__package__).label

_JSON: Final = re.compile(r"\{.*\}", re.DOTALL)
_RETRY_IN: Final = re.compile(r"(?:retry in|retry after|reset after) (\d+(?:\.\d+)?)(ms|s|m|h)\b", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_AUTH: Final = re.compile(
    r"API key (?:not valid|is missing)|Authentication required|API_KEY_INVALID|UNAUTHENTICATED|Invalid auth method"
    r"|must specify (?:the|either)|GEMINI_API_KEY|Please set an Auth method|authentication type"
)
_QUOTA: Final = re.compile(
    r"daily quota|PerDay|credits are depleted|limit: 0\b|exhausted your capacity", re.IGNORECASE
)
_LIMITED: Final = re.compile(
    r"exceeded your current quota|Rate limit exceeded|RESOURCE_EXHAUSTED|Resource has been exhausted"
)
_OVERFLOW: Final = re.compile(r"input token count .{0,40}exceeds|exceeds the maximum number of tokens|context window")
_NO_MODEL: Final = re.compile(
    r"models?/\S+ is not found|is not supported for generateContent|model not found", re.IGNORECASE
)
_GOOGLES_404: Final = re.compile(r"models?/\S+ is not found for API version")
"""A message that Google's services use with this status alone; Gemini CLI leaves the number out."""
_BLOCKED: Final = re.compile(r"\((?:SAFETY|RECITATION|OTHER)\)|blocked|safety", re.IGNORECASE)
_BROKEN: Final = re.compile(
    r"(?:^|[\s:])terminated\b|without a finish reason|fetch failed|other side closed|ECONN|socket hang up"
)
_DOWN: Final = re.compile(r"\boverloaded\b|\bUNAVAILABLE\b|\binternal error\b|high demand", re.IGNORECASE)
_EXITS: Final = {
    41: (pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", LOGIN_HINT),
    42: (pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_input", "See its message about its input or session."),
    44: (pb.FAILURE_KIND_INVALID_CONFIG, "gemini_sandbox", "See its sandbox settings."),
    52: (pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_configuration", "Correct the settings it names."),
    53: (pb.FAILURE_KIND_MAX_TURNS, "gemini_max_turns", "Raise config.maxTurnsPerRun, or continue in this session."),
    55: (
        pb.FAILURE_KIND_INVALID_CONFIG,
        "gemini_untrusted",
        "Do not set GEMINI_CLI_TRUST_WORKSPACE to anything else.",
    ),
}
_NOISE: Final = re.compile(
    r"^(?:YOLO mode is enabled|Ripgrep is not available|\[STARTUP\]|Warning: 256-color|Loaded cached cred)"
)
_USAGE: Final = re.compile(
    r"^(?:Unknown arguments?:|Not enough arguments|Invalid values:|Usage: gemini)", re.MULTILINE
)


def failure_of_error(message: str, *, status: int | None = None, code: str = "") -> FailureInfo:
    """Return the failure of an error of the model's service, or of the network.

    Args:
        message: the agent's; Google's JSON may be in it.
        status: the HTTP status, if the agent reports it separately.
        code: the failure's code, if the message has no better one.
    """
    found = _JSON.search(message)
    body = parse_json_object(found[0].encode()) if found else None
    error = fields.inner(body, "error") if body is not None else {}
    words = (fields.text(error, "message") or _unwrapped(message)).strip()
    http = fields.count(error, "code")
    kind, fine, advice = _kind(f"{words} {fields.text(error, 'status')} {message}", http or status)
    http = status if http is None and kind in _OF_SERVICE else http
    if http is None and _GOOGLES_404.search(words):
        http = 404
    known = failure_of_text(words, code or "gemini_error") if kind == pb.FAILURE_KIND_UNSPECIFIED else None
    if known is not None:
        return replace(known, errors=(message[:2000],))
    if kind == pb.FAILURE_KIND_UNSPECIFIED:
        kind = pb.FAILURE_KIND_PROCESS_CRASHED
    return FailureInfo(
        kind,
        sentence(_AGENT, words, advice),
        code=fine or code or "gemini_error",
        errors=(message[:2000],) if message else (),
        retry_not_before=_retry(message) if kind in _WAITABLE else None,
        http_status=http if http is not None and 100 <= http <= 599 else None,
    )


def with_status(failure: FailureInfo, exit_code: int | None) -> FailureInfo:
    """Return a failure with the HTTP status, if it has none: Gemini CLI's exit code is the status modulo 256."""
    status = _STATUS_BY_EXIT.get(exit_code or 0)
    if status is None or failure.http_status is not None or failure.kind not in _OF_SERVICE:
        return failure
    return replace(failure, http_status=status)


_STATUS_BY_EXIT: Final = {status % 256: status for status in (400, 401, 403, 429, 500, 502, 503, 504)}
_WAITABLE: Final = frozenset({pb.FAILURE_KIND_QUOTA_EXCEEDED, pb.FAILURE_KIND_RATE_LIMITED})
_OF_SERVICE: Final = frozenset(
    {
        *_WAITABLE,
        *(pb.FAILURE_KIND_AUTH_REQUIRED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, pb.FAILURE_KIND_INVALID_CONFIG),
        pb.FAILURE_KIND_CONTEXT_OVERFLOW,
    }
)
"""Kinds that come from the service's answer; with the others, a separate status is not a real one."""
_Kind = tuple[pb.FailureKind.ValueType, str, str]


def _kind(words: str, status: int | None) -> _Kind:
    """Return kind, finer code and advice; the message before the status, as Google's 400 and 429 are ambiguous."""
    rules: tuple[tuple[re.Pattern[str], _Kind], ...] = (
        (_NO_MODEL, (pb.FAILURE_KIND_MODEL_NOT_FOUND, "gemini_model_not_found", OTHER_MODEL)),
        (_OVERFLOW, (pb.FAILURE_KIND_CONTEXT_OVERFLOW, "gemini_context_overflow", SHORTER_PROMPT)),
        (_QUOTA, (pb.FAILURE_KIND_QUOTA_EXCEEDED, "gemini_quota_exceeded", "Wait for the reset, or pay.")),
        (_LIMITED, (pb.FAILURE_KIND_RATE_LIMITED, "gemini_rate_limited", WAIT)),
        (_AUTH, (pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", LOGIN_HINT)),
        (_DOWN, (pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "gemini_unavailable", WAIT)),
        (_BROKEN, (pb.FAILURE_KIND_NETWORK, "gemini_stream_broken", "See what cuts streams on the way.")),
    )
    for pattern, kind in rules:
        if pattern.search(words):
            return kind
    if status in {401, 403}:
        return pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", LOGIN_HINT
    if status == 429:
        return pb.FAILURE_KIND_RATE_LIMITED, "gemini_rate_limited", WAIT
    if status is not None and status >= 500:
        return pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "gemini_unavailable", WAIT
    if status == 400:
        return pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_request", "The service refused the request."
    return pb.FAILURE_KIND_UNSPECIFIED, "", ""


def failure_of_stream(message: str) -> FailureInfo:
    """Return the failure of an answer that was cut, or is missing: Gemini CLI exits with 0 then."""
    if _BLOCKED.search(message):
        refused = sentence(_AGENT, message, REPHRASE)
        return FailureInfo(pb.FAILURE_KIND_MODEL_REFUSED, refused, code="gemini_blocked", errors=(message,))
    if "token limit" in message.lower() or "max_tokens" in message.lower():
        cut = sentence(_AGENT, message, SHORTER_ANSWER)
        return FailureInfo(pb.FAILURE_KIND_OUTPUT_LIMIT, cut, code="gemini_max_tokens", errors=(message,))
    if _BROKEN.search(message):
        return failure_of_error(message)
    empty = sentence(_AGENT, message, "The model gave no usable answer.")
    return FailureInfo(
        pb.FAILURE_KIND_NO_RESULT, empty, code="gemini_empty_answer", errors=(message,) if message else ()
    )


def failure_of_exit(exit_code: int | None, words: str, *, resumed: bool) -> FailureInfo | None:
    """Return the failure of an exit without a result; None if only its code is known."""
    lines = [line for line in words.splitlines() if line.strip() and not _NOISE.search(line)]
    output = "\n".join(lines).strip()
    first = lines[0].strip() if lines else ""
    if resumed and exit_code in {1, 42} and (unknown_session(output) or "previous sessions" in output):
        return FailureInfo(
            pb.FAILURE_KIND_SESSION_LOST, sentence(_AGENT, first, ""), "gemini_session_lost", (output[:2000],)
        )
    if _USAGE.search(output):
        advice = "See config.extraArgs, or whether this version of Gemini CLI knows the option."
        named = next((line for line in lines if line.startswith(("Unknown", "Not enough", "Invalid"))), first)
        return FailureInfo(
            pb.FAILURE_KIND_INVALID_CONFIG, sentence(_AGENT, named, advice), "gemini_bad_option", (output[:2000],)
        )
    known = _EXITS.get(exit_code) if exit_code is not None else None
    if known is None:
        return None
    kind, code, advice = known
    return FailureInfo(kind, sentence(_AGENT, first, advice), code, (output[:2000],) if output else ())


def retry_cause(words: str) -> pb.FailureKind.ValueType:
    """Return why Gemini CLI calls its model again."""
    status = re.search(r"with status (\d{3})", words)
    return _kind(words, int(status[1]) if status else None)[0]


def _retry(message: str) -> datetime | None:
    found = _RETRY_IN.search(message)
    if found is None:
        return None
    return datetime.now(UTC) + timedelta(seconds=float(found[1][:9]) * _SECONDS[found[2].lower()])


def _unwrapped(message: str) -> str:
    first = message.strip().removeprefix("[API Error: ")
    return first.partition("]\n")[0].removesuffix("]")
