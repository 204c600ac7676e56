"""An adapter's ``config``: numbers as they were meant, checked against its schema, read with fall-backs.

Checking is in ``_schema``; here is what a config is made of.
"""

import copy
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from dragoman.sdk._json import JsonObject, JsonValue, whole_number
from dragoman.sdk._schema import ConfigSchema, Problem, show_path, validate

MOST_SECONDS: Final = 315_360_000
"""Ten years: the longest time that may be asked for."""

__all__ = [
    "ConfigSchema",
    "ConfigValueError",
    "Problem",
    "adapter_schema",
    "as_bool",
    "as_int",
    "as_number",
    "as_object",
    "as_string",
    "as_string_list",
    "common_properties",
    "config_schema",
    "extra_args",
    "normalise",
    "print_schema",
    "validate",
]

_DEEPEST: Final = 100  # levels; what protobuf takes
T = TypeVar("T")


class ConfigValueError(ValueError):
    """A value that is no JSON value."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.path} {problem.message}")
        self.problem = problem


def normalise(value: object) -> JsonValue:
    """Return JSON-like data (from protobuf's Struct, say) as JSON data, with whole numbers as integers.

    Raises:
        ConfigValueError: A number is not finite, or something in it is no JSON at all.
    """
    return _normalise(value, ())


def _normalise(value: object, path: tuple[str | int, ...]) -> JsonValue:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigValueError(Problem(show_path(path), "must be a finite number"))
        return whole_number(value)
    if len(path) >= _DEEPEST:
        raise ConfigValueError(Problem(show_path(path[:1]), f"is nested more than {_DEEPEST} levels deep"))
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _normalise(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normalise(item, (*path, index)) for index, item in enumerate(value)]
    raise ConfigValueError(Problem(show_path(path), "must be a JSON value"))


_STRING_LIST: Final[JsonObject] = {"type": "array", "items": {"type": "string"}}

# The seeds' adapterConfig. x-common: every command line can honour it; else only some agents have the thing.
# x-login: it decides which login, or whose quota, a run uses: quotas are often a model's own. Not what callers give
# each run anew, as they do with arguments: no two runs would have one login.
_PROPERTIES: Final[dict[str, JsonObject]] = {
    "cwd": {
        "type": "string",
        "description": "Working directory of the agent: absolute, existing. The request's workspace wins.",
    },
    "promptTemplate": {
        "type": "string",
        "description": "Prompt of every run; {{path.to.value}} over agentId, companyId, runId, company, agent, run,"
        " context, brand. The request's prompt wins.",
    },
    "bootstrapPromptTemplate": {
        "type": "string",
        "description": "Like promptTemplate, put before the prompt when a new session begins.",
    },
    "model": {
        "type": "string",
        "description": "Model, as the agent names it. Absent or empty: the agent's own choice.",
        "x-login": True,
    },
    "effort": {
        "type": "string",
        "description": "How much the model thinks, as the agent names it. Absent or empty: the agent's own choice.",
        "x-common": False,
    },
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "propertyNames": {"pattern": "^[^=\\u0000]+$"},
        "description": "Environment variables of the agent. The place for secrets: never shown, never in a prompt.",
        "default": {},
    },
    "extraArgs": {
        **_STRING_LIST,
        "description": "Arguments added to the agent's command line, one word each.",
        "default": [],
        "x-common": True,
        "x-dangerous": True,
    },
    "args": {
        **_STRING_LIST,
        "description": "Another name of extraArgs, which wins.",
        "x-common": True,
        "x-dangerous": True,
    },
    "command": {
        "type": "string",
        "description": "Program to run instead of the one found: a name on PATH, or an absolute path.",
        "x-common": True,
        "x-dangerous": True,
        "x-login": True,
    },
    "timeoutSec": {
        "type": "number",
        "minimum": 0,
        "maximum": MOST_SECONDS,
        "default": 0,
        "description": "Seconds a run may take. 0: no limit.",
    },
    "graceSec": {
        "type": "number",
        "minimum": 0,
        "maximum": MOST_SECONDS,
        "default": 15,
        "description": "Seconds between asking the agent to stop and killing it.",
    },
    "instructionsFilePath": {
        "type": "string",
        "description": "File with standing instructions: absolute. Paths in it are meant from its directory.",
    },
    "maxTurns": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Turns of the model that a run may take. 0: the agent's own limit.",
        "x-common": False,
    },
    "dangerouslySkipPermissions": {
        "type": "boolean",
        "default": False,
        "description": "DANGEROUS: the agent asks nobody before it runs commands and writes files.",
        "x-common": False,
        "x-dangerous": True,
    },
    "dangerouslyBypassApprovalsAndSandbox": {
        "type": "boolean",
        "default": False,
        "description": "DANGEROUS: no questions, and no sandbox around the agent's commands either.",
        "x-common": False,
        "x-dangerous": True,
    },
}

# What few agents have; their adapters ask for it.
_ON_REQUEST: Final[dict[str, JsonObject]] = {
    "placeInWorkspace": {
        "type": "boolean",
        "default": False,
        "description": "Let files for the agent (instructions, skills) be in the workspace for the time of a run."
        " What was there is kept aside and put back.",
        "x-common": False,
    },
}


def common_properties(*, without: Collection[str] = (), also: Collection[str] = ()) -> dict[str, JsonObject]:
    """Return the JSON Schema properties of the seeds' ``adapterConfig``, for an adapter's own schema.

    Each says in its description what it does, its unit and what absence means. ``x-common`` is false
    for what only some agents have, ``x-dangerous`` true for what runs a program or takes a safeguard away,
    ``x-login`` true for what decides which login, or whose quota, a run uses: a router keeps runs with a login
    that was refused from an adapter, and lets those with another one through.

    Args:
        without: Those that the adapter cannot honour; it must refuse them rather than ignore them.
        also: Those that few adapters can honour: ``placeInWorkspace``.

    Raises:
        KeyError: One of ``without`` is no common property, or one of ``also`` is not known.
    """
    properties = copy.deepcopy({**_PROPERTIES, **{name: _ON_REQUEST[name] for name in also}})
    for name in without:
        del properties[name]
    for schema in properties.values():
        schema.setdefault("x-common", True)
    return properties


def config_schema(properties: Mapping[str, JsonObject], required: Sequence[str] = ()) -> JsonObject:
    """Return the schema of a config with these properties and no others."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        **({"required": list(required)} if required else {}),
        "properties": dict(properties),
        "additionalProperties": False,
    }


