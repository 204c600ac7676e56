"""Reading a request for a command-line agent: what is wrong with it, and what it comes down to.

The seeds' ``adapterConfig`` fits unchanged as ``config``; a top-level field of the request wins over its key.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid_fields, not_supported
from dragoman.protocol.limits import DEFAULT_GRACE_S, MAX_REQUEST_BYTES
from dragoman.sdk._adapter import AdapterInfo
from dragoman.sdk._clocks import ClockLimits
from dragoman.sdk._config import ConfigSchema, as_int, as_object, as_string, as_string_list, normalise
from dragoman.sdk._environment import validate_prefix
from dragoman.sdk._json import JsonValue
from dragoman.sdk._skills import SkillError, SkillSource, plan_skill_directory, read_skill
from dragoman.sdk._workspace import check_cwd
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2, json_format, struct_pb2

DEFAULT_BRAND = "Dragoman"
DEFAULT_PREFIX = "DRAGOMAN"

_BY_FEATURE: tuple[tuple[str, pb.Feature.ValueType], ...] = (
    ("skills", pb.FEATURE_SKILLS),
    ("mcp_servers", pb.FEATURE_MCP_SERVERS),
    ("system_prompt", pb.FEATURE_SYSTEM_PROMPT),
    ("instructions", pb.FEATURE_INSTRUCTIONS),
    ("model", pb.FEATURE_MODEL_CHOICE),
)
"""Fields that are refused where the capability is missing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a request comes down to."""

    config: Mapping[str, JsonValue]
    """Checked against the schema; whole numbers are ints."""
    cwd: str
    """Absolute and existing. Empty if the adapter has no workspace."""
    additional_directories: tuple[str, ...]
    model: str
    """Empty: the agent's default."""
    command: str
    """The executable asked for. Empty: the adapter's own."""
    extra_args: tuple[str, ...]
    config_env: Mapping[str, str]
    brand_name: str
    env_prefix: str
    permissions: pb.Permissions
    clocks: ClockLimits
    grace_s: float
    output_bytes: int | None
    max_turns: int | None
    skills: tuple[SkillSource, ...] = ()


def read_config(request: adapter_pb2.ExecuteRequest) -> dict[str, JsonValue]:
    """Return the ``config`` in force: the request's, else the one stored with the agent."""
    if request.HasField("config"):
        return struct_to_dict(request.config)
    if request.HasField("agent") and request.agent.HasField("adapter_config"):
        return struct_to_dict(request.agent.adapter_config)
    return {}


def struct_to_dict(struct: struct_pb2.Struct) -> dict[str, JsonValue]:
    """Return a Struct as Python values, whole numbers as ints.

    Raises:
        DragomanError: it holds a number that is none.
    """
    try:
        value = normalise(json_format.MessageToDict(struct))
    except ValueError as error:
        raise invalid_fields([FieldViolation("config", "holds a number that is infinite or not a number")]) from error
    return value if isinstance(value, dict) else {}


def read_settings(request: adapter_pb2.ExecuteRequest, info: AdapterInfo, schema: ConfigSchema) -> Settings:
    """Check a request and return what it comes down to.

    Raises:
        DragomanError: INVALID_REQUEST with every wrong field, NOT_SUPPORTED, or MESSAGE_TOO_LARGE.
    """
    if request.ByteSize() > MAX_REQUEST_BYTES:
        raise DragomanError(Reason.MESSAGE_TOO_LARGE, "the request has more than 16 MiB; give large inputs as files")
    _refuse_missing_features(request, info)
    config = read_config(request)
    cwd_path, cwd = _cwd(request, config)
    violations = [FieldViolation(item.path, _sentence(item.message, item.hint)) for item in schema.validate(config)]
    if info.has(pb.FEATURE_WORKSPACE):
        problem = check_cwd(cwd or None)
        if problem is not None:
            violations.append(FieldViolation(cwd_path, _sentence(problem.message, problem.hint)))
    violations += _wrong_fields(request)
    skills, wrong_skills = _read_skills(request)
    violations += wrong_skills
    if violations:
        raise invalid_fields(violations)
    return _settings(request, config, cwd, skills)


def _settings(
    request: adapter_pb2.ExecuteRequest, config: dict[str, JsonValue], cwd: str, skills: tuple[SkillSource, ...]
) -> Settings:
    brand = request.brand
    config_env = as_object(config.get("env"), {})
    extra = config.get("extraArgs", config.get("args"))
    max_turns = config.get("maxTurns")
    return Settings(
        config=config,
        cwd=cwd,
        additional_directories=tuple(request.workspace.additional_directories),
        model=request.model or as_string(config.get("model"), ""),
        command=as_string(config.get("command"), ""),
        extra_args=tuple(as_string_list(extra, [])),
        config_env={key: as_string(value, "") for key, value in config_env.items()},
        brand_name=brand.name or DEFAULT_BRAND,
        env_prefix=brand.env_prefix or DEFAULT_PREFIX,
        permissions=request.permissions,
        clocks=_clock_limits(request, config),
        grace_s=_grace(request, config),
        output_bytes=request.limits.output_bytes or None,
        max_turns=as_int(max_turns, 0) or None,
        skills=skills,
    )


