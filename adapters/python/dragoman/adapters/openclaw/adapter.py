"""What the OpenClaw adapter is."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Final

import psutil
from dragoman.adapters.openclaw import local, plan, relay
from dragoman.adapters.openclaw.classify import LOGIN_HINT, failure_of
from dragoman.adapters.openclaw.gateway import Gateway, Gateways
from dragoman.adapters.openclaw.parse import OpenClawParser
from dragoman.adapters.openclaw.setting import (
    INHERITED,
    STATE_DIR,
    STATE_VARIABLE,
    read_setting,
    run_file,
    tool_environment,
)
from dragoman.adapters.openclaw.status import read_auth, read_models
from dragoman.protocol.errors import FieldViolation
from dragoman.sdk import (
    AdapterInfo,
    AuthFinding,
    CommandLineAdapter,
    Evidence,
    FailureError,
    FailureInfo,
    Job,
    Parser,
    Plan,
    Report,
    Settings,
    capabilities,
    is_uuid,
    rules,
    shipped_documents,
)
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

VERSION: Final = "1.0.0"
TESTED_VERSION: Final = "2026.9.6"
"""The version whose protocol this adapter was written for and is tested with."""

MODES: Final = ("read-only", "guarded", "workspace", "full")
"""OpenClaw's own permission modes."""

_MARKER: Final = "DRAGOMAN_RUN_MARKER"
"""The variable by which all programs of a run are known."""
_WAIT_MS: Final = 5000
_LONGER_WAIT_MS: Final = 9000
"""For a turn that is there, and was told to end."""


