"""Failures, from what Claude Code reports: the most precise statement first.

Order, as measured: ``terminal_reason``, then the subtype of ``result``, a refusal, ``api_error``, the ``error`` of
the last message, and the HTTP status. Before there is a session, there is only a line on standard error.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeAlias

from dragoman.sdk import FailureInfo, Terminal
from dragoman.sdk.failures import (
    CHECK_NETWORK,
    NEW_SESSION,
    REPHRASE,
    SHORTER_PROMPT,
    WAIT,
    classify_text,
    sentence,
    unknown_session,
)
from dragoman.sdk.fields import Fields, as_string_list, count, inner, text, unix_moment
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct
from msgspec.structs import replace

LOGIN_HINT: Final = agent_spec(__package__).login_hint
_AGENT: Final = agent_spec(__package__).label
_NOISE: Final = "[ede_diagnostic]"
"""Begins diagnostics for Claude Code's developers; users need not see them."""

Kind: TypeAlias = pb.FailureKind.ValueType


class _Rule(Struct, frozen=True):
    kind: Kind
    code: str
    message: str
    """What to do; or what happened, if the agent's own text leaves that out."""


_BY_TERMINAL_REASON: Final[Mapping[str, _Rule]] = {
    "max_turns": _Rule(
        pb.FAILURE_KIND_MAX_TURNS, "claude_max_turns", "Raise config.maxTurnsPerRun, or go on in this session."
    ),
    "budget_exhausted": _Rule(
        pb.FAILURE_KIND_MAX_TURNS, "claude_max_budget_usd", "Raise config.maxBudgetUsd, or go on in this session."
    ),
    "prompt_too_long": _Rule(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "claude_prompt_too_long", SHORTER_PROMPT),
}
_BY_SUBTYPE: Final[Mapping[str, _Rule]] = {
    "error_max_turns": _BY_TERMINAL_REASON["max_turns"],
    "error_max_budget_usd": _BY_TERMINAL_REASON["budget_exhausted"],
    "error_max_structured_output_retries": _Rule(
        pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
        "claude_max_structured_output_retries",
        "The model did not manage an answer that fits the JSON Schema.",
    ),
}
_REFUSED: Final = _Rule(pb.FAILURE_KIND_MODEL_REFUSED, "claude_refusal", REPHRASE)
_CONTEXT_FULL: Final = _Rule(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "claude_context_window_exceeded", SHORTER_PROMPT)
_BY_ERROR: Final[Mapping[str, _Rule]] = {
    # result.api_error, or api_error of the last message
    "usage_limit_reached": _Rule(
        pb.FAILURE_KIND_QUOTA_EXCEEDED, "claude_usage_limit_reached", "Wait for the reset, or use an API key."
    ),
    "connection_failed": _Rule(pb.FAILURE_KIND_NETWORK, "claude_connection_failed", CHECK_NETWORK),
    "max_output_tokens": _Rule(
        pb.FAILURE_KIND_OUTPUT_LIMIT,
        "claude_max_output_tokens",
        "Ask for a shorter answer, or set CLAUDE_CODE_MAX_OUTPUT_TOKENS in env.",
    ),
    # error of the last message
    "authentication_failed": _Rule(pb.FAILURE_KIND_AUTH_REQUIRED, "claude_auth_required", LOGIN_HINT),
    "oauth_org_not_allowed": _Rule(pb.FAILURE_KIND_AUTH_REQUIRED, "claude_auth_required", LOGIN_HINT),
    "billing_error": _Rule(pb.FAILURE_KIND_QUOTA_EXCEEDED, "claude_billing_error", "Pay, or use another account."),
    "model_not_found": _Rule(
        pb.FAILURE_KIND_MODEL_NOT_FOUND, "claude_model_not_found", "Choose another model, or another account."
    ),
    "rate_limit": _Rule(pb.FAILURE_KIND_RATE_LIMITED, "claude_rate_limited", WAIT),
    "overloaded": _Rule(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "claude_overloaded", WAIT),
    "server_error": _Rule(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "claude_server_error", WAIT),
}
_BY_STATUS: Final[Mapping[int, _Rule]] = {
    401: _BY_ERROR["authentication_failed"],
    402: _BY_ERROR["billing_error"],
    403: _BY_ERROR["authentication_failed"],
    404: _BY_ERROR["model_not_found"],
    408: _BY_ERROR["server_error"],
    413: _Rule(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "claude_request_too_large", SHORTER_PROMPT),
    429: _BY_ERROR["rate_limit"],
    529: _BY_ERROR["overloaded"],
}
_PRECISE: Final = frozenset({403, 413, 529})
"""Statuses that are more precise than the error's name."""
_API_ERROR: Final = _Rule(pb.FAILURE_KIND_INVALID_CONFIG, "claude_api_error", "The service refused the request.")
_STREAM_BROKE: Final = _Rule(
    pb.FAILURE_KIND_NETWORK,
    "claude_stream_broken",
    "See what between here and the service cuts streams.",
)
_LOST: Final = _Rule(pb.FAILURE_KIND_SESSION_LOST, "claude_session_lost", NEW_SESSION)

