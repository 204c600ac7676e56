"""Reading a request for a command-line agent: what is wrong with it, and what it comes down to.

Paperclip's ``adapterConfig`` fits unchanged as ``config``; a top-level field of the request wins over its key.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dragoman.protocol.bounds import BOUNDS
from dragoman.protocol.clocks import ClockLimits
from dragoman.protocol.errors import FieldViolation, invalid_fields
from dragoman.protocol.limits import DEFAULT_GRACE_S
from dragoman.protocol.texts import utf8_bytes
from dragoman.sdk._encoding.config import as_int, as_number, as_object, as_string, extra_args
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._encoding.protobuf import duration, seconds, struct_to_dict
from dragoman.sdk._encoding.schema import ConfigSchema, show_path
from dragoman.sdk._request.environment import DEFAULT_PREFIX
from dragoman.sdk._request.refusals import refuse_missing_features, wrong_fields
from dragoman.sdk._request.sessions import NEW, SessionPlan
from dragoman.sdk._request.workspace import check_cwd
from dragoman.sdk._skills.source import SkillError, SkillSource, plan_skill_directory, read_skill
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_DEFAULT_BRAND = "Dragoman"
"""What ``{{brand.name}}`` is for a caller without one."""
_LONGEST_INSTRUCTIONS = 4 * 1024 * 1024
"""Bytes of an instructions file; more is no text for a model."""


class Instructions(Struct, frozen=True):
    """Standing instructions."""

    text: str
    directory: str = ""
    """Relative paths in the text are meant from here. Empty if it came without a file."""

    def with_directive(self) -> str:
        """Return the text, and where its relative paths are meant from."""
        if not self.directory:
            return self.text
        return f"{self.text}\n\nResolve relative paths in these instructions from {self.directory}."


class Settings(Struct, frozen=True):
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
    budget: pb.Budget
    max_turns: int | None
    skills: tuple[SkillSource, ...] = ()
    instructions: Instructions | None = None
    session: SessionPlan = NEW
    """What is intended with the session."""
    notes: tuple[str, ...] = ()
    """Decisions about the files of the attempt, for people."""
    notices: tuple[tuple[str, str], ...] = ()
    """Code and message of warnings: of what could not be laid out for the attempt."""


def read_config(request: adapter_pb2.ExecuteRequest) -> dict[str, JsonValue]:
    """Return the ``config`` in force: the request's, else the one stored with the agent."""
    if request.HasField("config"):
        return struct_to_dict(request.config)
    if request.HasField("agent") and request.agent.HasField("adapter_config"):
        return struct_to_dict(request.agent.adapter_config, "agent.adapter_config")
    return {}


def read_settings(request: adapter_pb2.ExecuteRequest, info: AdapterInfo, schema: ConfigSchema) -> Settings:
    """Check a request and return what it comes down to.

    Raises:
        DragomanError: INVALID_REQUEST with every wrong field, or NOT_SUPPORTED.
    """
    refuse_missing_features(request, info)
    config = read_config(request)
    wrong = [FieldViolation(item.path, _sentence(item.message, item.hint)) for item in schema.validate(config)]
    wrong += [FieldViolation(path, "must not contain a zero byte") for path in _zero_bytes(config, ())]
    wrong += _wrong_variables(as_object(config.get("env"), {}))
    cwd_path, cwd = _cwd(request, config)
    problem = check_cwd(cwd or None) if info.has(pb.FEATURE_WORKSPACE) else None
    if problem is not None:
        wrong.append(FieldViolation(cwd_path, _sentence(problem.message, problem.hint)))
    skills, wrong_skills = read_skills(request.skills)
    instructions, wrong_instructions = _read_instructions(request, config)
    wrong += [*wrong_fields(request), *wrong_skills, *wrong_instructions]
    if wrong:
        raise invalid_fields(wrong)
    config_env = as_object(config.get("env"), {})
    return Settings(
        config=config,
        cwd=cwd,
        additional_directories=tuple(request.workspace.additional_directories),
        model=request.model or as_string(config.get("model"), ""),
        command=as_string(config.get("command"), ""),
        extra_args=tuple(extra_args(config)),
        config_env={key: as_string(value, "") for key, value in config_env.items()},
        brand_name=request.brand.name or _DEFAULT_BRAND,
        env_prefix=request.brand.env_prefix or DEFAULT_PREFIX,
        permissions=request.permissions,
        clocks=_clock_limits(request, config),
        grace_s=_grace(request, config),
        output_bytes=request.limits.output_bytes or None,
        budget=request.limits.budget,
        max_turns=as_int(config.get("maxTurns"), 0) or None,
        skills=skills,
        instructions=instructions,
    )


