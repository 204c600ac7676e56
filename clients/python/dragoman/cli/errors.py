"""Errors for people and programs: what is wrong, where, and what to do; and their exit codes."""

import json
from collections.abc import Mapping
from typing import Any

import grpc
from dragoman.cli.display.text import one_line, sanitize, seconds
from dragoman.cli.error_report import ErrorReport
from dragoman.cli.exit_codes import EXIT_FAILED, EXIT_USAGE
from dragoman.protocol.errors import DragomanError, Reason

_USAGE_STATUSES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)
_HINTS: Mapping[Reason, str] = {
    Reason.ADAPTER_NOT_FOUND: "'dragoman adapters' lists the adapters",
    Reason.ADAPTER_REQUIRED: "name an adapter; 'dragoman adapters' lists them",
    Reason.ADAPTER_UNAVAILABLE: "its log shows the cause, as does a start by hand: 'dragoman adapter serve NAME "
    "--listen unix:/tmp/x'; of an adapter with a manifest, the manifest's command with DRAGOMAN_LISTEN=unix:/tmp/x",
    Reason.ADAPTER_REFUSED: "'dragoman adapters' shows the cause",
    Reason.ADAPTER_NOT_LAUNCHED: "'dragoman adapters' shows where each adapter comes from",
    Reason.RUN_NOT_FOUND: "'dragoman runs' lists the runs",
    Reason.REQUEST_NOT_FOUND: "'dragoman show RUN' lists the open requests",
    Reason.RUN_ID_REUSED: "choose another --run-id, or omit it",
    Reason.SESSION_NOT_FOUND: "'dragoman sessions' lists the stored sessions",
    Reason.AGENT_NOT_FOUND: "'dragoman agents' lists the stored agents, 'dragoman agents use' gives a task one",
    Reason.AGENT_EXISTS: "'dragoman agents update FILE' replaces it",
    Reason.VERSION_MISMATCH: "'dragoman agents show NAME' prints it as it is now",
    Reason.AGENT_INCOMPLETE: "'dragoman agents update FILE' replaces the agent; its secrets are files of --secrets",
    Reason.SESSION_BUSY: "wait for the run that uses the session, or cancel it",
    Reason.NOT_SUPPORTED: "omit it, or use an adapter that supports it",
    Reason.RUN_LOG_UNAVAILABLE: "check the router's log and its disk or database, then try again",
    Reason.DRAINING: "restart the router, or give another one with --router",
    Reason.MESSAGE_TOO_LARGE: "put what is large into a file of the workspace, and name the file in the prompt",
    Reason.TOO_MANY_RUNS: "try again when another run has ended, or wait for a slot with --queue",
    Reason.QUOTA_EXCEEDED: "end runs or streams of this caller, or ask the router's operator for a larger quota",
    Reason.BUDGET_SPENT: "wait until the budget resets, or ask the router's operator for a larger one",
    Reason.BREAKER_OPEN: "fix the login or the key, or run with --ignore-breaker",
    Reason.NOT_PERMITTED: "use a token with that scope; 'dragoman token create' makes one",
    Reason.POLICY_DENIED: "ask for less, or ask the router's operator to change the policy",
    Reason.CAPABILITY_MISSING: "choose another adapter",
    Reason.INTERNAL: "the log of the router or adapter has details; please report this",
}
_FALLBACK_HINT = """set them with --fallback-config '{"ADAPTER": {"KEY": VALUE}}'; {} is no settings"""
_NEAR_KEY = "did_you_mean"


def error_report(error: DragomanError, *, address: str = "", is_embedded: bool = False) -> ErrorReport:
    """Return the report of a failed call.

    Args:
        error: the error.
        address: the server's address, for reports that it is unreachable or knows no such adapter. With is_embedded:
            that of the user's router, which does not listen.
        is_embedded: the router of the command itself answered, as no other one runs.
    """
    what, hint = error.message, _HINTS.get(error.reason, "") if error.reason is not None else ""
    run_id = error.metadata.get("run_id") if error.reason is None else None
    if run_id:
        hint = f"when the router is back, 'dragoman attach {run_id}' follows the run, if it was started"
    elif is_unreachable(error) and address:
        what = f"no server is reachable at {address}"
        hint = "start a router with 'dragoman serve --listen ADDR', or correct the address"
    elif error.reason is Reason.ADAPTER_NOT_FOUND and address:
        hint = _unknown_at(address, is_embedded=is_embedded)
    elif error.reason is None and error.code is grpc.StatusCode.UNIMPLEMENTED:
        what = "the server does not implement this call"
        hint = "it may be an adapter and not a router, or an older version"
    elif any(violation.path.startswith("fallback.configs.") for violation in error.violations):
        hint = _FALLBACK_HINT
    elif not hint and any(violation.path.startswith("config.") for violation in error.violations):
        hint = "'dragoman describe ADAPTER' documents the settings"
    return ErrorReport(
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
        exit_code=EXIT_USAGE if error.code in _USAGE_STATUSES else EXIT_FAILED,
    )


def _unknown_at(address: str, *, is_embedded: bool) -> str:
    if is_embedded:
        return (
            f"no router listens at {one_line(address)}, so this command's own answered; "
            "what 'dragoman serve' is given, e.g. by --manifest, is known only there"
        )
    return f"the server at {one_line(address)} answered; 'dragoman adapters' lists its adapters"


def is_unreachable(error: DragomanError) -> bool:
    """Return whether a call failed because there is no connection."""
    return error.reason is None and error.code is grpc.StatusCode.UNAVAILABLE


def _names(metadata: Mapping[str, str], key: str) -> list[str]:
    return [name.strip() for name in metadata.get(key, "").split(",") if name.strip()]


def as_text(report: ErrorReport) -> str:
    """Return a report for people: one fact per line."""
    lines = [f"error: {sanitize(report.what)}"]
    for path, description in report.where:
        if f"{path}: {description}" != report.what:
            lines.append(f"  {one_line(path)}: {one_line(description, 600)}")
    if report.near and "did you mean" not in report.what:
        lines.append(f"  did you mean {' or '.join(one_line(name) for name in report.near)}?")
    if report.failure:
        lines.append(f"  last failure: {one_line(report.failure, 600)}")
    if report.login_url:
        lines.append(f"  log in at {one_line(report.login_url, 600)}")
    if report.candidates:
        lines.append(f"  available for fallback: {', '.join(one_line(name, 60) for name in report.candidates[:8])}")
    if report.retry_after_s is not None:
        lines.append(f"  try again in {seconds(report.retry_after_s)}")
    if report.hint:
        lines.append(f"  {report.hint}")
    return "\n".join(lines) + "\n"


def as_json(report: ErrorReport) -> str:
    """Return a report for programs: one line of JSON."""
    facts = {
        "message": report.what,
        "reason": report.reason,
        "status": report.status,
        "near": report.near,
        "hint": report.hint,
    }
    facts |= {"failure": report.failure, "loginUrl": report.login_url, "candidates": report.candidates}
    error: dict[str, Any] = {key: value for key, value in facts.items() if value}
    if report.where:
        error["fields"] = [{"path": path, "description": description} for path, description in report.where]
    if report.retry_after_s is not None:
        error["retryAfterS"] = report.retry_after_s
    return json.dumps({"error": error}) + "\n"