_BY_TEXT: Final[tuple[tuple[re.Pattern[str], _Rule], ...]] = (
    (
        re.compile(r"cannot be used with root/sudo privileges"),
        _Rule(
            pb.FAILURE_KIND_INVALID_CONFIG,
            "claude_bypass_as_root",
            "Do not set config.dangerouslySkipPermissions as root; permissions.auto_approve works as any user.",
        ),
    ),
    (
        re.compile(r"Session ID \S+ is already in use"),
        _Rule(pb.FAILURE_KIND_INVALID_CONFIG, "claude_session_in_use", "Give another session id."),
    ),
    (
        re.compile(r"(?m)^error: (?:unknown option|option .* is invalid|.*argument missing)|Invalid session ID"),
        _Rule(
            pb.FAILURE_KIND_INVALID_CONFIG,
            "claude_bad_option",
            "See config.extraArgs, or whether this version of Claude Code knows the option.",
        ),
    ),
    (
        re.compile(r"Invalid MCP configuration|Invalid settings|Error processing (?:settings|--settings)"),
        _Rule(pb.FAILURE_KIND_INVALID_CONFIG, "claude_bad_configuration", "Correct the configuration it names."),
    ),
)


class Wrong(Struct, frozen=True):
    """The errors in the frames before the result."""

    error: str = ""
    api_error: str = ""
    status: int | None = None
    cut: str = ""
    """What an answer was cut by, e.g. "context_window"."""
    text: str = ""
    resets_at: datetime | None = None
    refused: bool = False


def read_error(frame: Fields, before: Wrong) -> Wrong:
    """Handle an ``assistant`` frame that stands for an error of the model's service."""
    parameters = inner(frame, "api_error_params")
    return replace(
        before,
        error=text(frame, "error"),
        api_error=text(frame, "api_error"),
        status=count(frame, "api_error_status"),
        cut=text(parameters, "cut"),
        resets_at=unix_moment(inner(parameters, "rate_limit_info"), "resetsAt") or before.resets_at,
        refused=before.refused or text(inner(frame, "message"), "stop_reason") == "refusal",
    )


def terminal_of_result(result: Fields, wrong: Wrong, *, resumed: bool) -> Terminal:
    """Return how the run ended, by a ``result``; see ``failure_of_result``."""
    subtype = text(result, "subtype")
    if text(result, "terminal_reason").startswith("aborted_"):
        message = "Claude Code was interrupted, and not by this run."
        failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="claude_interrupted")
        return Terminal(succeeded=False, subtype=subtype, failure=failure, interrupted=True)
    refused = text(result, "stop_reason") == "refusal"
    if subtype == "success" and result.get("is_error") is not True and not refused:
        return Terminal(succeeded=True, subtype=subtype)
    failure = failure_of_result(result, wrong, resumed=resumed)
    return Terminal(succeeded=False, subtype=subtype, failure=failure)


