"""What the opencode adapter is."""

import asyncio
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from dragoman.adapters.opencode import content, run_format
from dragoman.adapters.opencode.login import find_login
from dragoman.adapters.opencode.tools import file_changes, tool_name
from dragoman.adapters.opencode.usage import database, read_usage, with_context
from dragoman.protocol.errors import FieldViolation
from dragoman.protocol.identity import near_names
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    Evidence,
    FailureInfo,
    Job,
    JsonValue,
    Parser,
    Plan,
    Report,
    Settings,
    as_bool,
    as_object,
    as_string,
    capabilities,
    classify_text,
    failure_from_hint,
    probe,
    rules,
    shipped_documents,
)
from dragoman.sdk.acp import AcpAdapter, AcpOptions, Conversation, RpcError, conversation
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"
TESTED_VERSION: Final = "1.18.33"

KEYS: Final = (
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "OPENROUTER_API_KEY"),
    *("GROQ_API_KEY", "MISTRAL_API_KEY", "DEEPSEEK_API_KEY", "XAI_API_KEY", "CEREBRAS_API_KEY", "OPENCODE_API_KEY"),
)
"""Variables with keys that opencode takes for its providers."""
INHERITED: Final = (
    *KEYS,
    *("GITHUB_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_BEARER_TOKEN_BEDROCK", "GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS", "VERTEX_LOCATION"),
    *("AZURE_RESOURCE_NAME", "AZURE_API_KEY"),
    # Where the user keeps things, and what the user does not want.
    *("OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR", "OPENCODE_AUTH_CONTENT", "OPENCODE_MODELS_URL", "OPENCODE_DB"),
    *("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_DEFAULT_PLUGINS", "OPENCODE_DISABLE_PROJECT_CONFIG"),
    *("OPENCODE_DISABLE_CLAUDE_CODE", "OPENCODE_DISABLE_EXTERNAL_SKILLS", "OPENCODE_PURE"),
)
"""Variables that opencode needs of the adapter's own environment, by name."""
NESTING: Final = (
    "OPENCODE",
    "OPENCODE_PID",
    "OPENCODE_CLIENT",
    "OPENCODE_SERVER_PASSWORD",
    "OPENCODE_SERVER_USERNAME",
)
"""Variables that opencode sets for its own children."""
OURS: Final = ("OPENCODE_CONFIG_CONTENT", "OPENCODE_PERMISSION")
"""Variables by which this adapter configures a run."""

_SESSION_ID: Final = re.compile(r"ses_[0-9A-Za-z]{8,64}")
_MODEL: Final = re.compile(r"[^/\s-][^/\s]*/\S+")
_LOGIN_HINT: Final = "Run `opencode auth login`, or put a provider's key into env."
_NO_MODEL: Final = "unknown/unknown"
"""What opencode says of a session for which it has found no model."""
_MODELS_LIMIT_S: Final = 20.0
_UNSEEN: Final = "\u200b"
"""A character that is no blank to opencode, and nothing to people."""


