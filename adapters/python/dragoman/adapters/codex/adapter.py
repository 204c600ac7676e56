"""What the Codex adapter is."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from dragoman.adapters.codex.classify import failure_of_text
from dragoman.adapters.codex.device_login import METHOD, log_in
from dragoman.adapters.codex.login import (
    default_model,
    find_billing,
    find_login,
    read_config,
    renewing_login,
    selected_model,
)
from dragoman.adapters.codex.parse import AppServerParser
from dragoman.adapters.codex.plan import BYPASS, plan_run
from dragoman.adapters.codex.quota import read_quota
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import CommandLineAdapter, Evidence, FailureInfo, Job, Parser, Plan, Report, Settings
from dragoman.sdk.account import Steps, log_in_by, quota_by
from dragoman.sdk.detection import (
    AuthFinding,
    Billing,
    Checks,
    RenewingLogin,
    SelectedModel,
    probe,
)
from dragoman.sdk.fields import JsonValue, as_bool, objects, parse_json_object, text
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MODELS_LIMIT_S: Final = 10.0
_MOST_MODEL_BYTES: Final = 8 * 1024 * 1024
_SANDBOX_LIMIT_S: Final = 8.0


class CodexAdapter(CommandLineAdapter):
    """Runs Codex."""

    spec = agent_spec(__package__)

    def plan(self, job: Job) -> Plan:
        """Return how to run Codex."""
        return plan_run(job, self.spec.version)

    def parser(self, job: Job) -> Parser:
        """Return the parser of its output."""
        return AppServerParser(job, self.spec.version)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return what a run failed of that ended without its turn's end; else what the parser reports stands."""
        if evidence.report.terminal is not None:
            return None
        return failure_of_text(evidence.stderr_tail, resumed=evidence.resumed)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield the values that Codex would read as something else."""
        del settings
        for index, server in enumerate(request.mcp_servers):
            if server.name and _SERVER_NAME.fullmatch(server.name) is None:
                yield FieldViolation(f"mcp_servers[{index}].name", "must be at most 64 letters, digits, '_' and '-'")

    def renewing_login(self, job: Job, env: Mapping[str, str]) -> RenewingLogin | None:
        """Return the stored login that would be used, if it is one that the agent renews."""
        del job
        return renewing_login(env)

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether it is logged in."""
        return await find_login(executable, {key: value for key, value in env.items() if key not in self.spec.strip})

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's ``config.toml`` selects."""
        return selected_model(read_config(env))

    def billing(self, env: Mapping[str, str], report: Report) -> Billing:
        """Return who pays how, by its login."""
        del report
        return find_billing(env)

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the models that this Codex offers; without one, those known here. Uses no network."""
        env = {**os.environ, **request.env}
        found = await self.look(env, {})
        if found.executable:
            command = [found.executable, "debug", "models", "--bundled"]
            answer = await probe(command, env, _MODELS_LIMIT_S, _MOST_MODEL_BYTES)
            listed = parse_json_object(answer.stdout.encode()) if answer.exit_code == 0 else None
            models = [model for model in objects(listed or {}, "models") if text(model, "visibility") == "list"]
            if models:
                response = adapter_pb2.ListModelsResponse(source=adapter_pb2.MODEL_SOURCE_AGENT)
                default = default_model(read_config(env), models)
                for model in models:
                    slug = text(model, "slug")
                    response.models.add(id=slug, label=text(model, "display_name"), is_default=slug == default)
                response.listed_at.GetCurrentTime()
                return response
        return await super().list_models(request)

    async def get_quota(self, request: adapter_pb2.GetQuotaRequest) -> adapter_pb2.GetQuotaResponse:
        """Ask the account's service, by Codex, how much of its rate limits is used."""
        return await quota_by(self.spec, request, read_quota, renewing_login, self.login_locks)

    def log_in(self, request: adapter_pb2.LoginRequest) -> Steps:
        """Log Codex in with a device code."""
        return log_in_by(self.spec, request, METHOD, log_in, renewing_login, self.login_locks)

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the program can be used, and that its sandbox works here."""
        await super().check_agent(env, config, checks)
        if as_bool(config.get(BYPASS), False):
            message = "Codex is set to ask no questions and to have no sandbox."
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
