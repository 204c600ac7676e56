"""What the Qwen Code adapter is."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from dragoman.adapters.qwen.login import find_login
from dragoman.adapters.qwen.plan import (
    DEFAULTS,
    DEFAULTS_FILE,
    ENVIRONMENT,
    arguments,
    options,
    plan_stream,
    uses_stream,
)
from dragoman.adapters.qwen.stream import QwenStreamParser, classify_stream
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    Evidence,
    FailureInfo,
    Job,
    Parser,
    Plan,
    Settings,
    SkillStrategy,
    capabilities,
    compact,
    is_uuid,
    rules,
    shipped_documents,
)
from dragoman.sdk.acp import AcpAdapter, AcpOptions
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"


class QwenAdapter(AcpAdapter):
    """Runs Qwen Code."""

    executables: ClassVar[tuple[str, ...]] = ("qwen",)
    config_dir_name: ClassVar[str] = ".qwen"
    config_dir_variable: ClassVar[str] = "QWEN_HOME"
    skills_dir_name: ClassVar[str] = "skills"
    skill_strategy: ClassVar[SkillStrategy | None] = SkillStrategy.WORKSPACE
    skill_layout: ClassVar[str] = ".qwen/skills/{name}"
    inherit: ClassVar[Collection[str]] = (
        *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "DASHSCOPE_API_KEY", "QWEN_MODEL"),
        *("QWEN_HOME", "QWEN_RUNTIME_DIR", "QWEN_TELEMETRY_ENABLED", "QWEN_CODE_MAX_OUTPUT_TOKENS"),
    )
    strip: ClassVar[Collection[str]] = (
        *("QWEN_CODE", "QWEN_CODE_CLI", "QWEN_CODE_SESSION_ID", "QWEN_CODE_PROJECT_DIR", "QWEN_CODE_SERVE"),
        *("QWEN_CODE_LAUNCHER_PID", "QWEN_CLI_ENTRY"),
    )
    api_key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY")
    login_hint: ClassVar[str] = "Run `qwen` once and choose a provider, or put OPENAI_API_KEY into env."
    install_hint: ClassVar[str] = "Install it with `npm install -g @qwen-code/qwen-code`; it needs Node.js 22."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="qwen",
            label="Qwen Code",
            version=VERSION,
            aliases=("qwen_local", "qwen-code", "qwen_code"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run it."""
        plan = plan_stream(job) if uses_stream(job) else super().plan(job)
        return replace(plan, env=self.acp_env(job), files={DEFAULTS_FILE: compact(DEFAULTS).encode()})

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        return QwenStreamParser() if uses_stream(job) else super().parser(job)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what a run means that ended before it had a word."""
        return classify_stream(evidence)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what only the other way can do."""
        mode = settings.permissions.native_mode
        yield from rules.read_as_options({"model": settings.model, "permissions.native_mode": mode})
        if settings.config.get("transport") == "stream-json" and request.mcp_servers:
            yield FieldViolation("mcp_servers", "need config.transport acp")

    def acp_args(self, job: Job) -> Sequence[str]:
        """Return the arguments that make it speak the protocol."""
        return arguments(job)

    def acp_env(self, job: Job) -> Mapping[str, str]:
        """Return its own variables."""
        return {**ENVIRONMENT, "QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(job.run_dir / DEFAULTS_FILE)}

    def acp_options(self, job: Job) -> AcpOptions:
        """Return its ways in this run."""
        return options(job)

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a UUID, as all of its sessions have."""
        return is_uuid(text)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether a provider is configured."""
        del executable
        return find_login(env)


def _capabilities() -> pb.Capabilities:
    in_prompt = "put before the prompt"
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START, pb.FEATURE_FILE_CHANGES),
        *(pb.FEATURE_PLAN, pb.FEATURE_PER_CALL_USAGE, pb.FEATURE_PERMISSION_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_MCP_SERVERS, pb.FEATURE_MODEL_CHOICE),
        *(pb.FEATURE_SKILLS, pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT),
        resume=pb.RESUME_STYLE_CAPTURE,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_INSTRUCTIONS: in_prompt,
            pb.FEATURE_SYSTEM_PROMPT: in_prompt,
            pb.FEATURE_SKILLS: "as text in the prompt; as the agent's own if config.placeInWorkspace allows it",
        },
    )
