"""From a job to Gemini CLI's command line, and to the settings of its run. Pure.

It has two transports. Over the Agent Client Protocol it asks before it writes or runs anything, and shows its
thoughts. Its JSON lines have the output of commands and tokens from caches, but no questions: tools that are not
allowed from the start are not offered to its model. ``transport`` chooses; the default is JSON lines if everything is
allowed.
"""

from collections.abc import Mapping
from typing import Final, Literal

from dragoman.sdk import Job, Plan
from dragoman.sdk.fields import JsonValue, as_bool, as_int, as_string, compact
from dragoman.v1 import adapter_pb2

ENVIRONMENT: Final = {
    # With two processes, the second would not get the signals of the first.
    "GEMINI_CLI_NO_RELAUNCH": "true",
    # It would ask whether it may trust the workspace, and does not start without an answer.
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
"""Its approval modes, in both of its spellings, and their names on the command line."""

Transport = Literal["acp", "stream-json"]
_NOT_A_COMMAND: Final = "\u200b"
"""Put before a prompt that would run as a command; blanks before it would be removed."""


def transport(job: Job) -> Transport:
    """Return the transport of a run: as configured, else by the run's permissions, prompt and images."""
    chosen = as_string(job.config.get("transport"), "auto")
    if chosen == "acp":
        return "acp"
    if chosen == "stream-json":
        return "stream-json"
    permissions = job.permissions
    mode = MODES.get(permissions.native_mode, "")
    decides_itself = (permissions.auto_approve and not permissions.rules) or mode == "yolo"
    # With JSON lines, an @ would include files, and there are no images.
    return "stream-json" if decides_itself and "@" not in job.prompt and not job.images else "acp"


def arguments(job: Job) -> list[str]:
    """Return the arguments that both transports share."""
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
        notices.append(("tools_withheld", "JSON lines have no questions: only reading tools are offered."))
    session = job.session
    argv += ["--resume", session.native_id] if session.resumes else ["--session-id", job.new_session_id]
    return Plan(
        argv=(*argv, *job.settings.extra_args),
        stdin=plain_prompt(job, "stream-json").encode(),
        env=ENVIRONMENT,
        files={SETTINGS_FILE: compact(run_settings(job, "stream-json")).encode(), **instruction_files(job)},
        notes=session.notes,
        notices=tuple(notices),
    )


def plain_prompt(job: Job, transport: Transport) -> str:
    """Return the prompt so that it reaches the model as text, unless commands are allowed."""
    prompt = job.prompt
    if as_bool(job.config.get("allowSlashCommands"), False):
        return prompt
    if prompt.lstrip()[:1] in {"/", "$"}:
        prompt = f"{_NOT_A_COMMAND}{prompt}"
    if transport == "stream-json":
        prompt = prompt.replace("@", "\\@")
    return prompt


def instruction_files(job: Job) -> dict[str, bytes]:
    """Return the context file with the run's instructions; none without instructions."""
    return {INSTRUCTIONS_FILE: job.standing_text.encode()} if job.standing_text else {}


def run_settings(job: Job, transport: Transport) -> dict[str, JsonValue]:
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
    if transport == "stream-json" and job.request.mcp_servers:
        settings["mcpServers"] = {server.name: _mcp_server(server) for server in job.request.mcp_servers}
    return settings


def _auth_type(job: Job) -> str:
    """Return the configured login method, else that of the run's variables; empty if there is none."""
    return as_string(job.config.get("authType"), "") or auth_type_of(job.requested_env)


def auth_type_of(variables: Mapping[str, str]) -> str:
    """Return the login method of variables, as Gemini CLI names it; empty if there is none."""
    if variables.get("GOOGLE_GENAI_USE_GCA") == "true":
        return "oauth-personal"
    if variables.get("GOOGLE_GENAI_USE_VERTEXAI") == "true":
        return "vertex-ai"
    return "gemini-api-key" if variables.get("GEMINI_API_KEY") else ""


def _mcp_server(server: adapter_pb2.McpServer) -> JsonValue:
    if server.WhichOneof("transport") == "http":
        return {"httpUrl": server.http.url, "headers": dict(server.http.headers)}
    return {"command": server.stdio.command, "args": list(server.stdio.args), "env": dict(server.stdio.env)}
