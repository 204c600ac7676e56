"""What the Copilot adapter is."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from dragoman.adapters.copilot.classify import LOGIN_HINT, failure_of_words
from dragoman.adapters.copilot.parse import CopilotParser
from dragoman.adapters.copilot.plan import PROVIDER_VARIABLES, SKILL_LAYOUT, plan_run, session_options
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    CommandLineAdapter,
    Evidence,
    FailureInfo,
    Job,
    JsonValue,
    Parser,
    Plan,
    Settings,
    capabilities,
    is_uuid,
    read_json_object,
    rules,
    shipped_documents,
)
from dragoman.sdk.fields import objects, text
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"

TOKENS: Final = ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
"""Variables with a login, the first that is set wins."""
INHERITED: Final = (
    *TOKENS,
    *PROVIDER_VARIABLES,
    *("GH_HOST", "COPILOT_GH_HOST", "COPILOT_HOME", "COPILOT_CACHE_HOME", "COPILOT_OFFLINE"),
    *("COPILOT_CUSTOM_INSTRUCTIONS_DIRS", "COPILOT_AUTO_TIER", "USE_BUILTIN_RIPGREP"),
)
"""Variables that Copilot needs of the adapter's own environment, by name."""


class CopilotAdapter(CommandLineAdapter):
    """Runs GitHub Copilot CLI."""

    executables: ClassVar[tuple[str, ...]] = ("copilot",)
    skill_layout: ClassVar[str] = SKILL_LAYOUT
    native_protocol: ClassVar[str] = "copilot-session-rpc"
    inherit: ClassVar[Collection[str]] = INHERITED
    strip: ClassVar[Collection[str]] = ("COPILOT_ALLOW_ALL", "COPILOT_AGENT_SESSION_ID", "COPILOT_CLI")
    config_dir_name: ClassVar[str] = ".copilot"
    config_dir_variable: ClassVar[str] = "COPILOT_HOME"
    skills_dir_name: ClassVar[str] = "skills"
    api_key_variables: ClassVar[tuple[str, ...]] = ("COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BEARER_TOKEN")
    login_hint: ClassVar[str] = LOGIN_HINT
    install_hint: ClassVar[str] = "Install it with `npm install -g @github/copilot`."

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="copilot",
            label="GitHub Copilot CLI",
            version=VERSION,
            aliases=("copilot_local", "github-copilot", "github_copilot"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run Copilot."""
        return plan_run(job)

    def parser(self, job: Job) -> Parser:
        """Return what leads and understands the conversation."""
        inherited = {name: os.environ[name] for name in PROVIDER_VARIABLES if name in os.environ}
        return CopilotParser(job, session_options(job, {**inherited, **job.settings.config_env, **job.request.env}))

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
        """Tell whether ``text`` is a UUID."""
        return is_uuid(text)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what Copilot could not make anything of."""
        yield from rules.blank_prompt(request)
        yield from rules.native_mode(settings.permissions, ())

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether Copilot is logged in, from what can be seen: it has no command that tells."""
        del executable
        return find_login(env)

    def extra_checks(
        self, config: Mapping[str, JsonValue], env: Mapping[str, str]
    ) -> Sequence[adapter_pb2.EnvironmentCheck]:
        """Return what only this adapter knows to look at."""
        del config
        return list(_checks(env))


def find_login(env: Mapping[str, str]) -> AuthFinding:
    """Return whether Copilot is logged in, as it would see it with this environment.

    Where a key ring holds the token, the config file still names who has logged in.
    """
    if env.get("COPILOT_PROVIDER_BASE_URL"):
        return AuthFinding(adapter_pb2.AUTH_STATE_OK, "own_model")
    if any(env.get(name) for name in TOKENS):
        return AuthFinding(adapter_pb2.AUTH_STATE_OK, "token")
    home = Path(env.get("COPILOT_HOME") or Path(env.get("HOME") or Path.home()) / ".copilot")
    config = read_json_object(home / "config.json")
    if any(text(user, "login") for user in objects(config, "loggedInUsers") or objects(config, "logged_in_users")):
        return AuthFinding(adapter_pb2.AUTH_STATE_OK, "github", subscription=True)
    gh = Path(env.get("GH_CONFIG_DIR") or Path(env.get("HOME") or Path.home()) / ".config" / "gh") / "hosts.yml"
    if gh.is_file():  # Copilot asks `gh` for its token; whether it has one only `gh` knows
        return AuthFinding(adapter_pb2.AUTH_STATE_UNKNOWN)
    return AuthFinding(adapter_pb2.AUTH_STATE_MISSING)


def _checks(env: Mapping[str, str]) -> Iterator[adapter_pb2.EnvironmentCheck]:
    url = env.get("COPILOT_PROVIDER_BASE_URL")
    if url:
        yield adapter_pb2.EnvironmentCheck(
            code="own_model",
            level=pb.SEVERITY_INFO,
            message="COPILOT_PROVIDER_BASE_URL is set: the model is not GitHub's, and the login is not used.",
            detail=url.rpartition("@")[2],
        )
        if not env.get("COPILOT_MODEL"):
            yield adapter_pb2.EnvironmentCheck(
                code="model_needed",
                level=pb.SEVERITY_INFO,
                message="With a model of one's own each run must name it, as `model` or in COPILOT_MODEL.",
            )


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START, pb.FEATURE_TOOL_OUTPUT_DELTAS),
        *(pb.FEATURE_FILE_CHANGES, pb.FEATURE_SURGICAL_EDIT, pb.FEATURE_SUBAGENTS),
        *(pb.FEATURE_PER_CALL_USAGE, pb.FEATURE_PER_MODEL_USAGE),
        *(pb.FEATURE_PERMISSION_REQUESTS, pb.FEATURE_INPUT_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK),
        *(pb.FEATURE_SKILLS, pb.FEATURE_NATIVE_SKILLS, pb.FEATURE_MCP_SERVERS),
        *(pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE),
        resume=pb.RESUME_STYLE_SPECIFY,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_FILE_CHANGES: "of its file tools; not what shell commands change",
            pb.FEATURE_SYSTEM_PROMPT: "put behind Copilot's own, before the instructions",
            pb.FEATURE_INPUT_REQUESTS: "only if somebody is there: else its model is not offered to ask",
            pb.FEATURE_MCP_SERVERS: "besides those of its user",
        },
    )
