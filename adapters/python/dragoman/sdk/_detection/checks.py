"""Checks of an agent, by what was found of it. TestEnvironment reports them."""

import time
from collections.abc import Mapping

from dragoman.sdk._detection.agent import config_dir
from dragoman.sdk._encoding.config import as_string
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._output.outcome import ARGUMENTS_HINT, has_arguments
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

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
    if not found.executable and not command and not spec.executables:
        hint = "Name a program on PATH, or give its absolute path; on the command line: `--config command=NAME`."
        checks.add(_ERROR, "command_not_found", "No command is configured in config.command.", hint=hint)
        return
    if not found.executable:
        what = command or " or ".join(spec.executables)
        hint = spec.install_hint if not command else "Install it, or set config.command to its absolute path."
        hint = ARGUMENTS_HINT if has_arguments(command) else hint
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
