"""From a job to Codex's command line and its requests. Pure.

The app server gets everything over standard input: no prompt, no instruction and no secret is in its arguments, and
the user's ``config.toml`` stays as it is.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dragoman.sdk import Job, Plan
from dragoman.sdk.fields import JsonValue, as_bool, as_object, as_string
from dragoman.sdk.jsonrpc import Peer
from dragoman.sdk.run import INTERRUPT, AttachedFile
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

SKILLS_DIR: Final = ".agents/skills"
"""Where Codex looks for a workspace's skills; those of a run lie likewise in a directory of their own."""
INITIALIZE: Final = "initialize"
BYPASS: Final = "dangerouslyBypassApprovalsAndSandbox"
DIGEST_KEY: Final = "codexInstructions"
"""The session's parameter with the digest of the instructions that its thread was last given."""
TOTALS_KEY: Final = "codexTokens"
"""The session's parameter with the tokens that its thread took so far."""

_READ_ONLY: Final = "read-only"
_FULL_ACCESS: Final = "danger-full-access"


def hello(peer: Peer[str], version: str) -> bytes:
    """Return the first request to the app server. The parser expects the answer to it."""
    info = {"name": "dragoman", "title": "Dragoman", "version": version}
    capabilities = {"experimentalApi": True}  # for turn/settings/update
    return peer.request(INITIALIZE, {"clientInfo": info, "capabilities": capabilities}, INITIALIZE)


def plan_run(job: Job, version: str) -> Plan:
    """Return how to run Codex for a job."""
    return Plan(
        argv=(job.executable, "app-server", *job.settings.extra_args),
        stdin=hello(Peer[str](says_version=False), version),
        keep_stdin_open=True,
        notes=tuple(_notes(job)),
        notices=tuple(_notices(job)),
        cancel=INTERRUPT,
    )


def access(job: Job) -> tuple[str, str]:
    """Return approval policy and sandbox, so that the run's permissions decide.

    By default Codex reads by itself and asks for everything else; what is allowed then runs without a sandbox.
    Where a rule denies something it asks before reading too, as far as it knows how.
    """
    if as_bool(job.config.get(BYPASS), False):
        return "never", _FULL_ACCESS
    permissions = job.permissions
    denies = permissions.default_decision == pb.PERMISSION_DECISION_DENY or any(
        rule.decision == pb.PERMISSION_DECISION_DENY for rule in permissions.rules
    )
    default = _FULL_ACCESS if permissions.auto_approve else _READ_ONLY
    approval = "untrusted" if denies else "on-request"
    return permissions.native_mode or approval, as_string(job.config.get("sandbox"), default)


def digest(instructions: str) -> str:
    """Return a digest of instructions; empty if there are none."""
    return hashlib.sha256(instructions.encode()).hexdigest()[:32] if instructions else ""


def session_param(job: Job, key: str) -> str:
    """Return a parameter of the session that is resumed; empty if there is none."""
    params = job.request.session.handle.params.fields
    return params[key].string_value if key in params else ""


def thread_params(job: Job) -> dict[str, JsonValue]:
    """Return the parameters that ``thread/start``, ``thread/resume`` and ``thread/fork`` share.

    The sandbox is always the strictest one here, and widened by the turn: for a thread that begins with a wider one,
    Codex writes into the user's ``config.toml`` that it trusts the directory, with the hooks that it may bring.
    """
    approval, _ = access(job)
    config: dict[str, JsonValue] = dict(overrides(job))
    params: dict[str, JsonValue] = {
        "cwd": job.settings.cwd,
        "approvalPolicy": approval,
        "approvalsReviewer": "user",  # not a model, as its user may have set: the run's policy or its caller decides
        "sandbox": _READ_ONLY,
        "config": config,
    }
    if job.settings.model:
        params["model"] = job.settings.model
    if job.standing_text:
        params["developerInstructions"] = job.standing_text
    return params


def overrides(job: Job) -> Iterator[tuple[str, JsonValue]]:
    """Yield settings that hold for this run in place of those in ``config.toml``, by dotted path."""
    # A service that refuses connections would be tried for ever.
    yield "features.unbounded_connection_retries", False
    # Else it takes no other model within a turn. Both features are new in Codex, which would warn in each run.
    yield "features.step_model_switching", True
    yield "suppress_unstable_features_warning", True
    search = as_bool(job.config.get("search"), None)
    if search is not None:
        yield "web_search", "live" if search else "disabled"
    if job.interactive:
        # Else the model can ask its user only in plan mode.
        yield "features.default_mode_request_user_input", True
    if job.request.mcp_servers:
        # Else it waits a second for them, and begins without the tools of those that take longer. Each has a limit.
        yield "mcp_optional_startup_grace_ms", 0
    for server in job.request.mcp_servers:
        yield f"mcp_servers.{server.name}", _mcp_server(server)


def _mcp_server(server: adapter_pb2.McpServer) -> JsonValue:
    if server.WhichOneof("transport") == "http":
        return {"url": server.http.url, "http_headers": dict(server.http.headers)}
    stdio = server.stdio
    return {"command": stdio.command, "args": list(stdio.args), "env": dict(stdio.env)}


def input_items(prompt: str, images: Sequence[AttachedFile]) -> list[JsonValue]:
    """Return what goes to the model: a text and the images with it."""
    items: list[JsonValue] = [{"type": "text", "text": prompt}]
    items.extend({"type": "localImage", "path": str(image.path)} for image in images)
    return items


def turn_params(job: Job, thread_id: str) -> dict[str, JsonValue]:
    """Return the parameters of ``turn/start``."""
    params: dict[str, JsonValue] = {"threadId": thread_id, "input": input_items(job.prompt, job.images)}
    sandbox = sandbox_policy(job)
    if sandbox is not None:
        params["sandboxPolicy"] = sandbox
    effort = effort_of(job.config)
    if effort:
        params["effort"] = effort
    summary = as_string(job.config.get("reasoningSummary"), "")
    if summary:
        params["summary"] = summary
    schema = as_object(job.config.get("outputSchema"), None)
    if schema is not None:
        params["outputSchema"] = schema
    return params


def sandbox_policy(job: Job) -> JsonValue:
    """Return the sandbox of the turn; None for the thread's own, which writes nothing."""
    _, sandbox = access(job)
    if sandbox == _READ_ONLY:
        return None
    if sandbox == _FULL_ACCESS:
        return {"type": "dangerFullAccess"}
    return {
        "type": "workspaceWrite",
        "writableRoots": list(job.settings.additional_directories),
        "networkAccess": as_bool(job.config.get("networkAccess"), False),
        "excludeTmpdirEnvVar": False,
        "excludeSlashTmp": False,
    }


def effort_of(config: Mapping[str, JsonValue]) -> str:
    """Return how much the model is to think; empty without a setting."""
    return as_string(config.get("modelReasoningEffort"), "") or as_string(config.get("effort"), "")


def _notes(job: Job) -> Iterator[str]:
    session = job.session
    if session.disposition == pb.SESSION_DISPOSITION_FORK:
        yield f"copies thread {session.native_id}"
    elif session.resumes:
        yield f"resumes thread {session.native_id}"
    approval, sandbox = access(job)
    yield f"approval policy {approval}, sandbox {sandbox}"


def _notices(job: Job) -> Iterator[tuple[str, str]]:
    if as_bool(job.config.get(BYPASS), False):
        message = "Codex asks no questions and has no sandbox: the request's permissions decide nothing."
        yield "approvals_bypassed", message
