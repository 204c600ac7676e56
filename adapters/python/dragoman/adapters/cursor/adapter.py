"""What the Cursor adapter is, and how Cursor's agent is run.

From cursor.com/docs/cli (parameters, output format, headless, permissions, authentication). The program is not to be
had from a package registry: nothing of this was tried on the real one.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import ClassVar, Final

from dragoman.adapters.cursor.parse import CursorParser
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    CommandLineAdapter,
    Evidence,
    FailureInfo,
    Job,
    Model,
    Parser,
    Plan,
    Settings,
    SkillStrategy,
    as_string,
    capabilities,
    classify_text,
    failure_from_hint,
    probe,
    rules,
    shipped_documents,
    unknown_session,
)
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

LOGIN_HINT: Final = "Run `cursor-agent login` as the adapter's user, or set CURSOR_API_KEY in env."
BASE: Final = ("--print", "--output-format", "stream-json", "--stream-partial-output", "--trust")
_MODES: Final = ("plan", "ask")
_STATUS_LIMIT_S: Final = 6.0
_FROM_DOCUMENTATION: Final = "from its documentation; not seen on the real program"


class CursorAdapter(CommandLineAdapter):
    """Runs Cursor's agent."""

    executables: ClassVar[tuple[str, ...]] = ("cursor-agent",)
    skill_strategy: ClassVar[SkillStrategy | None] = SkillStrategy.WORKSPACE
    skill_layout: ClassVar[str] = ".cursor/skills/{name}"
    native_protocol: ClassVar[str] = "cursor-stream-json"
    inherit: ClassVar[Collection[str]] = ("CURSOR_API_KEY", "CURSOR_CONFIG_DIR")
    config_dir_name: ClassVar[str] = ".cursor"
    config_dir_variable: ClassVar[str] = "CURSOR_CONFIG_DIR"
    api_key_variables: ClassVar[tuple[str, ...]] = ("CURSOR_API_KEY",)
    login_hint: ClassVar[str] = LOGIN_HINT
    install_hint: ClassVar[str] = "Install it as https://cursor.com/docs/cli/installation says."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="cursor",
            label="Cursor",
            version="1.0.0",
            aliases=("cursor_local", "cursor-agent", "cursor_agent"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
            models=(Model("auto", "Cursor's choice", is_default=True),),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run Cursor: the prompt goes in by standard input, lines of JSON come out."""
        notices = []
        if not allows_everything(job.permissions):
            message = "Cursor asks nobody where it prints: not allowed everything, it only proposes what it would do."
            notices.append(("tools_withheld", message))
        parts = [job.system_prompt, job.instructions.with_directive() if job.instructions is not None else ""]
        return Plan(
            argv=(job.executable, *BASE, *_arguments(job), *job.settings.extra_args),
            stdin="\n\n".join([*filter(None, parts), job.prompt]).encode(),
            notes=(f"resumes session {job.session.native_id}",) if job.session.resumes else (),
            notices=tuple(notices),
        )

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        del job
        return CursorParser()

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what its words mean: of a failure it writes them to standard error, and no last frame."""
        terminal = evidence.report.terminal
        said = terminal.failure.message if terminal and terminal.failure else evidence.stderr_tail.strip()
        if evidence.resumed and unknown_session(said):
            return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, "Cursor knows no such chat.", "cursor_session", (said,))
        hint = classify_text(said, datetime.now(UTC))
        if hint is None or hint.kind == "SESSION_LOST":
            return None
        found = failure_from_hint(hint)
        advice = f" {LOGIN_HINT}" if found.kind == pb.FAILURE_KIND_AUTH_REQUIRED else ""
        return FailureInfo(
            found.kind,
            f"Cursor: {found.message}{advice}",
            f"cursor_{hint.kind.lower()}",
            (said,),
            found.retry_not_before,
            found.login_url,
            found.http_status,
        )

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what would reach Cursor as something else than it is."""
        yield from rules.blank_prompt(request)
        yield from rules.native_mode(settings.permissions, _MODES)
        yield from rules.read_as_options({"model": settings.model})

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether Cursor is logged in."""
        if env.get("CURSOR_API_KEY"):
            return AuthFinding(adapter_pb2.AUTH_STATE_OK, "api_key")
        answer = await probe([executable, "status"], env, _STATUS_LIMIT_S)
        said = f"{answer.stdout}\n{answer.stderr}".casefold()
        if "not logged in" in said or "not authenticated" in said:
            return AuthFinding(adapter_pb2.AUTH_STATE_MISSING)
        if "logged in" in said:
            return AuthFinding(adapter_pb2.AUTH_STATE_OK, "login", subscription=True)
        return AuthFinding(adapter_pb2.AUTH_STATE_UNKNOWN)


def allows_everything(permissions: pb.Permissions) -> bool:
    """Tell whether Cursor may do whatever it wants: it knows no less than that, and nothing."""
    if permissions.auto_approve:
        return True
    allow = pb.PERMISSION_DECISION_ALLOW
    return permissions.default_decision == allow and all(rule.decision == allow for rule in permissions.rules)


def _arguments(job: Job) -> Iterator[str]:
    if job.session.resumes:
        yield from ("--resume", job.session.native_id)
    for option, value in {
        "--workspace": job.settings.cwd,
        "--model": job.settings.model,
        "--mode": job.permissions.native_mode,
        "--sandbox": as_string(job.config.get("sandbox"), ""),
    }.items():
        if value:
            yield from (option, value)
    if allows_everything(job.permissions):
        yield "--force"


def _capabilities() -> pb.Capabilities:
    features = (
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN, pb.FEATURE_MODEL_CHOICE),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_TOOL_START, pb.FEATURE_RESUME),
        *(pb.FEATURE_SKILLS, pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT),
    )
    notes = dict.fromkeys(features, _FROM_DOCUMENTATION)
    for feature in (pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT):
        notes[feature] = f"put before the prompt; {_FROM_DOCUMENTATION}"
    return capabilities(
        *features,
        resume=pb.RESUME_STYLE_CAPTURE,
        permission_mode=pb.PERMISSION_MODE_STRICT,  # by not allowing it to act at all: it never asks
        notes=notes,
    )
