"""What the pi adapter is, and how pi is run."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import ClassVar, Final

from dragoman.adapters.pi.parse import KINDS, PiParser
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    CommandLineAdapter,
    Evidence,
    FailureInfo,
    Job,
    Parser,
    Plan,
    Settings,
    as_string,
    capabilities,
    classify_text,
    failure_from_hint,
    is_uuid,
    rules,
    shipped_documents,
    unknown_session,
)
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_READING: Final = {pb.TOOL_KIND_READ, pb.TOOL_KIND_SEARCH}
_SYSTEM: Final = "system.md"


class PiAdapter(CommandLineAdapter):
    """Runs pi."""

    executables: ClassVar[tuple[str, ...]] = ("pi",)
    native_protocol: ClassVar[str] = "pi-json"
    config_dir_name: ClassVar[str] = ".pi/agent"
    config_dir_variable: ClassVar[str] = "PI_CODING_AGENT_DIR"
    skills_dir_name: ClassVar[str] = "skills"
    skill_layout: ClassVar[str] = "{name}"
    inherit: ClassVar[tuple[str, ...]] = (
        *("ANTHROPIC_API_KEY", "ANTHROPIC_OAUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"),
        *("PI_CODING_AGENT_DIR", "PI_OFFLINE", "PI_TELEMETRY"),
    )
    api_key_variables: ClassVar[tuple[str, ...]] = inherit[:5]
    install_hint: ClassVar[str] = "Install it with `npm install -g @mariozechner/pi-coding-agent@0.73.1`."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        made = capabilities(
            *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN, pb.FEATURE_MODEL_CHOICE),
            *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START, pb.FEATURE_PER_CALL_USAGE),
            *(pb.FEATURE_COST, pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK),
            *(pb.FEATURE_SKILLS, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT),
            resume=pb.RESUME_STYLE_CAPTURE,
            permission_mode=pb.PERMISSION_MODE_STRICT,  # by withholding tools: pi never asks
            notes={pb.FEATURE_COST: "by the prices in pi's list of models"},
        )
        return AdapterInfo(
            type="pi",
            label="pi",
            version="1.0.0",
            aliases=("pi_local",),
            **shipped_documents(__package__),
            capabilities=made,
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run pi: the prompt goes in by standard input, everything comes out as lines of JSON."""
        withheld = [name for name, kind in KINDS.items() if not may_use(job.permissions, name, kind)]
        notices = []
        if withheld:
            message = f"pi asks nobody: these tools are withheld, as not all of their use is allowed: {withheld}."
            notices.append(("tools_withheld", message.replace("'", "")))
        parts = [job.system_prompt, job.instructions.with_directive() if job.instructions is not None else ""]
        system = "\n\n".join(part for part in parts if part).encode()
        return Plan(
            argv=(job.executable, *_arguments(job, withheld, has_system=bool(system)), *job.settings.extra_args),
            stdin=f" {job.prompt}".encode() if job.prompt.startswith("/") else job.prompt.encode(),
            env={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},  # no updates while runs use it
            files={_SYSTEM: system} if system else {},
            notices=tuple(notices),
        )

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        del job
        return PiParser()

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what its own words mean: ``errorMessage`` of the last message, or a line on standard error."""
        terminal = evidence.report.terminal
        said = terminal.failure.message if terminal and terminal.failure else evidence.stderr_tail
        if evidence.resumed and unknown_session(said):
            return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, "pi knows no such session.", "pi_session", (said,))
        hint = classify_text(said, datetime.now(UTC))
        if hint is None:
            return None
        found = failure_from_hint(hint, code="pi_error")
        return FailureInfo(
            found.kind, found.message, "pi_error", (said,), found.retry_not_before, http_status=found.http_status
        )

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a whole UUID; pi would take a part of one, or a path."""
        return is_uuid(text, lower_case=True)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what pi would pass over, or end in silence after: it has no modes, and asks no model about blanks."""
        yield from rules.blank_prompt(request)
        yield from rules.native_mode(settings.permissions, ())


def _arguments(job: Job, withheld: list[str], *, has_system: bool) -> Iterator[str]:
    yield from ("--mode", "json", "--print")
    if job.session.resumes:
        is_fork = job.session.disposition == pb.SESSION_DISPOSITION_FORK
        yield from ("--fork" if is_fork else "--session", job.session.native_id)
    for option, value in {
        "--provider": as_string(job.config.get("provider"), ""),
        "--model": job.settings.model,
        "--thinking": as_string(job.config.get("effort"), ""),
        "--append-system-prompt": str(job.run_dir / _SYSTEM) if has_system else "",
    }.items():
        if value:
            yield from (option, value)
    if withheld:
        offered = ",".join(name for name in KINDS if name not in withheld)
        yield from ("--tools", offered) if offered else ("--no-tools",)
    for skill in job.skills:
        yield from ("--skill", str(job.skills_dir / skill.name if job.skills_dir else ""))


def may_use(permissions: pb.Permissions, name: str, kind: pb.ToolKind.ValueType) -> bool:
    """Tell whether a tool may be offered: pi has it wholly or not at all, so a rule about a part of it gives none."""
    decision = permissions.default_decision
    for rule in () if permissions.auto_approve else permissions.rules:
        is_narrow = bool(rule.path_glob or rule.command_prefix or rule.host)
        is_about = rule.tool_kind in {0, kind} and rule.tool_name in {"", name}
        if is_about and not (is_narrow and rule.decision == pb.PERMISSION_DECISION_ALLOW):
            decision = rule.decision
            break
    if permissions.auto_approve or decision == pb.PERMISSION_DECISION_ALLOW:
        return True
    return kind in _READING and decision != pb.PERMISSION_DECISION_DENY
