"""Finding a command-line agent on this machine: two signals, its version, its login. Bounded in time."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from dragoman.sdk._detection.auth import AUTH_LIMIT_S, AuthFinding, inherited_keys, keys_to_withhold, withheld_message
from dragoman.sdk._detection.programs import find_executable, packaged_version, parse_version, probe, script_version
from dragoman.sdk._encoding.fields import Fields
from dragoman.sdk._encoding.json_text import read_json_object
from dragoman.sdk._request.environment import EnvironmentInputs, build_environment
from dragoman.sdk.spec import AgentSpec
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from google.protobuf import struct_pb2
from msgspec import Struct

VERSION_LIMIT_S = 5.0
_PROBE_BYTES = 64 * 1024
_MOST_NAME_BYTES = 256


class Located(Struct, frozen=True):
    """An agent's executable and version."""

    executable: str
    """Absolute. Empty if not found."""
    version: str
    """Empty if unknown."""
    problems: tuple[pb.DetectionProblem, ...] = ()


class SelectedModel(Struct, frozen=True):
    """The model that an agent's own configuration selects."""

    model: str = ""
    """Empty: none, so that the agent uses its default."""
    provider: str = ""
    """Empty as ``model``."""

    def add_to(self, found: pb.Detection) -> None:
        """Put it into a detection, as far as its texts are names: the files of an agent hold anything."""
        found.model, found.provider = (_name(value) for value in (self.model, self.provider))


def _name(value: str) -> str:
    return value if value.isprintable() and len(value.encode("utf-8", "replace")) <= _MOST_NAME_BYTES else ""


class VersionCache:
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
            elsewhere: those of them that point to a temporary directory during the call.
        """
        status = executable.stat()
        key = (str(executable), status.st_mtime_ns, status.st_size)
        if key in self._known:
            return self._known[key], None
        import tempfile  # noqa: PLC0415 - no run needs it

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


FindAuth = Callable[[str, Mapping[str, str]], Awaitable[AuthFinding]]
"""An adapter's ``auth``: says whether the agent is logged in, by its executable and environment."""


async def locate(
    spec: AgentSpec, versions: VersionCache, env: Mapping[str, str], command: str, *, is_for_run: bool = False
) -> Located:
    """Look for the executable and ask for its version.

    Args:
        spec: the agent.
        versions: those that are known.
        env: the variables that the agent gets.
        command: the program that the request names; empty if it names none.
        is_for_run: whether the version of its package will do: a run shows by itself whether the program starts.
    """
    found = find_executable(spec.executables, env.get("PATH", ""), command)
    if found is None:
        return Located("", "")
    if is_for_run and spec.asks_version and (version := packaged_version(found)):
        return Located(str(found), version)
    if spec.npm_package and (version := script_version(found, spec.npm_package, env.get("PATH", ""))):
        return Located(str(found), version)
    version, problem = await _asked(spec, versions, env, found) if spec.asks_version else ("", None)
    return Located(str(found), version, (problem,) if problem is not None else ())


async def start_problem(spec: AgentSpec, env: Mapping[str, str], found: pb.Detection) -> pb.DetectionProblem | None:
    """Start a program whose version ``locate`` took from its package; return what was wrong with it.

    What was asked before does not count: what its program needs may have gone since.
    """
    executable = Path(found.executable)
    if not found.executable or not script_version(executable, spec.npm_package, env.get("PATH", "")):
        return None
    return (await _asked(spec, VersionCache(), env, executable))[1]


async def _asked(
    spec: AgentSpec, versions: VersionCache, env: Mapping[str, str], executable: Path
) -> tuple[str, pb.DetectionProblem | None]:
    return await versions.ask(executable, {**env, **spec.version_variables}, spec.tidy_variables)


