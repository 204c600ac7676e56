"""What the Claude Code adapter is."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from dragoman.adapters.claude_code.checks import set_up_checks
from dragoman.adapters.claude_code.classify import LOGIN_HINT, failure_of_words
from dragoman.adapters.claude_code.login import CONFIG_DIR, CONFIG_DIR_VARIABLE, find_login
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.adapters.claude_code.plan import plan_run
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    CommandLineAdapter,
    Evidence,
    FailureInfo,
    Job,
    JsonValue,
    Model,
    Parser,
    Plan,
    Settings,
    as_string,
    capabilities,
    is_uuid,
    rules,
    shipped_documents,
)
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"


INHERITED: Final = (
    # Who pays, and where the model is.
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"),
    *("CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"),
    *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL"),
    *("ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"),
    # Amazon Bedrock, Google Vertex AI, Microsoft Foundry, with what their clients look for.
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_SKIP_BEDROCK_AUTH", "ANTHROPIC_BEDROCK_BASE_URL"),
    *("AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_SKIP_VERTEX_AUTH", "ANTHROPIC_VERTEX_BASE_URL"),
    *("ANTHROPIC_VERTEX_PROJECT_ID", "CLOUD_ML_REGION", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"),
    *("CLAUDE_CODE_USE_FOUNDRY", "ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_BASE_URL"),
    *("ANTHROPIC_FOUNDRY_RESOURCE",),
    # What its user has said about privacy, limits and tools.
    *("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"),
    *("CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "MAX_THINKING_TOKENS", "API_TIMEOUT_MS"),
    *("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "MCP_TIMEOUT", "MCP_TOOL_TIMEOUT", "IS_SANDBOX"),
)
"""Variables that Claude Code needs of the adapter's own environment, by name."""

NESTING: Final = (
    *("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID", "CLAUDE_CODE_CHILD_SESSION"),
    *("CLAUDE_CODE_CHILD_NOTES_DIR", "CLAUDE_CODE_SESSION_ATTENDED", "CLAUDE_CODE_EXECPATH"),
    *("CLAUDE_CODE_MESSAGING_SOCKET", "CLAUDE_CODE_MESSAGING_TOKEN", "CLAUDE_CODE_PARENT_SESSION"),
    *("CLAUDE_PID", "CLAUDE_EFFORT", "AI_AGENT", "TRACEPARENT", "CLAUDE_CODE_SSE_PORT"),
    *("CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS", "CLAUDE_CODE_BRIDGE_SESSION_ID"),
)
"""Variables that Claude Code sets for its own children, by which one knows that it runs inside another."""


class ClaudeCodeAdapter(CommandLineAdapter):
    """Runs Claude Code."""

    executables: ClassVar[tuple[str, ...]] = ("claude",)
    skill_layout: ClassVar[str] = ".claude/skills/{name}"
    native_protocol: ClassVar[str] = "claude-stream-json"
    inherit: ClassVar[Collection[str]] = INHERITED
    strip: ClassVar[Collection[str]] = NESTING
    config_dir_name: ClassVar[str] = CONFIG_DIR
    config_dir_variable: ClassVar[str] = CONFIG_DIR_VARIABLE
    skills_dir_name: ClassVar[str] = "skills"
    api_key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    login_hint: ClassVar[str] = LOGIN_HINT
    install_hint: ClassVar[str] = "Install it with `npm install -g @anthropic-ai/claude-code`."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="claude_code",
            label="Claude Code",
            version=VERSION,
            aliases=("claude_local", "claude-code", "claude"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
            models=(Model("opus", "Claude Opus"), Model("sonnet", "Claude Sonnet"), Model("haiku", "Claude Haiku")),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run Claude Code."""
        return plan_run(job)

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        return ClaudeParser(resumes=job.session.resumes, names_frames=job.request.include_native)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what a run means that never got as far as a word of its own; else its own word stands."""
        if evidence.report.terminal is not None:
            return None
        said = (
            failure_of_words(words, resumed=evidence.resumed)
            for words in (evidence.stderr_tail, evidence.stdout_tail)
        )
        return next((failure for failure in said if failure is not None), None)

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a UUID. Anything else might match the *title* of some session."""
        return is_uuid(text)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what would reach Claude Code as something else than it is."""
        yield from rules.blank_prompt(request)
        yield from rules.read_as_options(
            {
                "model": settings.model,
                "permissions.native_mode": settings.permissions.native_mode,
                "config.fallbackModel": as_string(settings.config.get("fallbackModel"), ""),
            }
        )

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether it is logged in."""
        return await find_login(executable, {key: value for key, value in env.items() if key not in NESTING})

    def extra_checks(
        self, config: Mapping[str, JsonValue], env: Mapping[str, str]
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Return what only this adapter knows to look at."""
        return list(set_up_checks(config, env, is_root=os.geteuid() == 0, nesting=NESTING))


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START),
        *(pb.FEATURE_FILE_CHANGES, pb.FEATURE_SURGICAL_EDIT, pb.FEATURE_PLAN, pb.FEATURE_SUBAGENTS),
        *(pb.FEATURE_PER_CALL_USAGE, pb.FEATURE_PER_MODEL_USAGE, pb.FEATURE_COST),
        *(pb.FEATURE_PERMISSION_REQUESTS, pb.FEATURE_INPUT_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK, pb.FEATURE_COMPACTION),
        *(pb.FEATURE_SKILLS, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MCP_SERVERS),
        *(pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE, pb.FEATURE_MAX_TURNS),
        resume=pb.RESUME_STYLE_SPECIFY,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_FILE_CHANGES: "of its file tools; not what shell commands change",
            pb.FEATURE_PLAN: "if the model is offered a to-do list",
            pb.FEATURE_SYSTEM_PROMPT: "put behind Claude Code's own, before the instructions",
            pb.FEATURE_MCP_SERVERS: "if any are given, the user's and the project's own are left out",
        },
    )
