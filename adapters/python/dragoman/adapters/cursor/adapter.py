"""What the Cursor adapter is, and how Cursor's agent is run.

From cursor.com/docs/cli (parameters, output format, headless, permissions, authentication). The program is not to be
had from a package registry: nothing of this was tried on the real one.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from dragoman.adapters.cursor.parse import CursorParser
from dragoman.sdk import CommandLineAdapter, Evidence, FailureInfo, Job, Parser, Plan, Report
from dragoman.sdk.detection import AuthFinding, Billing, probe
from dragoman.sdk.failures import classify_text, unknown_session
from dragoman.sdk.fields import as_string
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

BASE: Final = ("--print", "--output-format", "stream-json", "--stream-partial-output", "--trust")
_STATUS_LIMIT_S: Final = 6.0


class CursorAdapter(CommandLineAdapter):
    """Runs Cursor's agent."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run Cursor: the prompt goes in by standard input, lines of JSON come out."""
        notices = []
        if not allows_everything(job.permissions):
            message = "Cursor does not ask when it prints: unless everything is allowed, it only proposes changes."
            notices.append(("tools_withheld", message))
        return Plan(
            argv=(job.executable, *BASE, *_arguments(job), *job.settings.extra_args),
            stdin="\n\n".join(filter(None, [job.standing_text, job.prompt])).encode(),
            notes=job.session.notes,
            notices=tuple(notices),
        )

    def parser(self, job: Job) -> Parser:
        """Return the parser of its output."""
        return CursorParser(job.roots)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what its words mean: of a failure it writes them to standard error, and no last frame."""
        terminal = evidence.report.terminal
        message = terminal.failure.message if terminal and terminal.failure else evidence.stderr_tail.strip()
        if evidence.resumed and unknown_session(message):
            return FailureInfo(
                pb.FAILURE_KIND_SESSION_LOST, "Cursor knows no such chat.", "cursor_session", (message,)
            )
        found = classify_text(message)
        if found is None or found.kind == pb.FAILURE_KIND_SESSION_LOST:
            return None
        advice = f" {self.spec.login_hint}" if found.kind == pb.FAILURE_KIND_AUTH_REQUIRED else ""
        code = f"cursor_{pb.FailureKind.Name(found.kind).removeprefix('FAILURE_KIND_').lower()}"
        return replace(found, message=f"Cursor: {found.message}{advice}", code=code, errors=(message,))

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether Cursor is logged in."""
        if env.get("CURSOR_API_KEY"):
            return AuthFinding(adapter_pb2.AUTH_STATE_OK, "api_key")
        answer = await probe([executable, "status"], env, _STATUS_LIMIT_S)
        output = f"{answer.stdout}\n{answer.stderr}".casefold()
        if "not logged in" in output or "not authenticated" in output:
            return AuthFinding(adapter_pb2.AUTH_STATE_MISSING)
        if "logged in" in output:
            return AuthFinding(adapter_pb2.AUTH_STATE_OK, "login", subscription=True)
        return AuthFinding(adapter_pb2.AUTH_STATE_UNKNOWN)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how: without a key only a login is left; a key does not say what plan is behind it."""
        del report
        kind = pb.BILLING_TYPE_UNSPECIFIED if env.get("CURSOR_API_KEY") else pb.BILLING_TYPE_SUBSCRIPTION
        return Billing(kind, "cursor")


def allows_everything(permissions: pb.Permissions) -> bool:
    """Return whether Cursor may do anything: it knows only that and nothing."""
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
