"""What the Copilot adapter is."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman.adapters.copilot.classify import failure_of_text
from dragoman.adapters.copilot.device_login import METHOD, log_in
from dragoman.adapters.copilot.parse import CopilotParser
from dragoman.adapters.copilot.plan import PROVIDER_VARIABLES, plan_run, session_options
from dragoman.adapters.copilot.quota import read_quota
from dragoman.sdk import CommandLineAdapter, Evidence, FailureInfo, Job, Parser, Plan, Report
from dragoman.sdk.account import Steps, log_in_by, quota_by
from dragoman.sdk.detection import AuthFinding, Billing, Checks, SelectedModel, key_billing, stored_object
from dragoman.sdk.fields import JsonValue, objects, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

TOKENS: Final = ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
"""Variables with a login, the first that is set wins."""


class CopilotAdapter(CommandLineAdapter):
    """Runs GitHub Copilot CLI."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run Copilot."""
        return plan_run(job)

    def parser(self, job: Job) -> Parser:
        """Return the parser of its messages."""
        inherited = {name: os.environ[name] for name in PROVIDER_VARIABLES if name in os.environ}
        return CopilotParser(job, session_options(job, {**inherited, **job.requested_env}))

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what a run failed of that ended before its session did; else what the parser reports stands."""
        if evidence.report.terminal is not None:
            return None
        failure = failure_of_text(evidence.stderr_tail, resumed=evidence.resumed)
        return failure or failure_of_text(evidence.stdout_tail, resumed=evidence.resumed)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether Copilot is logged in, by its files and variables: it has no command for that."""
        del executable
        return find_login(env)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own configuration selects."""
        return selected_model(env)

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by its login."""
        return find_billing(env, report)

    async def get_quota(self, request: adapter_pb2.GetQuotaRequest) -> adapter_pb2.GetQuotaResponse:
        """Ask GitHub, by Copilot, how much of a plan is used."""
        return await quota_by(self.spec, request, read_quota)

    def log_in(self, request: adapter_pb2.LoginRequest) -> Steps:
        """Log Copilot in with a device code."""
        return log_in_by(self.spec, request, METHOD, log_in)

    def extra_checks(self, config: Mapping[str, JsonValue], env: Mapping[str, str], checks: Checks) -> None:
        """Add the checks that only this adapter makes."""
        del config
        url = env.get("COPILOT_PROVIDER_BASE_URL")
        if url:
            message = "COPILOT_PROVIDER_BASE_URL is set: the model is not GitHub's, and the login is not used."
            checks.add(pb.SEVERITY_INFO, "own_model", message, detail=url.rpartition("@")[2])
            if not env.get("COPILOT_MODEL"):
                message = "With a model of your own each run must name it, as `model` or in COPILOT_MODEL."
                checks.add(pb.SEVERITY_INFO, "model_needed", message)


def find_login(env: Mapping[str, str]) -> AuthFinding:
    """Return whether Copilot is logged in, as it would see it with this environment.

    If a key ring holds the token, the config file still names the user who has logged in.
    """
    if env.get("COPILOT_PROVIDER_BASE_URL"):
        return AuthFinding(adapter_pb2.AUTH_STATE_OK, "own_model")
    if any(env.get(name) for name in TOKENS):
        return AuthFinding(adapter_pb2.AUTH_STATE_OK, "token")
    config = stored_object(CopilotAdapter.spec, env, "config.json")
    if any(text(user, "login") for user in objects(config, "loggedInUsers") or objects(config, "logged_in_users")):
        return AuthFinding(adapter_pb2.AUTH_STATE_OK, "github", subscription=True)
    gh = Path(env.get("GH_CONFIG_DIR") or Path(env.get("HOME") or Path.home()) / ".config" / "gh") / "hosts.yml"
    if gh.is_file():  # Copilot gets its token from `gh`, and only `gh` knows whether it has one
        return AuthFinding(adapter_pb2.AUTH_STATE_UNKNOWN)
    return AuthFinding(adapter_pb2.AUTH_STATE_MISSING)


def selected_model(env: Mapping[str, str]) -> SelectedModel:
    """Return what the variables and the user's own files select; a variable goes before the files."""
    spec = CopilotAdapter.spec
    files = (stored_object(spec, env, name) for name in ("settings.json", "config.json"))
    model = env.get("COPILOT_MODEL") or next(filter(None, (text(stored, "model") for stored in files)), "")
    if env.get("COPILOT_PROVIDER_BASE_URL"):
        return SelectedModel(model, env.get("COPILOT_PROVIDER_TYPE") or "openai")
    return SelectedModel(model, "github" if model else "")


def find_billing(env: Mapping[str, str], report: Report) -> Billing:
    """Return who pays how: by key for a model of the user's own, else by GitHub's plan, with any token."""
    if env.get("COPILOT_PROVIDER_BASE_URL"):
        return key_billing(CopilotAdapter.spec.api_key_variables, env, report.provider)
    return Billing(pb.BILLING_TYPE_SUBSCRIPTION, "github")
