"""What went wrong: Google's own status and words first, then Gemini CLI's exit code and its last lines."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from dragoman.sdk import FailureInfo, classify_text, failure_from_hint, fields, parse_json_object, unknown_session
from dragoman.v1 import event_pb2 as pb

LOGIN_HINT: Final = "Run `gemini` once as the adapter's user and log in, or set GEMINI_API_KEY in env."

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
_BLOCKED: Final = re.compile(r"\((?:SAFETY|RECITATION|OTHER)\)|blocked|safety", re.IGNORECASE)
_BROKEN: Final = re.compile(
    r"(?:^|[\s:])terminated\b|without a finish reason|fetch failed|other side closed|ECONN|socket hang up"
)
_DOWN: Final = re.compile(r"\boverloaded\b|\bUNAVAILABLE\b|\binternal error\b|high demand", re.IGNORECASE)
_EXITS: Final = {
    41: (pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", LOGIN_HINT),
    42: (pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_input", "See what it says of its input or session."),
    44: (pb.FAILURE_KIND_INVALID_CONFIG, "gemini_sandbox", "See its sandbox settings."),
    52: (pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_configuration", "Correct the settings it names."),
    53: (pb.FAILURE_KIND_MAX_TURNS, "gemini_max_turns", "Raise config.maxTurnsPerRun, or go on in this session."),
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


def failure_of_error(said: str, *, status: int | None = None, code: str = "") -> FailureInfo:
    """Say what an error of the model's service, or of the way there, means.

    Args:
        said: the agent's text; Google's JSON may be in it.
        status: the HTTP status, if the agent gives it apart.
        code: what is known of it otherwise.
    """
    found = _JSON.search(said)
    body = parse_json_object(found[0].encode()) if found else None
    error = fields.inner(body, "error") if body is not None else {}
    words = (fields.text(error, "message") or _unwrapped(said)).strip()
    told = fields.count(error, "code")
    kind, fine, advice = _kind(f"{words} {fields.text(error, 'status')} {said}", told or status)
    http = told if told is not None or kind not in _OF_SERVICE else status
    hint = classify_text(words, datetime.now(UTC)) if kind == pb.FAILURE_KIND_UNSPECIFIED else None
    if hint is not None:
        return replace(failure_from_hint(hint, code=code or "gemini_error"), errors=(said[:2000],))
    if kind == pb.FAILURE_KIND_UNSPECIFIED:
        kind = pb.FAILURE_KIND_PROCESS_CRASHED
    return FailureInfo(
        kind,
        _sentence(words, advice),
        code=fine or code or "gemini_error",
        errors=(said[:2000],) if said else (),
        retry_not_before=_retry(said) if kind in _WAITABLE else None,
        http_status=http if http is not None and 100 <= http <= 599 else None,
    )


def with_status(failure: FailureInfo, exit_code: int | None) -> FailureInfo:
    """Return a failure with the HTTP status that Gemini CLI makes its exit code of, modulo 256, if it said none."""
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
"""Kinds that the service's answer means; of the others, a status given apart is made up."""
_Kind = tuple[pb.FailureKind.ValueType, str, str]


