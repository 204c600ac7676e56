"""What the Codex adapter is."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Final

from dragoman.adapters.codex.classify import LOGIN_HINT, failure_of_words
from dragoman.adapters.codex.exec_parse import ExecParser
from dragoman.adapters.codex.login import (
    CONFIG_DIR,
    CONFIG_DIR_VARIABLE,
    PROVIDER_KEYS,
    find_login,
)
from dragoman.adapters.codex.parse import AppServerParser
from dragoman.adapters.codex.plan import BYPASS, EXEC, SKILLS_DIR, plan_run, uses_exec
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    Checks,
    CommandLineAdapter,
    Evidence,
    FailureInfo,
    Job,
    JsonValue,
    Model,
    Parser,
    Plan,
    Settings,
    as_bool,
    as_string,
    capabilities,
    is_uuid,
    parse_json_object,
    probe,
    rules,
    shipped_documents,
)
from dragoman.sdk.fields import objects, text
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"
INSTALL_HINT: Final = "Install it with `npm install -g @openai/codex`."

_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POLICIES: Final = ("untrusted", "on-request", "never")
_MODELS_LIMIT_S: Final = 10.0
_MOST_MODEL_BYTES: Final = 8 * 1024 * 1024
_SANDBOX_LIMIT_S: Final = 8.0

INHERITED: Final = (
    *("CODEX_HOME", *PROVIDER_KEYS, "OPENAI_BASE_URL", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"),
    *("AZURE_OPENAI_API_KEY", "OPENROUTER_API_KEY", "CODEX_CA_CERTIFICATE", "CODEX_SQLITE_HOME"),
)
"""Variables that Codex needs of the adapter's own environment, by name."""
NESTING: Final = (
    *("CODEX_SANDBOX", "CODEX_SANDBOX_NETWORK_DISABLED", "CODEX_THREAD_ID", "CODEX_CI"),
    *("CODEX_INTERNAL_ORIGINATOR_OVERRIDE", "CODEX_MANAGED_BY_NPM", "CODEX_MANAGED_BY_BUN"),
)
"""Variables that Codex sets for its own children, by which one knows that it runs inside another."""


class CodexAdapter(CommandLineAdapter):
    """Runs Codex."""

    executables: ClassVar[tuple[str, ...]] = ("codex",)
    skill_layout: ClassVar[str] = f"{SKILLS_DIR}/{{name}}"
    native_protocol: ClassVar[str] = "codex-app-server"
    inherit: ClassVar[Collection[str]] = INHERITED
    strip: ClassVar[Collection[str]] = NESTING
    config_dir_name: ClassVar[str] = CONFIG_DIR
    config_dir_variable: ClassVar[str] = CONFIG_DIR_VARIABLE
    skills_dir_name: ClassVar[str] = "skills"
    api_key_variables: ClassVar[tuple[str, ...]] = PROVIDER_KEYS
    login_hint: ClassVar[str] = LOGIN_HINT
    install_hint: ClassVar[str] = INSTALL_HINT

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="codex",
            label="Codex",
            version=VERSION,
            aliases=("codex_local", "codex-cli"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
            models=(
                Model("gpt-6.1-sol", "GPT-6.1-Sol", is_default=True),
                Model("gpt-6-astra", "GPT-6-Astra"),
                Model("gpt-6-luna", "GPT-6-Luna"),
            ),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run Codex."""
        return plan_run(job, VERSION)

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        return ExecParser(job) if uses_exec(job) else AppServerParser(job, VERSION)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what a run means that never got as far as a word of its own; else its own word stands."""
        if evidence.report.terminal is not None:
            return None
        return failure_of_words(evidence.stderr_tail, resumed=evidence.resumed)

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a UUID. With anything else ``codex exec resume`` begins a new thread."""
        return is_uuid(text)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what would reach Codex as something else than it is."""
        yield from rules.blank_prompt(request)
        yield from rules.read_as_options({"model": settings.model})
        yield from rules.native_mode(settings.permissions, _POLICIES)
        if request.mcp_servers and as_string(settings.config.get("transport"), "") == EXEC:
            yield FieldViolation(
                "mcp_servers", "need transport app-server: on a command line their secrets would show"
            )
        for index, server in enumerate(request.mcp_servers):
            if server.name and _SERVER_NAME.fullmatch(server.name) is None:
                yield FieldViolation(f"mcp_servers[{index}].name", "must be at most 64 letters, digits, '_' and '-'")

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether it is logged in."""
        return await find_login(executable, {key: value for key, value in env.items() if key not in NESTING})

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the models that this Codex offers; without one, those known here. Asks nobody over a network."""
        env = {**os.environ, **request.env}
        found = await self.look(env, {})
        if found.executable:
            command = [found.executable, "debug", "models", "--bundled"]
            answer = await probe(command, env, _MODELS_LIMIT_S, _MOST_MODEL_BYTES)
            listed = parse_json_object(answer.stdout.encode()) if answer.exit_code == 0 else None
            models = [model for model in objects(listed or {}, "models") if text(model, "visibility") == "list"]
            if models:
                response = adapter_pb2.ListModelsResponse(source=adapter_pb2.MODEL_SOURCE_AGENT)
                for model in models:
                    response.models.add(id=text(model, "slug"), label=text(model, "display_name"))
                response.listed_at.GetCurrentTime()
                return response
        return await super().list_models(request)

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the program can be used, and that its sandbox works here."""
        await super().check_agent(env, config, checks)
        if as_bool(config.get(BYPASS), False):
            message = "Codex is set to ask nobody and to have no sandbox."
            checks.add(pb.SEVERITY_WARNING, "approvals_bypassed", message)
            return
        found = await self.look(env, config)
        if not found.executable:
            return
        answer = await probe([found.executable, "sandbox", "--", "true"], env, _SANDBOX_LIMIT_S)
        if answer.exit_code == 0:
            checks.add(pb.SEVERITY_INFO, "sandbox_ok", "Codex's sandbox works here.")
            return
        message = "Codex's sandbox does not work here: every command that is not allowed to run without it fails."
        hint = (
            "Allow unprivileged user namespaces (bubblewrap needs them), or set config.sandbox to danger-full-access."
        )
        checks.add(pb.SEVERITY_WARNING, "sandbox_unavailable", message, hint=hint, detail=answer.stderr[-400:])


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START, pb.FEATURE_TOOL_OUTPUT_DELTAS),
        *(pb.FEATURE_FILE_CHANGES, pb.FEATURE_SURGICAL_EDIT, pb.FEATURE_SUBAGENTS, pb.FEATURE_PER_CALL_USAGE),
        *(pb.FEATURE_PERMISSION_REQUESTS, pb.FEATURE_INPUT_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK, pb.FEATURE_COMPACTION),
        *(pb.FEATURE_SKILLS, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MCP_SERVERS),
        *(pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE),
        resume=pb.RESUME_STYLE_CAPTURE,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_THINKING: "as summaries, if the model gives them; see config.reasoningSummary",
            pb.FEATURE_TOOL_OUTPUT_DELTAS: "what a command prints at once comes with its result",
            pb.FEATURE_FILE_CHANGES: "of patches; not what shell commands change",
            pb.FEATURE_SYSTEM_PROMPT: "put behind Codex's own, before the instructions",
            pb.FEATURE_MCP_SERVERS: "besides those of the user's config.toml; not with transport exec",
            pb.FEATURE_INPUT_REQUESTS: "in interactive runs",
        },
    )
