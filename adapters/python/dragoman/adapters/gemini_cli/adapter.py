"""What the Gemini CLI adapter is."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from dragoman.adapters.gemini_cli.acp import WAYS, GeminiAcpParser
from dragoman.adapters.gemini_cli.classify import LOGIN_HINT, failure_of_error, failure_of_exit, with_status
from dragoman.adapters.gemini_cli.home import (
    CONFIG_DIR,
    HOME_VARIABLE,
    SKILL_LAYOUT,
    keep_session,
    make_home,
    user_home,
)
from dragoman.adapters.gemini_cli.kept import better_usage, kept_usage, session_lines
from dragoman.adapters.gemini_cli.login import find_login
from dragoman.adapters.gemini_cli.parse import StreamParser
from dragoman.adapters.gemini_cli.plan import (
    ENVIRONMENT,
    MODES,
    SETTINGS_FILE,
    arguments,
    instruction_files,
    plain_prompt,
    plan_stream,
    run_settings,
    transport,
)
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    Evidence,
    FailureInfo,
    Job,
    JsonValue,
    Model,
    Parser,
    Plan,
    Report,
    Settings,
    as_string,
    capabilities,
    compact,
    is_uuid,
    rules,
    shipped_documents,
)
from dragoman.sdk.acp import AcpAdapter, Conversation
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"


INHERITED: Final = (
    # Who pays, and where the model is.
    *("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "GEMINI_MODEL"),
    *("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GEMINI_CLI_USE_COMPUTE_ADC"),
    *("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_PROJECT_ID", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_QUOTA_PROJECT"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GEMINI_CLI_HOME", "GEMINI_CLI_CUSTOM_HEADERS"),
    # What its user has said about the sandbox.
    *("GEMINI_SANDBOX", "GEMINI_SANDBOX_IMAGE", "SANDBOX_FLAGS", "SANDBOX_MOUNTS", "SEATBELT_PROFILE"),
)
"""Variables that Gemini CLI needs of the adapter's own environment, by name."""

NESTING: Final = ("GEMINI_CLI", "GEMINI_CLI_IDE_*", "GEMINI_PTY_INFO", "GEMINI_CLI_ACTIVITY_LOG_TARGET", "SURFACE")
"""Variables that Gemini CLI, or an editor it runs in, sets for the programs below it."""


class GeminiCliAdapter(AcpAdapter):
    """Runs Gemini CLI, by the way that fits the run."""

    executables: ClassVar[tuple[str, ...]] = ("gemini",)
    skill_layout: ClassVar[str] = SKILL_LAYOUT
    native_protocol: ClassVar[str] = "gemini-cli"
    inherit: ClassVar[Collection[str]] = INHERITED
    strip: ClassVar[Collection[str]] = NESTING
    config_dir_name: ClassVar[str] = CONFIG_DIR
    skills_dir_name: ClassVar[str] = "skills"
    # In a home without a register of projects, each `--version` leaves two files of a register behind.
    tidy_variables: ClassVar[tuple[str, ...]] = (HOME_VARIABLE,)
    api_key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    login_hint: ClassVar[str] = LOGIN_HINT
    install_hint: ClassVar[str] = "Install it with `npm install -g @google/gemini-cli`."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="gemini_cli",
            label="Gemini CLI",
            version=VERSION,
            aliases=("gemini_local", "gemini-cli", "gemini"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
            models=(
                Model("auto", "Auto"),
                Model("gemini-3.1-pro-preview", "Gemini 3.1 Pro"),
                Model("gemini-3.8-flash", "Gemini 3.8 Flash"),
                Model("gemini-3.5-flash-lite", "Gemini 3.5 Flash Lite"),
                Model("gemini-2.5-pro", "Gemini 2.5 Pro"),
                Model("gemini-2.5-flash", "Gemini 2.5 Flash"),
            ),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run Gemini CLI."""
        if transport(job.settings, job.prompt) == "stream-json":
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
        """Return what this run wants of it; directories and instructions go another way."""
        wanted = super().acp_conversation(job)
        return replace(wanted, prompt=plain_prompt(job, "acp"), additional_directories=(), mode="")

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        if transport(job.settings, job.prompt) == "stream-json":
            withholds = not (job.permissions.auto_approve or job.permissions.native_mode)
            return StreamParser(withholds=withholds, names_frames=job.request.include_native)
        return GeminiAcpParser(self.acp_conversation(job), self.acp_options(job), VERSION)

    acp = WAYS

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Make the home of the run, and keep a young session from being written over.

        Raises:
            FailureError: the user's settings cannot be read.
        """
        if job.session.resumes and transport(job.settings, job.prompt) == "acp":
            keep_session(env, job.session.native_id)
        return make_home(job.run_dir, env)

    async def complete(self, job: Job, env: Mapping[str, str], report: Report, began_at: float) -> None:
        """Add what the session's file tells of tokens and the protocol does not."""
        if self.is_session_id(report.session_id) and transport(job.settings, job.prompt) == "acp":
            lines = await asyncio.to_thread(session_lines, user_home(env) / CONFIG_DIR, report.session_id)
            kept = kept_usage(lines, began_at)
            report.usage = better_usage(report.usage, kept)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what a run means that never got as far as a word of its own, or ended with an error of its service."""
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

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a UUID. A number, or ``latest``, would resume whatever session that is."""
        return is_uuid(text)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what would reach Gemini CLI as something else than it is, or could not be kept."""
        yield from rules.blank_prompt(request)
        yield from rules.read_as_options({"model": settings.model})
        yield from rules.native_mode(settings.permissions, MODES)
        asks = settings.permissions.interactive or bool(settings.permissions.rules)
        if asks and as_string(settings.config.get("transport"), "") == "stream-json":
            message = "cannot be kept over JSON lines, where nothing can be asked; leave config.transport out"
            yield FieldViolation("permissions", message)

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> adapter_pb2.Detection:
        """Look for it; started as one process it tells its version in half the time."""
        return await super().look({**env, **ENVIRONMENT}, config)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether it is logged in."""
        del executable
        return find_login(env)

    def extra_checks(
        self, config: Mapping[str, JsonValue], env: Mapping[str, str]
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Return what only this adapter knows to look at."""
        del config
        given = env.get("GEMINI_CLI_TRUST_WORKSPACE")
        if given in {None, "true"}:
            return ()
        message = (
            "GEMINI_CLI_TRUST_WORKSPACE is not true: Gemini CLI does not start in a workspace it does not trust."
        )
        hint = "Leave it out; the adapter sets it."
        check = adapter_pb2.EnvironmentCheck(code="gemini_untrusted", level=pb.SEVERITY_WARNING, message=message)
        check.hint = hint
        return (check,)


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START),
        *(pb.FEATURE_PER_MODEL_USAGE, pb.FEATURE_PERMISSION_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION),
        *(pb.FEATURE_SKILLS, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MCP_SERVERS),
        *(pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE, pb.FEATURE_MAX_TURNS),
        resume=pb.RESUME_STYLE_SPECIFY,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_THINKING: "over the Agent Client Protocol; not where everything is allowed",
            pb.FEATURE_PERMISSION_REQUESTS: "over the Agent Client Protocol, chosen where anything is to be asked",
            pb.FEATURE_SYSTEM_PROMPT: "put behind Gemini CLI's own, before the instructions",
        },
    )
