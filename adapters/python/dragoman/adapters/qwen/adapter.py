"""What the Qwen Code adapter is."""

from collections.abc import Iterator, Mapping, Sequence

from dragoman.adapters.qwen.login import find_billing, find_login, renewing_login
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
from dragoman.sdk import Evidence, FailureInfo, Job, Parser, Plan, Report, Settings
from dragoman.sdk.acp import AcpAdapter, AcpOptions
from dragoman.sdk.detection import AuthFinding, Billing, RenewingLogin
from dragoman.sdk.fields import compact
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from msgspec.structs import replace


class QwenAdapter(AcpAdapter):
    """Runs Qwen Code."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Say how to run it."""
        plan = plan_stream(job) if uses_stream(job) else super().plan(job)
        return replace(plan, env=self.acp_env(job), files={DEFAULTS_FILE: compact(DEFAULTS).encode()})

    def parser(self, job: Job) -> Parser:
        """Return what understands its output."""
        return QwenStreamParser([job.settings.cwd]) if uses_stream(job) else super().parser(job)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what a run means that ended before it had a word."""
        return classify_stream(evidence)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what only the other way can do."""
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

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        """Return the stored login that would be used, if it is one that the agent renews."""
        del job
        return renewing_login(env)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether a provider is configured."""
        del executable
        return find_login(env)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by its login."""
        return find_billing(env, report.provider)
