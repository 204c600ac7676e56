"""From a job to Claude Code's command line. Pure.

The prompt is a line of JSON on standard input, which stays open for answers and for the interruption; the output is
lines of JSON.
"""

import signal
from collections.abc import Iterator
from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.system import TESTED_VERSION
from dragoman.sdk import CancelStep, Job, Plan
from dragoman.sdk.detection import version_of
from dragoman.sdk.fields import JsonValue, as_bool, as_int, as_number, as_string, as_string_list, compact
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

BASE: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--include-partial-messages", "--permission-prompt-tool", "stdio"),
)
ENVIRONMENT: Final = {
    # With background tasks there are several results, and the last may never come.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # A program must not change while runs use it.
    "DISABLE_AUTOUPDATER": "1",
}
STRICTEST_MODE: Final = "default"
"""Claude Code asks for everything that its user's settings do not allow."""
BYPASS_MODE: Final = "bypassPermissions"
SKIPS: Final = (
    "permissions_skipped",
    "Claude Code asks no questions in this run: permissions.rules and default_decision decide nothing.",
)
"""Code and text of the notice for a run in which nothing is asked."""

_INSTRUCTIONS: Final = "instructions.md"
_MCP_CONFIG: Final = "mcp.json"
_SNAPSHOT_SINCE: Final = (2, 1, 330)

CANCEL: Final = (
    # Answered in 0.2 s, with the usage of what was done so far.
    CancelStep(signal=None, write=control.interrupt("dragoman-stop"), share=0.15),
    # It mostly reports how far it came.
    CancelStep(signal=signal.SIGINT, share=0.15),
    CancelStep(signal=signal.SIGTERM),
)


def plan_run(job: Job) -> Plan:
    """Return how to run Claude Code for a job."""
    notes: list[str] = []
    argv = [job.executable, *BASE, *_session(job, notes), *_permissions(job), *_model(job), *_directories(job)]
    files: dict[str, bytes] = {}
    if job.standing_text:
        files[_INSTRUCTIONS] = job.standing_text.encode()
        argv += ["--append-system-prompt-file", str(job.run_dir / _INSTRUCTIONS)]
    if job.request.mcp_servers:
        files[_MCP_CONFIG] = compact(_mcp_config(job.request)).encode()
        argv += ["--mcp-config", str(job.run_dir / _MCP_CONFIG), "--strict-mcp-config"]
    argv += job.settings.extra_args
    return Plan(
        argv=tuple(argv),
        stdin=control.user_message(_prompt(job, notes), images=job.images),
        keep_stdin_open=True,
        env=ENVIRONMENT,
        files=files,
        notes=tuple(notes),
        notices=tuple(_notices(job)),
        cancel=CANCEL,
    )


def _session(job: Job, notes: list[str]) -> Iterator[str]:
    session = job.session
    if session.resumes:
        yield from ("--resume", session.native_id)
    if session.disposition == pb.SESSION_DISPOSITION_FORK:
        yield "--fork-session"
        notes.append(f"copies session {session.native_id} to {job.new_session_id}")
    if session.disposition != pb.SESSION_DISPOSITION_RESUME:
        yield from ("--session-id", job.new_session_id)
    else:
        notes.append(f"resumes session {session.native_id}")
    # Else a resumed session keeps the instructions of its first run, whatever this one is given.
    if not job.version or version_of(job.version) >= _SNAPSHOT_SINCE:
        yield from ("--system-prompt-snapshot", "off")


def _permissions(job: Job) -> Iterator[str]:
    if _skips_permissions(job):
        yield "--dangerously-skip-permissions"
    else:
        yield from ("--permission-mode", job.permissions.native_mode or STRICTEST_MODE)
    for key, option in (("allowedTools", "--allowedTools"), ("disallowedTools", "--disallowedTools")):
        tools = as_string_list(job.config.get(key))
        if tools:
            yield from (option, ",".join(tools))


def _skips_permissions(job: Job) -> bool:
    """Return whether nothing is asked, by a setting; a mode that the request or a change names wins over it."""
    return as_bool(job.config.get("dangerouslySkipPermissions"), False) and not job.permissions.native_mode


def _model(job: Job) -> Iterator[str]:
    if job.settings.model:
        yield from ("--model", job.settings.model)
    for key, option in (("fallbackModel", "--fallback-model"), ("effort", "--effort")):
        value = as_string(job.config.get(key), "")
        if value:
            yield from (option, value)
    turns = max_turns(job.config.get("maxTurnsPerRun"), job.settings.max_turns)
    if turns:
        yield from ("--max-turns", str(turns))
    budget = as_number(job.config.get("maxBudgetUsd"), 0)
    if budget > 0:
        yield from ("--max-budget-usd", f"{budget:.10g}")
    chrome = as_bool(job.config.get("chrome"), None)
    if chrome is not None:
        yield "--chrome" if chrome else "--no-chrome"
    if "settingSources" in job.config:
        yield from ("--setting-sources", ",".join(as_string_list(job.config.get("settingSources"))))


def max_turns(configured: JsonValue, common: int | None) -> int | None:
    """Return the turns that a run may take: ``maxTurnsPerRun``, or its other name ``maxTurns``. 0 is no limit."""
    return as_int(configured, None) or common


def _directories(job: Job) -> Iterator[str]:
    directories = [*job.settings.additional_directories, *as_string_list(job.config.get("addDirs"))]
    if job.skills_dir is not None:
        directories.append(str(job.skills_dir))
    for directory in dict.fromkeys(directories):
        yield from ("--add-dir", directory)


def _mcp_config(request: adapter_pb2.ExecuteRequest) -> JsonValue:
    return {"mcpServers": {server.name: _mcp_server(server) for server in request.mcp_servers}}


def _mcp_server(server: adapter_pb2.McpServer) -> JsonValue:
    if server.WhichOneof("transport") == "http":
        return {"type": "http", "url": server.http.url, "headers": dict(server.http.headers)}
    return {
        "type": "stdio",
        "command": server.stdio.command,
        "args": list(server.stdio.args),
        "env": dict(server.stdio.env),
    }


def _prompt(job: Job, notes: list[str]) -> str:
    """Return the prompt; one that begins with a slash gets a blank before it, lest it run as a local command."""
    if not job.prompt.startswith("/") or as_bool(job.config.get("allowSlashCommands"), False):
        return job.prompt
    notes.append("a blank is put before the prompt, so that it is no slash command; see config.allowSlashCommands")
    return f" {job.prompt}"


def _notices(job: Job) -> Iterator[tuple[str, str]]:
    if _skips_permissions(job) or job.permissions.native_mode == BYPASS_MODE:
        yield SKIPS
    if job.version and job.version != TESTED_VERSION and version_of(job.version) < _SNAPSHOT_SINCE:
        yield (
            "version_old",
            f"Claude Code {job.version} is older than {TESTED_VERSION}: a resumed session may keep old instructions.",
        )
