"""What the Qwen Code adapter is."""

from collections.abc import Mapping, Sequence

from dragoman.adapters.qwen.login import find_billing, find_login, renewing_login, selected_model
from dragoman.adapters.qwen.plan import DEFAULTS, DEFAULTS_FILE, ENVIRONMENT, arguments, options
from dragoman.sdk import Job, Plan, Report
from dragoman.sdk.acp import AcpAdapter, AcpOptions
from dragoman.sdk.detection import AuthFinding, Billing, RenewingLogin, SelectedModel
from dragoman.sdk.fields import compact
from dragoman.sdk.spec import agent_spec
from msgspec.structs import replace


class QwenAdapter(AcpAdapter):
    """Runs Qwen Code."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run it."""
        return replace(super().plan(job), files={DEFAULTS_FILE: compact(DEFAULTS).encode()})

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
        """Return whether a provider is configured."""
        del executable
        return find_login(env)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own configuration selects."""
        return selected_model(env)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by its login."""
        return find_billing(env, report.provider)
