"""TestEnvironment: what is wrong with a set-up, as checks with stable codes.

Levels are Paperclip's: an *error* is a set-up that cannot work, a *warning* never blocks anything (an API key in
the environment is one: it works, and it is billed), *info* is what was found in order.
"""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dragoman.protocol.errors import DragomanError
from dragoman.sdk._detection.agent import config_dir
from dragoman.sdk._encoding.config import ConfigSchema, as_object, as_string
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._encoding.protobuf import seconds, struct_to_dict
from dragoman.sdk._request.workspace import check_cwd
from dragoman.sdk._run.run import Run
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

_DEFAULT_LIVE_S = 60.0

_INFO, _WARNING, _ERROR = event_pb2.SEVERITY_INFO, event_pb2.SEVERITY_WARNING, event_pb2.SEVERITY_ERROR


class Checks:
    """Collects checks and times them."""

    def __init__(self) -> None:
        self.items: list[pb.EnvironmentCheck] = []
        self._began = time.monotonic()

    @property
    def has_error(self) -> bool:
        """Whether any check so far is an error."""
        return any(item.level == _ERROR for item in self.items)

    def add(
        self, level: event_pb2.Severity.ValueType, code: str, message: str, *, hint: str = "", detail: str = ""
    ) -> None:
        """Add a check; its duration is the time since the one before."""
        now = time.monotonic()
        check = pb.EnvironmentCheck(code=code, level=level, message=message, hint=hint, detail=detail)
        check.duration.FromNanoseconds(int((now - self._began) * 1e9))
        self._began = now
        self.items.append(check)


class CheckableAgent(Protocol):
    """What the checks need of an adapter; ``AgentAdapter`` says what each member means."""

    @property
    def spec(self) -> AgentSpec:
        """What the adapter declares."""
        ...

    @property
    def schema(self) -> ConfigSchema:
        """The schema of ``config``."""
        ...

    def accept(self, request: pb.ExecuteRequest) -> Any:
        """Check a request."""
        ...

    async def execute(self, run: Run) -> event_pb2.Result:
        """Do one run."""
        ...

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> pb.Detection:
        """Look for the agent."""
        ...

    async def check_agent(self, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks) -> None:
        """Check that the agent can be used."""
        ...

    def extra_checks(self, config: Mapping[str, JsonValue], env: Mapping[str, str]) -> Iterable[pb.EnvironmentCheck]:
        """Yield checks that only this agent knows."""
        ...


async def check_environment(adapter: CheckableAgent, request: pb.TestEnvironmentRequest) -> list[pb.EnvironmentCheck]:
    """Make all checks, the LIVE one last and only if no other failed."""
    checks = Checks()
    config = _check_config(adapter, request, checks)
    cwd = request.workspace.cwd or as_string(config.get("cwd"), "")
    if adapter.spec.has(event_pb2.FEATURE_WORKSPACE):
        _check_cwd(cwd, checks)
    requested = {**_string_values(config.get("env")), **request.env}
    env = {**os.environ, **requested}
    await adapter.check_agent(env, config, checks)
    if not any(item.code == "api_key_withheld" for item in checks.items):
        _check_api_keys(adapter, env, requested, checks)
    checks.items += adapter.extra_checks(config, env)
    if request.mode == pb.TEST_MODE_LIVE:
        if checks.has_error:
            checks.add(_INFO, "live_skipped", "The live turn was not tried, as a check before it failed.")
        else:
            await _check_live(adapter, request, checks)
    return checks.items


def _check_config(
    adapter: CheckableAgent, request: pb.TestEnvironmentRequest, checks: Checks
) -> dict[str, JsonValue]:
    try:
        config = struct_to_dict(request.config)
    except DragomanError as error:
        checks.add(_ERROR, "config_invalid", error.message)
        return {}
    problems = adapter.schema.validate(config)
    for problem in problems:
        checks.add(_ERROR, "config_invalid", f"{problem.path}: {problem.message}", hint=problem.hint or "")
    if not problems:
        checks.add(_INFO, "config_valid", "The configuration fits the schema.")
    return config


def _check_cwd(cwd: str, checks: Checks) -> None:
    problem = check_cwd(cwd or None)
    if problem is None:
        checks.add(_INFO, "cwd_usable", f"The working directory is {cwd}.")
    else:
        checks.add(_ERROR, problem.code, problem.message, hint=problem.hint)


def check_agent(spec: AgentSpec, found: pb.Detection, checks: Checks) -> None:
    """Check an agent that is no program: is it there, and is one logged in."""
    if found.available:
        checks.add(_INFO, "agent_available", found.message)
    else:
        checks.add(_ERROR, "agent_unavailable", found.message, hint=found.hint)
    _check_finding(spec, found, checks)