def failure_of_result(result: Fields, wrong: Wrong, *, resumed: bool) -> FailureInfo:
    """Return the failure that an unsuccessful ``result`` reports.

    Args:
        result: the frame.
        wrong: what came before it.
        resumed: whether the run resumes a session; only then can it be lost.
    """
    errors = tuple(item for item in as_string_list(result.get("errors")) if not item.startswith(_NOISE))
    message = text(result, "result") or "\n".join(errors) or wrong.text
    status = count(result, "api_error_status") or wrong.status
    rule = _rule(result, wrong, status, message, resumed=resumed)
    if rule is None:
        known = classify_text(message)
        # It reports that it failed, and not why.
        kind = known.kind if known else pb.FAILURE_KIND_NO_RESULT
        subtype = text(result, "subtype").removeprefix("error_") or "failed"
        rule = _Rule(kind, f"claude_{'error' if subtype == 'success' else subtype}", "")
    return _failure(rule, message, errors, status, wrong)


def _rule(result: Fields, wrong: Wrong, status: int | None, message: str, *, resumed: bool) -> _Rule | None:
    reason = text(result, "terminal_reason")
    if resumed and not reason and unknown_session(message):
        return _LOST
    bound = _BY_TERMINAL_REASON.get(reason) or _BY_SUBTYPE.get(text(result, "subtype"))
    if bound is not None:
        return bound
    if text(result, "stop_reason") == "refusal" or wrong.refused:
        return _REFUSED
    api_error = text(result, "api_error") or wrong.api_error
    if api_error == "max_output_tokens" and wrong.cut == "context_window":
        return _CONTEXT_FULL
    by_status = _BY_STATUS.get(status) if status is not None else None
    found = (
        _BY_ERROR.get(api_error)
        or (by_status if status in _PRECISE else None)
        or _BY_ERROR.get(wrong.error)
        or by_status
    )
    if found is not None or reason != "api_error":
        return found
    if status is not None:
        return _BY_ERROR["server_error"] if status >= 500 else _API_ERROR
    return _STREAM_BROKE if wrong.error == "unknown" else _API_ERROR


def failure_of_text(output: str, *, resumed: bool) -> FailureInfo | None:
    """Return why a run ended before its session began, by what it printed; None for an unknown text."""
    message = output.strip()
    if not message:
        return None
    if resumed and unknown_session(message):
        return _failure(_LOST, message, (), None, Wrong())
    for pattern, rule in _BY_TEXT:
        found = pattern.search(message)
        if found is not None:
            start = message.rfind("\n", 0, found.start()) + 1
            return _failure(rule, message[start:].split("\n", 1)[0], (), None, Wrong())
    return None


def retry_cause(error: str, status: int | None) -> Kind:
    """Return why Claude Code calls its model again."""
    rule = (_BY_STATUS.get(status) if status is not None else None) or _BY_ERROR.get(error)
    if rule is not None:
        return rule.kind
    if status is not None and status >= 500:
        return pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE
    return pb.FAILURE_KIND_NETWORK if status is None else pb.FAILURE_KIND_UNSPECIFIED


def _failure(rule: _Rule, message: str, errors: tuple[str, ...], status: int | None, wrong: Wrong) -> FailureInfo:
    waits = rule.kind in {pb.FAILURE_KIND_QUOTA_EXCEEDED, pb.FAILURE_KIND_RATE_LIMITED}
    known = classify_text(message) if rule.kind == pb.FAILURE_KIND_AUTH_REQUIRED else None
    return FailureInfo(
        kind=rule.kind,
        message=sentence(_AGENT, message, rule.message),
        code=rule.code,
        errors=errors or ((message,) if message else ()),
        retry_not_before=wrong.resets_at if waits else None,
        login_url=known.login_url if known else "",
        http_status=status if status is not None and 100 <= status <= 599 else None,
    )