def program_environment(spec: AgentSpec, config: struct_pb2.Struct, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that is asked something outside of a run: a run's, without its variables.

    Args:
        spec: the agent.
        config: the request's settings, which may hold variables in ``env``.
        env: the request's variables, which win.
    """
    set_there = config.fields["env"].struct_value.fields.items() if "env" in config.fields else ()
    config_env = {name: value.string_value for name, value in set_there if value.HasField("string_value")}
    inputs = EnvironmentInputs(config_env=config_env, env=env)
    return build_environment(inputs, os.environ, strip=spec.strip, allow=spec.inherit)


def config_dir(spec: AgentSpec, env: Mapping[str, str]) -> Path | None:
    """Return the agent's config directory, whether or not it exists; None if it has none."""
    if spec.config_dir_variable and env.get(spec.config_dir_variable):
        return Path(env[spec.config_dir_variable])
    if not spec.config_dir_name:
        return None
    return Path(env.get("HOME") or os.path.expanduser("~")) / spec.config_dir_name  # noqa: PTH111 - a default


def stored_file(spec: AgentSpec, env: Mapping[str, str], name: str) -> Path:
    """Return a file of the agent's config directory, of which ``spec`` gives the name, whether or not it exists."""
    directory = config_dir(spec, env)
    assert directory is not None, f"{spec.type} declares no config_dir_name"
    return directory / name


def stored_object(spec: AgentSpec, env: Mapping[str, str], name: str) -> Fields:
    """Return the JSON object in a file of the agent's config directory; empty if there is none."""
    return read_json_object(stored_file(spec, env, name))


def skills_dir(spec: AgentSpec, env: Mapping[str, str]) -> Path | None:
    """Return where the agent keeps skills, whether or not it exists; None if it keeps none."""
    directory = config_dir(spec, env) if spec.skills_dir_name else None
    return directory / spec.skills_dir_name if directory is not None else None


async def detect_agent(
    spec: AgentSpec, versions: VersionCache, find_auth: FindAuth, env: Mapping[str, str], command: str
) -> pb.Detection:
    """Look for the agent and report what was found, what is wrong, and how to fix it."""
    if not spec.executables and not command:
        return pb.Detection(
            available=True,
            auth=pb.AUTH_STATE_NOT_NEEDED,
            confidence=pb.DETECTION_CONFIDENCE_NOT_APPLICABLE,
            capabilities=spec.capabilities,
            message=f"{spec.label} runs the command that config.command names.",
        )
    located = await locate(spec, versions, env, command)
    directory = config_dir(spec, env)
    has_directory = directory is not None and directory.is_dir()
    found = pb.Detection(
        executable=located.executable,
        version=located.version,
        problems=located.problems,
        capabilities=probed(spec.capabilities, located.version, spec.tested_version),
    )
    found.available = bool(located.executable) and not any(
        problem.code == "executable_broken" for problem in located.problems
    )
    if directory is not None and has_directory:
        found.config_dir = str(directory)
        skills = skills_dir(spec, env)
        found.skills_dir = str(skills) if skills is not None and skills.is_dir() else ""
    found.confidence = _confidence(bool(located.executable), has_directory, uses_directory=directory is not None)
    await _add_auth(spec, find_auth, found, env)
    _explain(spec, found, command)
    return found


def probed(declared: event_pb2.Capabilities, version: str, tested_version: str) -> event_pb2.Capabilities:
    """Return the capabilities of a program of this version.

    Their origin is PROBED if the real program of exactly this version was tested, else as declared. A newer version
    with the same first numbers does not count: a patch release may change what options and frames mean.

    Args:
        declared: what the adapter declares; left as it is.
        version: what the installed program says. Empty if unknown.
        tested_version: the version that was tested. Empty if none was.
    """
    copy = event_pb2.Capabilities()
    copy.CopyFrom(declared)
    if version and version == tested_version:
        for item in copy.items:
            item.origin = event_pb2.CAPABILITY_ORIGIN_PROBED
    return copy


def _confidence(
    has_executable: bool, has_directory: bool, *, uses_directory: bool
) -> pb.DetectionConfidence.ValueType:
    if has_executable and (has_directory or not uses_directory):
        return pb.DETECTION_CONFIDENCE_CONFIDENT
    if has_executable:
        return pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY
    return pb.DETECTION_CONFIDENCE_CONFIG_ONLY if has_directory else pb.DETECTION_CONFIDENCE_ABSENT


async def _add_auth(spec: AgentSpec, find_auth: FindAuth, found: pb.Detection, env: Mapping[str, str]) -> None:
    if not found.available:
        # As in Open Design: a configuration without the program means that the login is missing.
        if found.confidence == pb.DETECTION_CONFIDENCE_CONFIG_ONLY:
            found.auth = pb.AUTH_STATE_MISSING
        return
    keys = inherited_keys(spec.api_key_variables, env, os.environ, ())
    withheld, auth = await keys_to_withhold(keys, env, partial(find_auth, found.executable))
    if withheld:
        found.problems.add(code="api_key_withheld", message=withheld_message(withheld))
    if auth is None:
        try:
            auth = await asyncio.wait_for(find_auth(found.executable, env), AUTH_LIMIT_S)
        except TimeoutError:
            auth = AuthFinding(pb.AUTH_STATE_UNKNOWN)
            found.problems.add(code="auth_timeout", message="Asking for the login took too long.")
    found.auth, found.auth_method = auth.state, auth.method
    if auth.message:
        found.problems.add(code="auth", message=auth.message, hint=spec.login_hint)


def _explain(spec: AgentSpec, found: pb.Detection, command: str) -> None:
    if command and not found.executable:
        found.message = f"{command}, which config.command names, was not found."
        found.hint = f"{spec.install_hint or 'Install it.'} Or correct config.command."
    elif found.confidence == pb.DETECTION_CONFIDENCE_ABSENT:
        found.message = f"{spec.label} is not installed, or not on the PATH of its adapter."
        found.hint = f"{spec.install_hint or 'Install it.'} Or set config.command of the run to its path."
    elif found.confidence == pb.DETECTION_CONFIDENCE_CONFIG_ONLY:
        found.message = f"{spec.label} has a config directory, but its executable is not on this PATH."
        found.hint = "Set config.command to its path, or start the router with the PATH of your shell."
    elif not found.available:
        found.message, found.hint = f"{spec.label} is installed, but cannot be started.", spec.install_hint
    elif found.auth == pb.AUTH_STATE_MISSING:
        found.message, found.hint = f"{spec.label} is installed, but not logged in.", spec.login_hint
    elif found.auth == pb.AUTH_STATE_EXPIRED:
        found.message, found.hint = f"{spec.label} is installed, but its login has expired.", spec.login_hint
    elif found.confidence == pb.DETECTION_CONFIDENCE_EXECUTABLE_ONLY:
        found.message = f"{spec.label} is installed, but has no config directory yet; it may never have been used."
    else:
        found.message = f"{spec.label} is installed."
