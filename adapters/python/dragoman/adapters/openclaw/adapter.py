"""What the OpenClaw adapter is."""

import asyncio
from collections.abc import Mapping
from typing import Final

from dragoman.adapters.openclaw import plan, ws_bridge
from dragoman.adapters.openclaw.classify import failure_of
from dragoman.adapters.openclaw.environment import (
    config_file,
    read_setting,
    run_file,
    selected_model,
    tool_environment,
)
from dragoman.adapters.openclaw.gateway import Gateway, Gateways
from dragoman.adapters.openclaw.parse import OpenClawParser
from dragoman.adapters.openclaw.status import read_auth, read_models
from dragoman.sdk import (
    CommandLineAdapter,
    Evidence,
    FailureError,
    FailureInfo,
    Job,
    Parser,
    Plan,
    Report,
)
from dragoman.sdk.detection import AuthFinding, SelectedModel
from dragoman.sdk.fields import read_json_object
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_MARKER: Final = "DRAGOMAN_RUN_MARKER"
"""The variable that marks all programs of a run."""
_WAIT_MS: Final = 5000
_LONGER_WAIT_MS: Final = 9000
"""For a turn that was found and aborted."""


class OpenClawAdapter(CommandLineAdapter):
    """Runs OpenClaw by way of a gateway that stays warm."""

    spec = agent_spec(__package__)

    def __init__(self) -> None:
        self._gateways = Gateways()
        self._in_use: dict[str, Gateway] = {}

    def plan(self, job: Job) -> Plan:
        """Return how to run OpenClaw."""
        return plan.plan_run(job)

    def parser(self, job: Job) -> Parser:
        """Return the parser of the gateway's frames."""
        return OpenClawParser(job)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Return why the bridge lost the gateway; what the parser reports stands."""
        if evidence.report.terminal is not None or not evidence.stderr_tail.strip():
            return None
        failure = failure_of(evidence.stderr_tail.strip(), {})
        if failure.kind != pb.FAILURE_KIND_PROCESS_CRASHED:
            return failure
        return FailureInfo(failure.kind, f"The gateway was lost: {failure.message}", code="openclaw_gateway_lost")

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Start a gateway or share one, and give its plugin the run's settings.

        Raises:
            FailureError: there is no OpenClaw, or its gateway cannot be started.
        """
        if not job.executable.startswith("/"):
            message = f"{job.executable} was not found on the run's PATH. {self.spec.install_hint}"
            raise FailureError(FailureInfo(pb.FAILURE_KIND_NOT_INSTALLED, message, code="command_not_found"))
        setting = await asyncio.to_thread(read_setting, job.executable, env)
        gateway = await self._gateways.acquire(setting)
        self._in_use[job.run_id] = gateway
        await gateway.begin_run(env.get(_MARKER, ""))
        own = tool_environment(setting, env)
        asks = not job.permissions.auto_approve
        gateway.folder.write_run(run_file(plan.session_key(job)), {"asks": asks, "env": dict(own)})
        return {ws_bridge.PORT_VARIABLE: str(gateway.port), ws_bridge.TOKEN_VARIABLE: gateway.token}

    def startup_reason(self, job: Job) -> str:
        """Return what ``prepare`` waits for."""
        del job
        return "OpenClaw's gateway to answer (later runs share it)"

    async def finish(self, job: Job, env: Mapping[str, str], report: Report) -> bool:
        """Stop what the run left in its gateway, which stays warm."""
        gateway = self._in_use.pop(job.run_id, None)
        if gateway is None:
            return True
        has_stopped = is_gone = False
        try:
            has_stopped = report.terminal is not None or await _stop(gateway, job)
        finally:
            gateway.folder.remove_run(run_file(plan.session_key(job)))
            await gateway.ask("dragoman.leave", {"sessionKey": plan.session_key(job)})
            is_gone = await self._gateways.release(gateway, env.get(_MARKER, ""), has_stopped=has_stopped)
        return is_gone

    async def close(self) -> None:
        """End the gateways."""
        await self._gateways.close()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Return whether the model's provider has a key or a login."""
        return await read_auth(executable, env, self.spec.api_key_variables)

    def selected_model(self, env: Mapping[str, str]) -> SelectedModel:
        """Return what the user's own configuration selects: a provider, a slash, and its model."""
        return selected_model(read_json_object(config_file(env)))

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the models that the user's configuration names."""
        return await read_models(self, request)


async def _stop(gateway: Gateway, job: Job) -> bool:
    """Stop a turn whose bridge is gone, and return whether it has ended."""
    key, run = plan.session_key(job), plan.run_key(job)
    aborted = await gateway.ask("sessions.abort", {"key": key, "runId": run})
    was_there = aborted.get("status") == "aborted"
    wait_ms = _LONGER_WAIT_MS if was_there else _WAIT_MS
    ended = await gateway.ask("agent.wait", {"runId": run, "timeoutMs": wait_ms})
    if ended.get("status") == "timeout" and ended.get("endedAt") is None:
        return aborted.get("status") == "no-active-run"  # the wait timed out; a turn that never began needs no end
    return ended.get("status") in {"ok", "error", "timeout"}