class OpenClawAdapter(CommandLineAdapter):
    """Runs OpenClaw by way of a gateway that stays warm."""

    executables: ClassVar[tuple[str, ...]] = ("openclaw",)
    linger_s: ClassVar[float] = 30.0
    """Without a gateway it still tidies its memory when it has said all."""
    native_protocol: ClassVar[str] = "openclaw-gateway-4"
    inherit: ClassVar[Collection[str]] = INHERITED
    config_dir_name: ClassVar[str] = STATE_DIR
    config_dir_variable: ClassVar[str] = STATE_VARIABLE
    skills_dir_name: ClassVar[str] = "skills"
    api_key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
    login_hint: ClassVar[str] = LOGIN_HINT
    install_hint: ClassVar[str] = "Install it with `npm install -g openclaw` on Node.js 24."

    def __init__(self) -> None:
        self._gateways = Gateways()
        self._taken: dict[str, Gateway] = {}

    def info(self) -> AdapterInfo:
        """Say what the adapter is."""
        return AdapterInfo(
            type="openclaw",
            label="OpenClaw",
            version=VERSION,
            aliases=("openclaw_local", "openclaw_gateway", "openclaw-gateway"),
            **shipped_documents(__package__),
            capabilities=_capabilities(),
        )

    def plan(self, job: Job) -> Plan:
        """Say how to run OpenClaw."""
        return local.plan_local(job) if local.is_local(job.config) else plan.plan_run(job)

    def parser(self, job: Job) -> Parser:
        """Return what understands the gateway, or the program without one."""
        return local.LocalParser(job) if local.is_local(job.config) else OpenClawParser(job)

    def classify(self, evidence: Evidence) -> FailureInfo | None:
        """Say what it means that the relay had to give up; what OpenClaw says of itself stands."""
        if evidence.report.terminal is not None or not evidence.stderr_tail.strip():
            return None
        if isinstance(evidence.report, local.LocalReport):
            return None
        said = failure_of(evidence.stderr_tail.strip(), {})
        if said.kind != pb.FAILURE_KIND_PROCESS_CRASHED:
            return said
        return FailureInfo(said.kind, f"The gateway was lost: {said.message}", code="openclaw_gateway_lost")

    def is_session_id(self, text: str) -> bool:
        """Tell whether ``text`` is a UUID. OpenClaw itself takes anything for an id, and begins anew."""
        return is_uuid(text, lower_case=True)

    def wrong_fields(self, request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
        """Yield what would be passed over, or reach OpenClaw as something else."""
        yield from rules.blank_prompt(request)
        yield from rules.native_mode(settings.permissions, MODES)
        if local.is_local(settings.config):
            yield from _not_local(request, settings)

    async def prepare(self, job: Job, env: Mapping[str, str]) -> Mapping[str, str]:
        """Have a gateway that is well, and tell its plugin of the run.

        Raises:
            FailureError: there is no OpenClaw, or its gateway cannot be started.
        """
        if not job.executable.startswith("/"):
            message = f"{job.executable} was not found. {self.install_hint}"
            raise FailureError(FailureInfo(pb.FAILURE_KIND_NOT_INSTALLED, message, code="command_not_found"))
        if local.is_local(job.config):
            return await local.prepare(job, env)
        setting = await asyncio.to_thread(read_setting, job.executable, env)
        gateway = await self._gateways.take(setting)
        self._taken[job.run_id] = gateway
        own = tool_environment(setting, env)
        asks = not job.permissions.auto_approve
        gateway.write_run(run_file(plan.session_key(job)), {"asks": asks, "env": dict(own)})
        return {relay.PORT_VARIABLE: str(gateway.port), relay.TOKEN_VARIABLE: gateway.token}

    async def finish(self, job: Job, env: Mapping[str, str], report: Report) -> bool:
        """Stop what the run still does in its gateway, which stays warm."""
        gateway = self._taken.pop(job.run_id, None)
        if gateway is None:
            return True
        try:
            stopped = report.terminal is not None or await _stop(gateway, job)
            swept = await asyncio.to_thread(sweep, env.get(_MARKER, ""))
            return stopped and swept
        finally:
            gateway.forget_run(run_file(plan.session_key(job)))
            await gateway.ask("dragoman.leave", {"sessionKey": plan.session_key(job)})
            await self._gateways.leave(gateway)

    async def close(self) -> None:
        """End the gateways."""
        await self._gateways.close()

    async def auth(self, executable: str, env: Mapping[str, str]) -> AuthFinding:
        """Say whether the model's provider has what it takes to be asked."""
        return await read_auth(executable, env)

    async def list_models(self, request: adapter_pb2.ListModelsRequest) -> adapter_pb2.ListModelsResponse:
        """List the models that the user's configuration names."""
        return await read_models(self, request)


def _not_local(request: adapter_pb2.ExecuteRequest, settings: Settings) -> Iterator[FieldViolation]:
    """Yield what cannot be had without a gateway."""
    asked = settings.permissions
    yield from rules.read_as_options({"model": settings.model})
    if asked.native_mode:
        yield FieldViolation("permissions.native_mode", "is not to be had with transport: local")
    allows = asked.default_decision == pb.PERMISSION_DECISION_ALLOW
    if (asked.rules or allows) and not asked.auto_approve:
        message = "cannot be kept with transport: local, where nothing can be asked; set permissions.auto_approve"
        yield FieldViolation("permissions", message)
    if request.session.fork:
        yield FieldViolation("session.fork", "is not to be had with transport: local")


async def _stop(gateway: Gateway, job: Job) -> bool:
    """Stop a turn whose relay is gone, and tell whether it has ended."""
    key, run = plan.session_key(job), plan.run_key(job)
    aborted = await gateway.ask("sessions.abort", {"key": key, "runId": run})
    was_there = aborted.get("status") == "aborted"
    wait_ms = _LONGER_WAIT_MS if was_there else _WAIT_MS
    ended = await gateway.ask("agent.wait", {"runId": run, "timeoutMs": wait_ms})
    if ended.get("status") == "timeout" and ended.get("endedAt") is None:
        return aborted.get("status") == "no-active-run"  # the wait was over; what never began needs no end
    return ended.get("status") in {"ok", "error", "timeout"}


def sweep(marker: str) -> bool:
    """End all programs that carry a run's marker, as tools may leave some; return whether all are gone."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker and process.environ().get(_MARKER) == marker:
                process.kill()
                found.append(process)
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(found, timeout=3)
    return not alive


def _capabilities() -> pb.Capabilities:
    return capabilities(
        *(pb.FEATURE_PROMPT, pb.FEATURE_WORKSPACE, pb.FEATURE_AUTH_TOKEN),
        *(pb.FEATURE_TEXT_DELTAS, pb.FEATURE_THINKING, pb.FEATURE_TOOL_START),
        *(pb.FEATURE_FILE_CHANGES, pb.FEATURE_SURGICAL_EDIT, pb.FEATURE_COST, pb.FEATURE_PERMISSION_REQUESTS),
        *(pb.FEATURE_RESUME, pb.FEATURE_RESUME_REJECTION, pb.FEATURE_FORK, pb.FEATURE_COMPACTION),
        *(pb.FEATURE_SKILLS, pb.FEATURE_INSTRUCTIONS, pb.FEATURE_SYSTEM_PROMPT, pb.FEATURE_MODEL_CHOICE),
        resume=pb.RESUME_STYLE_SPECIFY,
        permission_mode=pb.PERMISSION_MODE_STRICT,
        cancel=pb.CANCEL_STYLE_NATIVE,
        notes={
            pb.FEATURE_FILE_CHANGES: "of its file tools; not what shell commands change",
            pb.FEATURE_COST: "if the configuration has the model's prices",
            pb.FEATURE_PERMISSION_REQUESTS: "of all tools that change anything, by a plugin in the adapter's own"
            " gateway; of sub-agents they are refused",
            pb.FEATURE_SYSTEM_PROMPT: "put behind OpenClaw's own",
            pb.FEATURE_SKILLS: "as text in the system prompt",
        },
    )
