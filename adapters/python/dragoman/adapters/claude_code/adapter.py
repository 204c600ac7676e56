"""What the Claude Code adapter is."""

import os
from collections.abc import Iterator, Mapping

from dragoman.adapters.claude_code.browser_login import METHOD, log_in
from dragoman.adapters.claude_code.checks import set_up_checks
from dragoman.adapters.claude_code.classify import failure_of_text
from dragoman.adapters.claude_code.login import find_billing, find_login, renewing_login, selected_model
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.adapters.claude_code.plan import plan_run
from dragoman.adapters.claude_code.quota import read_quota
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import CommandLineAdapter, Evidence, FailureInfo, Job, Parser, Plan, Report, Settings, rules
from dragoman.sdk.account import Steps, log_in_by, quota_by
from dragoman.sdk.detection import AuthFinding, Billing, Checks, RenewingLogin, SelectedModel
from dragoman.sdk.fields import JsonValue, as_string
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2


class ClaudeCodeAdapter(CommandLineAdapter):
    """Runs Claude Code."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run Claude Code."""
        return plan_run(job)

    def parser(self, job: Job) -> Parser:
        """Return the parser of its output."""
        return ClaudeParser(
            resumes=job.session.resumes,
            names_frames=job.request.include_native,
            run_id=job.run_id,
            version=job.version,
        )

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what a run failed of that ended without a ``result``; else what the parser reports stands."""
        if evidence.report.terminal is not None:
            return None
        failure = failure_of_text(evidence.stderr_tail, resumed=evidence.resumed)
        return failure or failure_of_text(evidence.stdout_tail, resumed=evidence.resumed)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield the values that Claude Code would read as something else."""
        del request
        fallback = as_string(settings.config.get("fallbackModel"), "")
        yield from rules.read_as_options({"config.fallbackModel": fallback})

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        """Return the stored login that would be used, if it is one that the agent renews."""
        del job
        return renewing_login(env)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether it is logged in."""
        return await find_login(executable, {key: value for key, value in env.items() if key not in self.spec.strip})

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own configuration selects."""
        return selected_model(env)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, if its output did not show it: it does only with a key, or near a limit."""
        del report
        return find_billing(env)

    def extra_checks(self, config: Mapping[str, JsonValue], env: Mapping[str, str], checks: Checks) -> None:
        """Add the checks that only this adapter makes."""
        set_up_checks(config, env, checks, is_root=os.geteuid() == 0)

    async def get_quota(self, request: adapter_pb2.GetQuotaRequest) -> adapter_pb2.GetQuotaResponse:
        """Ask Anthropic, by Claude Code, how much of a claude.ai plan's rate limits is used."""
        return await quota_by(self.spec, request, read_quota, renewing_login, self.login_locks)

    def log_in(self, request: adapter_pb2.LoginRequest) -> Steps:
        """Log Claude Code in with a browser on its machine."""
        return log_in_by(self.spec, request, METHOD, log_in, renewing_login, self.login_locks)
