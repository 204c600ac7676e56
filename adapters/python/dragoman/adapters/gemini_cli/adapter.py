"""What the Gemini CLI adapter is."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from dragoman.adapters.gemini_cli.acp import ACP_OPTIONS, GeminiAcpParser
from dragoman.adapters.gemini_cli.classify import failure_of_error, failure_of_exit, with_status
from dragoman.adapters.gemini_cli.home_overlay import CONFIG_DIR, make_home, protect_session, user_home
from dragoman.adapters.gemini_cli.login import find_billing, find_login, renewing_login, selected_model
from dragoman.adapters.gemini_cli.parse import StreamParser
from dragoman.adapters.gemini_cli.plan import (
    ENVIRONMENT,
    SETTINGS_FILE,
    arguments,
    instruction_files,
    plain_prompt,
    plan_stream,
    run_settings,
    transport,
)
from dragoman.adapters.gemini_cli.usage_file import better_usage, session_lines, stored_usage
from dragoman.protocol.errors import FieldViolation
from dragoman.protocol.images import is_image
from dragoman.sdk import Evidence, FailureInfo, Job, Parser, Plan, Report, Settings
from dragoman.sdk.acp import AcpAdapter, Conversation
from dragoman.sdk.detection import AuthFinding, Billing, Checks, RenewingLogin, SelectedModel
from dragoman.sdk.fields import JsonValue, as_string, compact
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace


class GeminiCliAdapter(AcpAdapter):
    """Runs Gemini CLI, with the transport that fits the run."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run Gemini CLI."""
        if transport(job) == "stream-json":
            return plan_stream(job)
        plan = super().plan(job)
        files = {SETTINGS_FILE: compact(run_settings(job, "acp")).encode(), **instruction_files(job)}
        return replace(plan, files=files)

    def acp_args(self, job: Job) -> Sequence[str]:
        """Return the arguments that make it speak the protocol."""
        return ("--acp", *arguments(job))

    def acp_env(self, job: Job) -> Mapping[str, str]:
        """Return its own variables."""
        del job
        return ENVIRONMENT

    def acp_conversation(self, job: Job) -> Conversation:
        """Return the requests of a run; directories and instructions are in its arguments and files."""
        conversation = super().acp_conversation(job)
        return replace(conversation, prompt=plain_prompt(job, "acp"), additional_directories=(), mode="")

    def parser(self, job: Job) -> Parser:
        """Return the parser of its output."""
        if transport(job) == "stream-json":
            withholds = not (job.permissions.auto_approve or job.permissions.native_mode)
            servers = [server.name for server in job.request.mcp_servers]
            names_frames = job.request.include_native
            return StreamParser(job.roots, withholds=withholds, names_frames=names_frames, servers=servers)
        return GeminiAcpParser(self.acp_conversation(job), self.acp_options(job), self.spec.version)

    acp = ACP_OPTIONS

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Create the home of the run, and protect a recent session from being overwritten.

        Raises:
            FailureError: the user's settings cannot be read.
        """
        if job.session.resumes and transport(job) == "acp":
            protect_session(env, job.session.native_id)
        return make_home(job.run_dir, env)

    async def complete(self, job: Job, env: Mapping[str, str], report: Report, began_at: float) -> None:
        """Add the tokens in the session's file that the protocol does not report."""
        if self.is_session_id(report.session_id) and transport(job) == "acp":
            lines = await asyncio.to_thread(session_lines, user_home(env) / CONFIG_DIR, report.session_id)
            report.usage = better_usage(report.usage, stored_usage(lines, began_at))

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return the failure of a run without a result, or with an error of the model's service."""
        terminal = evidence.report.terminal
        if terminal is None:
            words = evidence.stderr_tail or evidence.stdout_tail
            return failure_of_exit(evidence.exit_code, words, resumed=evidence.resumed)
        failure = terminal.failure
        if failure is None or failure.kind == pb.FAILURE_KIND_SESSION_LOST:
            return None
        if not failure.code.startswith("acp_error_") or not failure.errors:
            return with_status(failure, evidence.exit_code)
        status = failure.code.removeprefix("acp_error_")
        return failure_of_error(
            failure.errors[0], status=int(status) if status.isdigit() else None, code=failure.code
        )

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield the values that Gemini CLI would read as something else, or cannot enforce."""
        if as_string(settings.config.get("transport"), "") != "stream-json":
            return
        if settings.permissions.interactive or settings.permissions.rules:
            message = "cannot be enforced over JSON lines, which have no questions; leave config.transport out"
            yield FieldViolation("permissions", message)
        for index, attachment in enumerate(request.attachments):
            if is_image(attachment.media_type):
                message = "cannot go over JSON lines as an image; leave config.transport out"
                yield FieldViolation(f"attachments[{index}].media_type", message)

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        """Return the stored login that would be used, if it is one that the agent renews."""
        del job
        return renewing_login(env)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether it is logged in."""
        del executable
        return find_login(env)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own configuration selects."""
        return selected_model(env)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by its login method."""
        del report
        return find_billing(env)

    def extra_checks(self, config: Mapping[str, JsonValue], env: Mapping[str, str], checks: Checks) -> None:
        """Add the checks that only this adapter makes."""
        del config
        if env.get("GEMINI_CLI_TRUST_WORKSPACE") not in {None, "true"}:
            message = (
                "GEMINI_CLI_TRUST_WORKSPACE is not true: Gemini CLI does not start in a workspace it does not trust."
            )
            hint = "Leave it out; the adapter sets it."
            checks.add(pb.SEVERITY_WARNING, "gemini_untrusted", message, hint=hint)