def _wrong_variables(variables: Mapping[str, JsonValue]) -> Iterator[FieldViolation]:
    """Return how the variables of settings pass the bounds of a request's own."""
    bound = BOUNDS["*.env"]
    sizes = {name: len(name.encode()) + utf8_bytes(as_string(value, "")) for name, value in variables.items()}
    if len(sizes) > bound.entries or sum(sizes.values()) > bound.total_bytes:
        message = f"must not have more than {bound.entries:,} entries, nor {bound.total_bytes:,} bytes together"
        yield FieldViolation("config.env", message)


def limits_in_force(settings: Settings) -> pb.Limits:
    """Return the limits that come of the request and its config together."""
    clocks = settings.clocks
    return pb.Limits(
        start_up=duration(clocks.start_up_s),
        idle=duration(clocks.idle_s),
        wall=duration(clocks.wall_s),
        grace=duration(settings.grace_s),
        output_bytes=settings.output_bytes or 0,
        tool_call=duration(clocks.tool_call_s),
        budget=settings.budget if settings.budget.ByteSize() else None,
    )


def _zero_bytes(value: JsonValue, path: tuple[str | int, ...]) -> Iterator[str]:
    """Return the paths of texts with a zero byte: none can be an argument or a variable."""
    if isinstance(value, str) and "\0" in value:
        yield show_path(path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _zero_bytes(key, (*path, key))
            yield from _zero_bytes(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _zero_bytes(item, (*path, index))


def _cwd(request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]) -> tuple[str, str]:
    if request.HasField("workspace") and request.workspace.cwd:
        return "workspace.cwd", request.workspace.cwd
    if config.get("cwd"):
        return "config.cwd", as_string(config.get("cwd"), "")
    return "workspace.cwd", ""


def read_skills(sources: Iterable[adapter_pb2.Skill]) -> tuple[tuple[SkillSource, ...], list[FieldViolation]]:
    """Read the skills of a request; return them, and what is wrong with the others."""
    skills: list[SkillSource] = []
    wrong: list[FieldViolation] = []
    for index, skill in enumerate(sources):
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


def _read_instructions(
    request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]
) -> tuple[Instructions | None, list[FieldViolation]]:
    if request.instructions.WhichOneof("source") == "text":
        return Instructions(request.instructions.text), []
    field, path = "instructions.file", request.instructions.file
    if request.instructions.WhichOneof("source") is None:
        field, path = "config.instructionsFilePath", as_string(config.get("instructionsFilePath"), "")
        if not path:
            return None, []
    if "\0" in path or not Path(path).is_absolute():
        return None, [FieldViolation(field, "must be an absolute path")]
    if not Path(path).is_file() or not os.access(path, os.R_OK):
        return None, [FieldViolation(field, "is no file that can be read")]
    if Path(path).stat().st_size > _LONGEST_INSTRUCTIONS:
        return None, [FieldViolation(field, f"has more than {_LONGEST_INSTRUCTIONS} bytes")]
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    return Instructions(text, str(Path(path).parent)), []


def _clock_limits(request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]) -> ClockLimits:
    limits = request.limits
    wall_s = seconds(limits.wall) if limits.HasField("wall") else as_number(config.get("timeoutSec"), 0.0)
    return ClockLimits(
        start_up_s=seconds(limits.start_up) or None,
        idle_s=seconds(limits.idle) or None,
        wall_s=wall_s or None,
        tool_call_s=seconds(limits.tool_call) or None,
    )


def _grace(request: adapter_pb2.ExecuteRequest, config: Mapping[str, JsonValue]) -> float:
    if request.limits.HasField("grace"):
        return seconds(request.limits.grace)
    return as_number(config.get("graceSec"), DEFAULT_GRACE_S)


def _sentence(message: str, hint: str) -> str:
    return f"{message}. {hint}" if hint[:1].isupper() else f"{message}; {hint}" if hint else message
