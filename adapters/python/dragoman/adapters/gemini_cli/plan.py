"""From a job to Gemini CLI's command line, and to the settings of its run. Pure.

Two ways lead to it. Over the Agent Client Protocol it asks before it writes or runs anything, and tells its thoughts;
its JSON lines tell what commands print and what caches served, but there it cannot ask: what is not allowed from the
start is not even offered to its model. ``transport`` chooses; by itself, JSON lines where everything is allowed.
"""

from collections.abc import Mapping
from typing import Final, Literal

from dragoman.sdk import Job, JsonValue, Plan, Settings, as_bool, as_int, as_string, compact
from dragoman.v1 import adapter_pb2

ENVIRONMENT: Final = {
    # As two processes it would not hear the signals of the first.
    "GEMINI_CLI_NO_RELAUNCH": "true",
    # Nobody is there to be asked whether the workspace is to be trusted; without, it does not start.
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
}
SETTINGS_FILE: Final = "settings.json"
INSTRUCTIONS_FILE: Final = "dragoman-instructions.md"
MODES: Final = {
    "default": "default",
    "auto_edit": "auto_edit",
    "autoEdit": "auto_edit",
    "yolo": "yolo",
    "plan": "plan",
}
"""Its approval modes, in both of its spellings, as the command line wants them."""

Transport = Literal["acp", "stream-json"]
_NOT_A_COMMAND: Final = "\u200b"
"""Put before a prompt that would run as a command of its own; it takes blanks away before it looks."""


def transport(settings: Settings, prompt: str) -> Transport:
    """Return how a run talks to Gemini CLI: as configured, else as the run's permissions and prompt want it."""
    chosen = as_string(settings.config.get("transport"), "auto")
    if chosen == "acp":
        return "acp"
    if chosen == "stream-json":
        return "stream-json"
    permissions = settings.permissions
    mode = MODES.get(permissions.native_mode, "")
    decides_itself = (permissions.auto_approve and not permissions.rules) or mode == "yolo"
    # In JSON lines, an @ would pull files in.
    return "stream-json" if decides_itself and "@" not in prompt else "acp"


def arguments(job: Job) -> list[str]:
    """Return what both ways have in common on the command line."""
    argv: list[str] = []
    if job.settings.model:
        argv += ["--model", job.settings.model]
    mode = MODES.get(job.permissions.native_mode, "")
    if mode:
        argv += ["--approval-mode", mode]
    for directory in job.settings.additional_directories:
        argv += ["--include-directories", directory]
    return argv


def plan_stream(job: Job) -> Plan:
    """Return how to run Gemini CLI for its JSON lines."""
    argv = [job.executable, "--output-format", "stream-json", *arguments(job)]
    notices: list[tuple[str, str]] = []
    if job.permissions.auto_approve and "--approval-mode" not in argv:
        argv += ["--approval-mode", "yolo"]
    elif "--approval-mode" not in argv:
        notices.append(("tools_withheld", "Over JSON lines nothing can be asked: only reading tools are offered."))
    session = job.session
    argv += ["--resume", session.native_id] if session.resumes else ["--session-id", job.new_session_id]
    return Plan(
        argv=(*argv, *job.settings.extra_args),
        stdin=plain_prompt(job, "stream-json").encode(),
        env=ENVIRONMENT,
        files={SETTINGS_FILE: compact(run_settings(job, "stream-json")).encode(), **instruction_files(job)},
        notes=(f"resumes session {session.native_id}",) if session.resumes else (),
        notices=tuple(notices),
    )


def plain_prompt(job: Job, way: Transport) -> str:
    """Return the prompt so that it reaches the model as text, unless its commands are wanted."""
    prompt = job.prompt
    if as_bool(job.config.get("allowSlashCommands"), False):
        return prompt
    if prompt.lstrip()[:1] in {"/", "$"}:
        prompt = f"{_NOT_A_COMMAND}{prompt}"
    if way == "stream-json":
        prompt = prompt.replace("@", "\\@")
    return prompt


def instruction_files(job: Job) -> dict[str, bytes]:
    """Return the context file with the run's instructions; none without instructions."""
    parts = [job.system_prompt, job.instructions.with_directive() if job.instructions is not None else ""]
    words = "\n\n".join(part for part in parts if part)
    return {INSTRUCTIONS_FILE: words.encode()} if words else {}


def run_settings(job: Job, way: Transport) -> dict[str, JsonValue]:
    """Return the settings of this run that win over the user's."""
    general: dict[str, JsonValue] = {"enableAutoUpdate": False, "enableAutoUpdateNotification": False}
    attempts = as_int(job.config.get("maxAttempts"), None)
    if attempts:
        general["maxAttempts"] = attempts
    settings: dict[str, JsonValue] = {"general": general}
    turns = as_int(job.config.get("maxTurnsPerRun"), None) or job.settings.max_turns
    if turns:
        settings["model"] = {"maxSessionTurns": turns}
    auth = _auth_type(job)
    if auth:
        settings["security"] = {"auth": {"selectedType": auth}}
    if way == "stream-json" and job.request.mcp_servers:
        settings["mcpServers"] = {server.name: _mcp_server(server) for server in job.request.mcp_servers}
    return settings


def _auth_type(job: Job) -> str:
    """Return the way to log in that was configured, or that the given variables mean; empty if neither says."""
    given = {**job.settings.config_env, **job.request.env}
    return as_string(job.config.get("authType"), "") or auth_type_of(given)


def auth_type_of(variables: Mapping[str, str]) -> str:
    """Return the way to log in that variables mean, in the agent's words; empty if they mean none."""
    if variables.get("GOOGLE_GENAI_USE_GCA") == "true":
        return "oauth-personal"
    if variables.get("GOOGLE_GENAI_USE_VERTEXAI") == "true":
        return "vertex-ai"
    return "gemini-api-key" if variables.get("GEMINI_API_KEY") else ""


def _mcp_server(server: adapter_pb2.McpServer) -> JsonValue:
    if server.WhichOneof("transport") == "http":
        return {"httpUrl": server.http.url, "headers": dict(server.http.headers)}
    return {"command": server.stdio.command, "args": list(server.stdio.args), "env": dict(server.stdio.env)}