def _kind(words: str, status: int | None) -> _Kind:
    """Return kind, finer code and advice; words before the status, as Google's 400 and 429 mean many things."""
    rules: tuple[tuple[re.Pattern[str], _Kind], ...] = (
        (_NO_MODEL, (pb.FAILURE_KIND_MODEL_NOT_FOUND, "gemini_model_not_found", "Choose another model.")),
        (_OVERFLOW, (pb.FAILURE_KIND_CONTEXT_OVERFLOW, "gemini_context_overflow", "Begin a new session.")),
        (_QUOTA, (pb.FAILURE_KIND_QUOTA_EXCEEDED, "gemini_quota_exceeded", "Wait for the reset, or pay.")),
        (_LIMITED, (pb.FAILURE_KIND_RATE_LIMITED, "gemini_rate_limited", "Wait a while.")),
        (_AUTH, (pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", LOGIN_HINT)),
        (_DOWN, (pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "gemini_unavailable", "Wait a while.")),
        (_BROKEN, (pb.FAILURE_KIND_NETWORK, "gemini_stream_broken", "See what cuts streams on the way.")),
    )
    for pattern, kind in rules:
        if pattern.search(words):
            return kind
    if status in {401, 403}:
        return pb.FAILURE_KIND_AUTH_REQUIRED, "gemini_auth_required", LOGIN_HINT
    if status == 429:
        return pb.FAILURE_KIND_RATE_LIMITED, "gemini_rate_limited", "Wait a while."
    if status is not None and status >= 500:
        return pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "gemini_unavailable", "Wait a while."
    if status == 400:
        return pb.FAILURE_KIND_INVALID_CONFIG, "gemini_bad_request", "The service refused the request."
    return pb.FAILURE_KIND_UNSPECIFIED, "", ""


def failure_of_stream(said: str) -> FailureInfo:
    """Say what an answer means that broke off, or never came: Gemini CLI exits with 0 then."""
    if _BLOCKED.search(said):
        message = _sentence(said, "Put the task otherwise, or ask another model.")
        return FailureInfo(pb.FAILURE_KIND_MODEL_REFUSED, message, code="gemini_blocked", errors=(said,))
    if "token limit" in said.lower() or "max_tokens" in said.lower():
        message = _sentence(said, "Ask for less at once.")
        return FailureInfo(pb.FAILURE_KIND_CONTEXT_OVERFLOW, message, code="gemini_max_tokens", errors=(said,))
    if _BROKEN.search(said):
        return failure_of_error(said)
    message = _sentence(said, "The model gave no answer that could be used.")
    return FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, code="gemini_empty_answer", errors=(said,) if said else ())


def failure_of_exit(exit_code: int | None, words: str, *, resumed: bool) -> FailureInfo | None:
    """Say what an exit without a last word means; None if nothing better is known than its code."""
    lines = [line for line in words.splitlines() if line.strip() and not _NOISE.search(line)]
    said = "\n".join(lines).strip()
    first = lines[0].strip() if lines else ""
    if resumed and exit_code in {1, 42} and (unknown_session(said) or "previous sessions" in said):
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, _sentence(first, ""), "gemini_session_lost", (said[:2000],))
    if _USAGE.search(said):
        advice = "See config.extraArgs, or whether this version of Gemini CLI knows the option."
        named = next((line for line in lines if line.startswith(("Unknown", "Not enough", "Invalid"))), first)
        return FailureInfo(
            pb.FAILURE_KIND_INVALID_CONFIG, _sentence(named, advice), "gemini_bad_option", (said[:2000],)
        )
    known = _EXITS.get(exit_code) if exit_code is not None else None
    if known is None:
        return None
    kind, code, advice = known
    return FailureInfo(kind, _sentence(first, advice), code, (said[:2000],) if said else ())


def retry_cause(words: str) -> pb.FailureKind.ValueType:
    """Say why Gemini CLI asks its model again."""
    status = re.search(r"with status (\d{3})", words)
    return _kind(words, int(status[1]) if status else None)[0]


def _retry(said: str) -> datetime | None:
    found = _RETRY_IN.search(said)
    if found is None:
        return None
    return datetime.now(UTC) + timedelta(seconds=float(found[1][:9]) * _SECONDS[found[2].lower()])


def _unwrapped(said: str) -> str:
    first = said.strip().removeprefix("[API Error: ")
    return first.partition("]\n")[0].removesuffix("]")


def _sentence(said: str, advice: str) -> str:
    first = said.strip().split("\n", 1)[0][:500]
    if not first:
        return f"Gemini CLI failed. {advice}".strip()
    stop = "" if first[-1] in ".!?" else "."
    return f"Gemini CLI: {first}{stop} {advice}".strip()