def _cwd(request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]) -> tuple[str, str]:
    if request.HasField("workspace") and request.workspace.cwd:
        return "workspace.cwd", request.workspace.cwd
    if config.get("cwd"):
        return "config.cwd", as_string(config.get("cwd"), "")
    return "workspace.cwd", ""


def _refuse_missing_features(request: adapter_pb2.ExecuteRequest, info: AdapterInfo) -> None:
    is_set = {field.name for field, _ in request.ListFields()}
    for name, feature in _BY_FEATURE:
        if name in is_set and not info.has(feature):
            raise not_supported(name, f"{info.label} has no {name.replace('_', ' ')}; leave it out")
    permissions = request.permissions
    asks = permissions.rules or permissions.default_decision or permissions.native_mode or permissions.auto_approve
    if asks and not info.has(pb.FEATURE_PERMISSION_REQUESTS):
        raise not_supported("permissions", f"{info.label} asks for no permissions; it does what it is told")
    if request.HasField("session") and request.session.WhichOneof("selector") == "handle":
        if not info.has(pb.FEATURE_RESUME):
            raise not_supported("session.handle", f"{info.label} cannot resume sessions")
        if request.session.fork and not info.has(pb.FEATURE_FORK):
            raise not_supported("session.fork", f"{info.label} cannot fork sessions")


def _wrong_fields(request: adapter_pb2.ExecuteRequest) -> list[FieldViolation]:
    wrong: list[FieldViolation] = []
    session = request.session.WhichOneof("selector")
    if session == "fresh" and not request.session.fresh:
        wrong.append(FieldViolation("session.fresh", "must be true, or absent"))
    if request.session.fork and session != "handle":
        wrong.append(FieldViolation("session.fork", "a session to fork is missing; give session.handle"))
    if request.brand.env_prefix:
        problem = validate_prefix(request.brand.env_prefix)
        if problem:
            wrong.append(FieldViolation("brand.env_prefix", problem))
    for name in ("start_up", "idle", "wall", "grace"):
        if request.limits.HasField(name) and seconds(getattr(request.limits, name)) < 0:
            wrong.append(FieldViolation(f"limits.{name}", "must not be negative"))
    for index, path in enumerate(request.workspace.additional_directories):
        problem_found = check_cwd(path)
        if problem_found is not None:
            wrong.append(FieldViolation(f"workspace.additional_directories[{index}]", problem_found.message))
    for name in request.env:
        if not name or "=" in name or "\0" in name + request.env[name]:
            wrong.append(FieldViolation("env", "names are not empty and have no '='; nothing has a NUL"))
    return wrong + _wrong_instructions(request)


def _wrong_instructions(request: adapter_pb2.ExecuteRequest) -> list[FieldViolation]:
    path = request.instructions.file
    if request.instructions.WhichOneof("source") != "file":
        return []
    if not os.path.isabs(path):  # noqa: PTH117 - a string is at hand
        return [FieldViolation("instructions.file", "must be an absolute path")]
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        return [FieldViolation("instructions.file", "is no file that can be read")]
    return []


def _read_skills(
    request: adapter_pb2.ExecuteRequest,
) -> tuple[tuple[SkillSource, ...], list[FieldViolation]]:
    skills: list[SkillSource] = []
    wrong: list[FieldViolation] = []
    for index, skill in enumerate(request.skills):
        path = f"skills[{index}]"
        if any(skill.name == other.name for other in skills):
            wrong.append(FieldViolation(f"{path}.name", "names are unique"))
        source = skill.WhichOneof("source")
        try:
            if source == "directory":
                skills.append(read_skill(Path(skill.directory), name=skill.name))
            elif source == "files":
                skills.append(SkillSource(skill.name, files=dict(skill.files.content)))
            else:
                wrong.append(FieldViolation(path, "give its directory or its files"))
            plan_skill_directory(skills[-1:], "{name}")
        except SkillError as error:
            wrong.append(FieldViolation(path, str(error)))
    return tuple(skills), wrong


def _clock_limits(request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]) -> ClockLimits:
    limits = request.limits
    wall = _limit(limits.wall) if limits.HasField("wall") else _number(config.get("timeoutSec"))
    return ClockLimits(start_up_s=_limit(limits.start_up), idle_s=_limit(limits.idle), wall_s=wall)


def _grace(request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]) -> float:
    if request.limits.HasField("grace"):
        return seconds(request.limits.grace)
    configured = config.get("graceSec")
    if isinstance(configured, int | float) and not isinstance(configured, bool):
        return max(0.0, float(configured))
    return DEFAULT_GRACE_S


def _limit(duration: duration_pb2.Duration) -> float | None:
    value = seconds(duration)
    return value if value > 0 else None


def _number(value: JsonValue) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None


def seconds(duration: duration_pb2.Duration) -> float:
    """Return a duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def _sentence(message: str, hint: str | None) -> str:
    return f"{message}; {hint}" if hint else message