class OpencodeAdapter(AcpAdapter):
    """Runs opencode."""

    executables: ClassVar[tuple[str, ...]] = ("opencode",)
    skill_layout: ClassVar[str] = f"{content.SKILLS}/{{name}}"
    inherit: ClassVar[Collection[str]] = INHERITED
    strip: ClassVar[Collection[str]] = NESTING
    config_dir_name: ClassVar[str] = ".config/opencode"
    config_dir_variable: ClassVar[str] = "OPENCODE_CONFIG_DIR"
    skills_dir_name: ClassVar[str] = "skills"
    tidy_variables: ClassVar[tuple[str, ...]] = (
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    )
    api_key_variables: ClassVar[tuple[str, ...]] = KEYS
    login_hint: ClassVar[str] = _LOGIN_HINT
    install_hint: ClassVar[str] = "Install it with `npm install -g opencode-ai`."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="opencode",
            label="opencode",
            version=VERSION,
            aliases=("opencode_local",),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
        )

    # How it is started and spoken to.

    def acp_args(self, job: Job) -> Sequence[str]:
        """Return the arguments that make it speak the Agent Client Protocol."""
        del job
        return ("acp",)

    def acp_env(self, job: Job) -> Mapping[str, str]:
        """Return the variables that configure a run."""
        return content.environment(job)

    def acp_options(self, job: Job) -> AcpOptions:
        """Return its ways."""
        variant = as_string(job.config.get("variant"), "")
        return AcpOptions(
            mode=content.agent_of(job),
            config_values={"effort": variant} if variant else {},
            slash_commands=True,  # see _prompt
            acknowledged=("fs/write_text_file",),  # it tells a text to an editor, and writes the file itself
            usage="last_call",
            tool_name=tool_name,
            file_changes=file_changes,
            lost_session=_is_lost,
            provider=job.settings.model.partition("/")[0],
        )

    def acp_conversation(self, job: Job) -> Conversation:
        """Return what a run wants: its instructions and directories are in the configuration."""
        return replace(conversation(job, self.acp_options(job)), prompt=_prompt(job), additional_directories=())

    def plan(self, job: Job) -> Plan:
        """Say how to run opencode."""
        plan = run_format.plan(job) if _runs_once(job) else super().plan(job)
        instructions = content.instructions(job)
        return replace(
            plan,
            files={content.INSTRUCTIONS: instructions.encode()} if instructions else {},
            notices=(*plan.notices, *content.notices(job)),
        )

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        return run_format.RunParser(job.settings.model) if _runs_once(job) else super().parser(job)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what a run means without a model, or that never got as far as a word of its own; else that stands."""
        terminal = evidence.report.terminal
        if evidence.report.model == _NO_MODEL and terminal is not None and not terminal.succeeded:
            said = terminal.failure.errors if terminal.failure is not None else ()
            message = "opencode knows no model. Set model to provider/model, and see that its provider has a key."
            return FailureInfo(pb.FAILURE_KIND_MODEL_NOT_FOUND, message, code="opencode_no_model", errors=said)
        if terminal is not None or not evidence.stderr_tail:
            return None
        if evidence.resumed and "Session not found" in evidence.stderr_tail:
            message = "opencode knows no such session."
            return FailureInfo(
                pb.FAILURE_KIND_SESSION_LOST, message, "opencode_session_lost", (evidence.stderr_tail,)
            )
        hint = classify_text(evidence.stderr_tail, datetime.now(UTC))
        return failure_from_hint(hint, code="opencode_failed") if hint is not None else None

    async def complete(self, job: Job, env: Mapping[str, str], report: Report, began_at: float) -> None:
        """Find out what all calls of the model used, as opencode tells only the last one's tokens."""
        if not report.session_id or _runs_once(job):
            return
        used = await asyncio.to_thread(read_usage, database(env), report.session_id, int(began_at * 1000))
        if used is not None:
            report.usage = with_context(used, report.usage)
        elif report.usage is not None and report.usage.cost.amount == "0":
            report.usage.ClearField("cost")  # nothing was priced, or nothing was used

    # What is asked of it before.

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` has the shape of opencode's session ids."""
        return _SESSION_ID.fullmatch(text) is not None

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what would reach opencode as something else than it is."""
        yield from rules.blank_prompt(request)
        mode = settings.permissions.native_mode
        variant = as_string(settings.config.get("variant"), "")
        yield from rules.read_as_options({"permissions.native_mode": mode, "config.variant": variant})
        near = near_names(mode, content.OWN_AGENTS) if mode and mode not in content.OWN_AGENTS else []
        if near:
            # opencode would make up an agent of that name, with all of its tools.
            yield FieldViolation("permissions.native_mode", f"is no agent of opencode; did you mean {near[0]}?")
        if settings.model and not _MODEL.fullmatch(settings.model):
            yield FieldViolation("model", "must be provider/model, e.g. anthropic/claude-sonnet-4-5")
        for name in OURS:
            for place, env in (("config.env", settings.config_env), ("env", request.env)):
                if name in env:
                    advice = "would undo the run's permissions; use config.opencodeConfig"
                    yield FieldViolation(f"{place}.{name}", advice)
        if "permission" in as_object(settings.config.get("opencodeConfig"), {}):
            advice = "is the run's own; use permissions of the request"
            yield FieldViolation("config.opencodeConfig.permission", advice)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether it has a login, a key or a provider of the user's own."""
        del executable
        return find_login(env, KEYS)

    def extra_checks(
        self, config: Mapping[str, JsonValue], env: Mapping[str, str]
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Return what only this adapter knows to look at."""
        return list(_checks(config, env))

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the models of the providers that opencode has a login or key for."""
        env = {**os.environ, **request.env}
        found = await self.look(env, {})
        if not found.executable:
            return await super().list_models(request)
        answer = await probe([found.executable, "models"], env, _MODELS_LIMIT_S)
        response = adapter_pb2.ListModelsResponse(source=adapter_pb2.MODEL_SOURCE_AGENT)
        response.listed_at.GetCurrentTime()
        for line in answer.stdout.splitlines() if answer.exit_code == 0 else ():
            if _MODEL.fullmatch(line.strip()) and not line.startswith(f"{content.HOSTED}/"):
                response.models.add(id=line.strip(), label=line.strip().partition("/")[2])
        return response


def _runs_once(job: Job) -> bool:
    return as_string(job.config.get("transport"), "acp") == "run"


def _prompt(job: Job) -> str:
    """Return the prompt; one that begins with a slash is kept from being a command.

    opencode looks at it without the blanks before it, and drops a prompt whose command it does not know.
    """
    is_command = job.prompt.lstrip().startswith("/")
    if not is_command or as_bool(job.config.get("allowSlashCommands"), False):
        return job.prompt
    return _UNSEEN + job.prompt


def _is_lost(error: RpcError) -> bool:
    """Tell whether an error of load, resume or fork is about the session: opencode has no better word for it."""
    data = error.data if isinstance(error.data, dict) else {}
    return data.get("service") == "session" and "service failure" in error.message


def _checks(config: Mapping[str, JsonValue], env: Mapping[str, str]) -> Iterator[adapter_pb2.EnvironmentCheck]:
    if shutil.which("rg", path=env.get("PATH", "")) is None:
        yield adapter_pb2.EnvironmentCheck(
            code="ripgrep_missing",
            level=pb.SEVERITY_INFO,
            message="ripgrep is not on this PATH: opencode fetches it from GitHub when it first searches.",
            hint="Install ripgrep where opencode may not fetch programs; without it, skills and searches fail there.",
        )
    if not as_string(config.get("model"), ""):
        yield adapter_pb2.EnvironmentCheck(
            code="model_not_set",
            level=pb.SEVERITY_INFO,
            message="No model is set: opencode's own configuration decides, but not for opencode.ai's hosted models.",
            hint="Set config.model, or the request's model, to provider/model.",
        )
    for name in ("dangerouslySkipPermissions", "ownPermissions"):
        if as_bool(config.get(name), False):
            yield adapter_pb2.EnvironmentCheck(
                code="permissions_skipped",
                level=pb.SEVERITY_WARNING,
                message=f"config.{name}: opencode itself decides what it asks about.",
                hint="Use rules in permissions, or permissions.auto_approve, which at least tells what is done.",
            )
    if as_string(config.get("transport"), "acp") == "run":
        yield adapter_pb2.EnvironmentCheck(
            code="transport_run",
            level=pb.SEVERITY_WARNING,
            message="config.transport is run: nothing streams, and whatever opencode would ask is refused.",
        )


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START, pb.FEATURE_FILE_CHANGES),
        *(pb.FEATURE_PER_MODEL_USAGE, pb.FEATURE_COST, pb.FEATURE_PERMISSION_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK),
        *(pb.FEATURE_SKILLS, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MCP_SERVERS),
        *(pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE),
        resume=pb.RESUME_STYLE_CAPTURE,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_FILE_CHANGES: "of its file tools; not what shell commands change",
            pb.FEATURE_SYSTEM_PROMPT: "put behind opencode's own, before the instructions",
            pb.FEATURE_PERMISSION_REQUESTS: "not of nested agents: those may only read, unless all is allowed",
        },
    )