def adapter_schema(
    own: Mapping[str, JsonObject],
    *,
    without: Collection[str] = (),
    also: Collection[str] = (),
    required: Sequence[str] = (),
    login: Collection[str] = (),
    is_token_login: bool = False,
) -> dict[str, Any]:
    """Return the schema of an adapter's ``config``: the seeds' properties, and its own besides or over them.

    An own property is ``x-common`` only where it stands for one that is, and ``x-login`` there, too.

    Args:
        own: The adapter's own properties.
        without: See ``common_properties``.
        also: See ``common_properties``.
        required: Those that must be given.
        login: Those besides the common ones that decide which login, or whose quota, a run uses: ``x-login``. A
            variable of ``env`` that the value of one names, e.g. as ``{{env.NAME}}``, counts as a login by itself.
        is_token_login: Whether the request's ``auth_token`` is what the agent logs in with: ``x-login-token``.

    Raises:
        KeyError: See ``common_properties``; or one of ``login`` is none of the properties.
    """
    properties = common_properties(without=without, also=also)
    for name, schema in own.items():
        common = properties.get(name, {})
        inherited = {"x-login": True} if "x-login" in common else {}
        properties[name] = {**schema, "x-common": common.get("x-common", False), **inherited}
    for name in login:
        properties[name]["x-login"] = True
    return {**config_schema(properties, required), **({"x-login-token": True} if is_token_login else {})}


def print_schema(schema: Mapping[str, Any]) -> None:
    """Print a schema as it is shipped, for ``python -m my_adapter.schema > config.schema.json``."""
    print(json.dumps(schema, indent=2, ensure_ascii=False))  # noqa: T201 - that is what it is for


def as_string(value: object, fallback: T) -> str | T:
    """Return ``value`` if it is text and not empty, else ``fallback``."""
    return value if isinstance(value, str) and value else fallback


def as_int(value: object, fallback: T) -> int | T:
    """Return ``value`` if it is a whole number, else ``fallback``. Booleans and digits in text are none."""
    if isinstance(value, float) and math.isfinite(value):
        value = whole_number(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else fallback


def as_number(value: object, fallback: T) -> float | T:
    """Return ``value`` if it is a finite number, else ``fallback``. Booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return fallback
    try:
        return value if math.isfinite(value) else fallback
    except OverflowError:  # an integer that no float can hold
        return fallback


def as_bool(value: object, fallback: T) -> bool | T:
    """Return ``value`` if it is true or false, else ``fallback``. Neither 0 nor "false" is."""
    return value if isinstance(value, bool) else fallback


def as_string_list(value: object, fallback: Sequence[str] = ()) -> list[str]:
    """Return the texts in a list, else those of ``fallback``; what is no text in the list is left out."""
    return [item for item in (value if isinstance(value, list | tuple) else fallback) if isinstance(item, str)]


def as_object(value: object, fallback: T) -> JsonObject | T:
    """Return ``value`` if it is a JSON object, else ``fallback``."""
    return value if isinstance(value, dict) else fallback


def extra_args(config: Mapping[str, JsonValue]) -> list[str]:
    """Return the caller's own arguments: ``extraArgs``, or under their other name ``args``."""
    return as_string_list(config["extraArgs"] if "extraArgs" in config else config.get("args"))
