"""Finding a command-line agent on this machine: two signals, its version, its login. Bounded in time."""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.sdk._detection import find_executable, parse_version, probe
from dragoman.sdk._login import AUTH_LIMIT_S, AuthFinding, inherited_keys, keys_to_withhold, withheld_message
from dragoman.v1 import adapter_pb2 as pb

if TYPE_CHECKING:  # the two know each other; only one can import the other at run time
    from dragoman.sdk._command_line import CommandLineAdapter

VERSION_LIMIT_S = 5.0
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Located:
    """An agent's executable and version."""

    executable: str
    """Absolute. Empty if not found."""
    version: str
    """Empty if unknown."""
    problems: tuple[pb.DetectionProblem, ...] = ()


class Versions:
    """Remembers versions by executable, size and time of change, so that a run does not ask again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    async def ask(
        self, executable: Path, env: Mapping[str, str], elsewhere: Sequence[str] = ()
    ) -> tuple[str, pb.DetectionProblem | None]:
        """Return the version, and what was wrong with asking.

        Args:
            executable: the agent.
            env: the variables that it gets.
            elsewhere: those of them that lead to a directory of its own meanwhile, which is removed.
        """
        status = executable.stat()
        key = (str(executable), status.st_mtime_ns, status.st_size)
        if key in self._known:
            return self._known[key], None
        with tempfile.TemporaryDirectory(prefix="dragoman-ask-", ignore_cleanup_errors=True) as away:
            moved = {**env, **dict.fromkeys(elsewhere, away)}
            result = await probe([str(executable), "--version"], moved, VERSION_LIMIT_S, _PROBE_BYTES)
        if result.timed_out:
            return "", pb.DetectionProblem(
                code="version_timeout",
                message=f"`{executable.name} --version` did not answer within {VERSION_LIMIT_S:.0f} s.",
                hint="Run it by hand; it may wait for something. Runs may still work.",
            )
        if result.exit_code is None or result.exit_code in {126, 127}:
            return "", pb.DetectionProblem(
                code="executable_broken",
                message=f"{executable} cannot be started{f' ({result.error})' if result.error else ''}.",
                hint="It may be a left-over of an old installation; install it again.",
            )
        version = parse_version(result.stdout) or parse_version(result.stderr) or ""
        if not version:
            return "", pb.DetectionProblem(
                code="version_unknown",
                message=f"`{executable.name} --version` exited with code {result.exit_code} and named no version.",
                hint="Run it by hand to see what is wrong.",
            )
        self._known[key] = version
        return version, None


async def locate(adapter: "CommandLineAdapter", env: Mapping[str, str], command: str) -> Located:
    """Look for the executable and ask for its version."""
    found = find_executable(adapter.executables, env.get("PATH", ""), [command] if command else [], [])
    if found is None:
        return Located("", "")
    version, problem = (
        await adapter.versions.ask(found, env, adapter.tidy_variables) if adapter.asks_version else ("", None)
    )
    return Located(str(found), version, (problem,) if problem is not None else ())


def config_dir(adapter: "CommandLineAdapter", env: Mapping[str, str]) -> Path | None:
    """Return the agent's config directory, whether or not it exists; None if it has none."""
    if adapter.config_dir_variable and env.get(adapter.config_dir_variable):
        return Path(env[adapter.config_dir_variable])
    if not adapter.config_dir_name:
        return None
    return Path(env.get("HOME") or os.path.expanduser("~")) / adapter.config_dir_name  # noqa: PTH111 - a default


async def detect_agent(adapter: "CommandLineAdapter", env: Mapping[str, str], command: str) -> pb.Detection:
    """Look for the agent and say what was found, what is wrong, and how to mend it."""
    info = adapter.describe()
    if not adapter.executables and not command:
        return pb.Detection(
            available=True,
            auth=pb.AUTH_STATE_NOT_NEEDED,
            confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE,
            capabilities=info.capabilities,
            message=f"{info.label} runs the command that config.command names.",
        )
    located = await locate(adapter, env, command)
    directory = config_dir(adapter, env)
    has_directory = directory is not None and directory.is_dir()
    found = pb.Detection(
        executable=located.executable,
        version=located.version,
        problems=located.problems,
        capabilities=info.capabilities,
    )
    found.available = bool(located.executable) and not any(
        problem.code == "executable_broken" for problem in located.problems
    )
    if directory is not None and has_directory:
        found.config_dir = str(directory)
        skills = directory / adapter.skills_dir_name
        found.skills_dir = str(skills) if adapter.skills_dir_name and skills.is_dir() else ""
    found.confidence = _confidence(bool(located.executable), has_directory)
    await _add_auth(adapter, found, env)
    _explain(adapter, found)
    return found


def _confidence(has_executable: bool, has_directory: bool) -> pb.DetectionConfidence.ValueType:
    if has_executable:
        return pb.DETECTION_CONFIDENCE_CONFIDENT if has_directory else pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY
    return pb.DETECTION_CONFIDENCE_CONFIG_ONLY if has_directory else pb.DETECTION_CONFIDENCE_ABSENT


async def _add_auth(adapter: "CommandLineAdapter", found: pb.Detection, env: Mapping[str, str]) -> None:
    if not found.available:
        # The seeds' rule: one signal alone means the login is to be done.
        if found.confidence == pb.DETECTION_CONFIDENCE_CONFIG_ONLY:
            found.auth = pb.AUTH_STATE_MISSING
        return
    keys = inherited_keys(adapter.api_key_variables, env, os.environ, ())
    withheld, auth = await keys_to_withhold(keys, env, partial(adapter.auth, found.executable))
    if withheld:
        found.problems.add(code="api_key_withheld", message=withheld_message(withheld))
    if auth is None:
        try:
            auth = await asyncio.wait_for(adapter.auth(found.executable, env), AUTH_LIMIT_S)
        except TimeoutError:
            auth = AuthFinding(pb.AUTH_STATE_UNKNOWN)
            found.problems.add(code="auth_timeout", message="Asking for the login took too long.")
    found.auth, found.auth_method = auth.state, auth.method
    if auth.message:
        found.problems.add(code="auth", message=auth.message, hint=adapter.login_hint)


def _explain(adapter: "CommandLineAdapter", found: pb.Detection) -> None:
    label = adapter.describe().label
    if found.confidence == pb.DETECTION_CONFIDENCE_ABSENT:
        found.message, found.hint = f"{label} is not installed.", adapter.install_hint
    elif found.confidence == pb.DETECTION_CONFIDENCE_CONFIG_ONLY:
        found.message = f"{label} has a config directory, but its executable is not on this PATH."
        found.hint = "Set config.command to its path, or start the router with the PATH of your shell."
    elif not found.available:
        found.message, found.hint = f"{label} is installed, but cannot be started.", adapter.install_hint
    elif found.auth == pb.AUTH_STATE_MISSING:
        found.message, found.hint = f"{label} is installed, but not logged in.", adapter.login_hint
    elif found.auth == pb.AUTH_STATE_EXPIRED:
        found.message, found.hint = f"{label} is installed, but its login has expired.", adapter.login_hint
    elif found.confidence == pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY and adapter.config_dir_name:
        found.message = f"{label} is installed, but has no config directory yet; it may never have been used."
    else:
        found.message = f"{label} is installed."