def check_program(
    spec: AgentSpec, found: pb.Detection, env: Mapping[str, str], config: Mapping[str, JsonValue], checks: Checks
) -> None:
    """Check an agent that is a program: is it there, does it start, is one logged in."""
    command = as_string(config.get("command"), "")
    if not found.executable:
        what = command or " or ".join(spec.executables) or "config.command"
        hint = spec.install_hint if not command else "Install it, or set config.command to its absolute path."
        checks.add(_ERROR, "command_not_found", f"{what} was not found on the run's PATH.", hint=hint)
        return
    checks.add(_INFO, "command_found", f"The executable is {found.executable}.", detail=found.version)
    _check_finding(spec, found, checks)
    directory = config_dir(spec, env)
    if directory is not None and not directory.is_dir():
        checks.add(_INFO, "config_dir_absent", f"There is no {directory} yet; the agent makes it when first used.")


def _check_finding(spec: AgentSpec, found: pb.Detection, checks: Checks) -> None:
    for problem in found.problems:
        level = _ERROR if problem.code == "executable_broken" else _WARNING
        checks.add(level, problem.code, problem.message, hint=problem.hint)
    _check_auth(spec, found, checks)


def _check_auth(spec: AgentSpec, found: pb.Detection, checks: Checks) -> None:
    if found.auth == pb.AUTH_STATE_OK:
        checks.add(_INFO, "auth_ok", "The agent is logged in.", detail=found.auth_method)
    elif found.auth == pb.AUTH_STATE_MISSING:
        checks.add(_ERROR, "auth_missing", "The agent is not logged in.", hint=spec.login_hint)
    elif found.auth == pb.AUTH_STATE_EXPIRED:
        message = "The agent's login has expired; it may be able to renew it by itself."
        checks.add(_WARNING, "auth_expired", message, hint=spec.login_hint)
    elif found.auth == pb.AUTH_STATE_UNKNOWN:
        checks.add(_INFO, "auth_unknown", "Whether the agent is logged in cannot be determined without a live turn.")


def _check_api_keys(
    adapter: CheckableAgent, env: Mapping[str, str], requested: Mapping[str, str], checks: Checks
) -> None:
    for name in adapter.spec.api_key_variables:
        if not env.get(name):
            continue
        where = "the request" if name in requested else "the adapter's own environment"
        checks.add(
            _WARNING,
            "api_key_in_environment",
            f"{name} is set in {where}: runs use and bill that key instead of a subscription login.",
            hint=f"Unset {name} if the subscription is meant. This blocks nothing.",
        )


async def _check_live(adapter: CheckableAgent, request: pb.TestEnvironmentRequest, checks: Checks) -> None:
    """Have one tiny real turn in a neutral directory; the answer must echo a nonce that it cannot guess."""
    nonce = f"dragoman-{secrets.token_hex(6)}"
    neutral = Path(tempfile.mkdtemp(prefix="dragoman-live-"))
    try:
        execute = pb.ExecuteRequest(
            run_id=f"live-{secrets.token_hex(8)}",
            adapter=adapter.spec.type,
            prompt=f"Reply with exactly: {nonce}",
            config=request.config,
            env=request.env,
            model=request.model,
        )
        execute.workspace.cwd = str(neutral)
        limit = seconds(request.timeout) if request.HasField("timeout") else _DEFAULT_LIVE_S
        execute.limits.wall.FromNanoseconds(int(limit * 1e9))
        execute.limits.grace.FromSeconds(2)
        result, text = await _run_once(adapter, execute)
    except DragomanError as error:
        checks.add(_ERROR, "live_refused", str(error))
        return
    finally:
        shutil.rmtree(neutral, ignore_errors=True)
    if result.outcome != event_pb2.OUTCOME_SUCCEEDED:
        kind = event_pb2.FailureKind.Name(result.failure.kind).removeprefix("FAILURE_KIND_")
        checks.add(_ERROR, "live_failed", result.failure.message or "The live turn failed.", detail=kind)
    elif nonce not in text:
        checks.add(_ERROR, "live_no_echo", "The agent answered, but not with the word it was asked for.")
    else:
        checks.add(_INFO, "live_ok", "The agent answered a live turn.", detail=result.model)


async def _run_once(adapter: CheckableAgent, request: pb.ExecuteRequest) -> tuple[event_pb2.Result, str]:
    run = Run(request, adapter.accept(request), adapter=adapter.spec.type, instance_id="")
    result = await adapter.execute(run)
    run.finish(result)
    parts = [result.summary]
    reader = run.event_buffer.reader()  # only now: the turn is read once it is over
    while chunk := await reader.read():
        events = [event_pb2.AgentEvent.FromString(data) for data in chunk]
        parts += [event.text.delta + event.text.whole + event.log.text for event in events]
    return result, "".join(parts)


def _string_values(value: JsonValue) -> dict[str, str]:
    return {key: item for key, item in as_object(value, {}).items() if isinstance(item, str)}
