"""Errors for people and programs: what went wrong, where, and what to do. And their exit codes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from dragoman.cli._summary import EXIT_FAILED, EXIT_USAGE
from dragoman.cli._text import neutral, one_line, seconds
from dragoman.protocol.errors import DragomanError, Reason

_CALLERS_FAULT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)
_HINTS: Mapping[Reason, str] = {
    Reason.ADAPTER_NOT_FOUND: "'dragoman adapters' lists the adapters there are",
    Reason.ADAPTER_REQUIRED: "name an adapter; 'dragoman adapters' lists them",
    Reason.ADAPTER_UNAVAILABLE: "'dragoman adapters' says why; try again later",
    Reason.ADAPTER_REFUSED: "'dragoman adapters' says why",
    Reason.RUN_NOT_FOUND: "'dragoman runs' lists those that are known",
    Reason.REQUEST_NOT_FOUND: "'dragoman attach' shows the requests that still wait",
    Reason.RUN_ID_REUSED: "choose another --run-id, or leave it out",
    Reason.SESSION_NOT_FOUND: "'dragoman sessions' lists those that are stored",
    Reason.SESSION_BUSY: "wait for that run, or cancel it",
    Reason.NOT_SUPPORTED: "leave it out, or use an adapter that supports it",
    Reason.RUN_LOG_UNAVAILABLE: "see the router's log and its disk or database; try again later",
    Reason.DRAINING: "start it again, or name another by --router",
    Reason.TOO_MANY_RUNS: "try again once another run is over, or wait for a place with --queue",
    Reason.BREAKER_OPEN: "mend the login or the key, or give --ignore-breaker to try all the same",
    Reason.CAPABILITY_MISSING: "choose another adapter",
    Reason.INTERNAL: "its log says more; please report it",
}
_FALLBACK_HINT = "--fallback-config ADAPTER.KEY=VALUE says what an adapter gets; ADAPTER={} is no settings"
_NEAR_KEY = "did_you_mean"


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error, told for people and programs alike. All texts may come from the other side."""

    what: str
    where: list[tuple[str, str]] = field(default_factory=list)
    """Wrong fields: path and what would be right."""
    near: list[str] = field(default_factory=list)
    """Names that may have been meant."""
    failure: str = ""
    """What the failure said for which a run is kept away."""
    login_url: str = ""
    """Where to log in."""
    candidates: list[str] = field(default_factory=list)
    """Adapters that could take over."""
    hint: str = ""
    reason: str = ""
    status: str = ""
    retry_after_s: float | None = None
    exit_code: int = EXIT_FAILED


def complaint(error: DragomanError, *, address: str = "") -> Complaint:
    """Return what to say about ``error``.

    Args:
        error: what a call raised.
        address: where the call went, for an error that nobody answers there.
    """
    what, hint = error.message, _HINTS.get(error.reason, "") if error.reason is not None else ""
    broken = error.metadata.get("run_id") if error.reason is None else None
    if broken:
        hint = f"once a router answers there again, 'dragoman attach {broken}' goes on with it, if there is the run"
    elif is_nobody_there(error) and address:
        what = f"nothing answers at {address}"
        hint = "start a router with 'dragoman serve --listen ADDR', or correct --router"
    elif error.reason is None and error.code is grpc.StatusCode.UNIMPLEMENTED:
        what = "what answers there does not serve this"
        hint = "it may be an adapter instead of a router, or older"
    elif any(violation.path.startswith("fallback.configs.") for violation in error.violations):
        hint = _FALLBACK_HINT
    return Complaint(
        what=what,
        where=[(violation.path, violation.description) for violation in error.violations],
        near=_names(error.metadata, _NEAR_KEY),
        failure=error.metadata.get("failure_message", ""),
        login_url=error.metadata.get("login_url", ""),
        candidates=_names(error.metadata, "candidates"),
        hint=hint,
        reason=error.reason.value if error.reason else "",
        status=error.code.name,
        retry_after_s=error.retry_after_s,
        exit_code=EXIT_USAGE if error.code in _CALLERS_FAULT else EXIT_FAILED,
    )


def is_nobody_there(error: DragomanError) -> bool:
    """Tell whether a call failed as there is no connection."""
    return error.reason is None and error.code is grpc.StatusCode.UNAVAILABLE


def _names(metadata: Mapping[str, str], key: str) -> list[str]:
    return [name.strip() for name in metadata.get(key, "").split(",") if name.strip()]


def as_text(told: Complaint) -> str:
    """Return a complaint for people, one fact per line, ending in a newline."""
    lines = [f"error: {neutral(told.what)}"]
    for path, description in told.where:
        if f"{path}: {description}" != told.what:
            lines.append(f"  {one_line(path)}: {one_line(description, 600)}")
    if told.near and "did you mean" not in told.what:
        lines.append(f"  did you mean {' or '.join(one_line(name) for name in told.near)}?")
    if told.failure:
        lines.append(f"  it failed with: {one_line(told.failure, 600)}")
    if told.login_url:
        lines.append(f"  log in at {one_line(told.login_url, 600)}")
    if told.candidates:
        lines.append(f"  could take over: {', '.join(one_line(name, 60) for name in told.candidates[:8])}")
    if told.retry_after_s is not None:
        lines.append(f"  try again in {seconds(told.retry_after_s)}")
    if told.hint:
        lines.append(f"  {told.hint}")
    return "\n".join(lines) + "\n"


def as_json(told: Complaint) -> str:
    """Return a complaint for programs: one line of JSON, ending in a newline."""
    facts = {"message": told.what, "reason": told.reason, "status": told.status, "near": told.near, "hint": told.hint}
    facts |= {"failure": told.failure, "loginUrl": told.login_url, "candidates": told.candidates}
    error: dict[str, Any] = {key: value for key, value in facts.items() if value}
    if told.where:
        error["fields"] = [{"path": path, "description": description} for path, description in told.where]
    if told.retry_after_s is not None:
        error["retryAfterS"] = told.retry_after_s
    return json.dumps({"error": error}) + "\n"
