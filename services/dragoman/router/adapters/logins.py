"""Which parts of a request select the account that a run uses, so that each account has a circuit breaker of its own.

For every agent another home or another program selects an account. An adapter declares further parts in the schema of
its ``config``: ``"x-login": true`` on a setting that does, ``"x-login-token": true`` on the schema if the agent logs
in with ``auth_token``, and ``"x-login-variables"`` on the schema with names or patterns of variables; a pattern
matches variables that look like credentials only. Without ``"x-login-variables"`` all variables count that look like
credentials, except those whose names mark them as specific to one run: callers give each run its own token for tools.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from dragoman.v1 import adapter_pb2
from google.protobuf import struct_pb2

_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_ACCOUNT_NAME: Final = re.compile(
    r"_HOME$|CONFIG|BASE_URL|ENDPOINT|PROFILE|^AWS_|REGION"
    r"|(GOOGLE|GCLOUD|GCP|CLOUDSDK|VERTEX|OPENAI|AWS|AZURE)(_.*)?_PROJECT",
    re.IGNORECASE,
)
_HOME_NAME: Final = re.compile(r"HOME|XDG_[A-Z]+_HOME")
_PER_RUN_WORDS: Final = frozenset({"RUN", "TASK", "ISSUE", "WAKE"})
"""Words that mark the name of a variable as specific to one run."""
_MOST_VARIABLES: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMAND: Final = "command"
_MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class SchemaTraits:
    """What a router evaluates in the schema of an adapter's ``config``."""

    login_settings: frozenset[str] = frozenset()
    """Settings that select the account."""
    is_token_login: bool = False
    """Whether the agent logs in with ``auth_token``."""
    login_variables: tuple[str, ...] | None = None
    """Names and patterns of variables that select the account; ``None`` if the adapter declares none."""
    requires_settings: bool = False
    """Whether the schema has required settings."""


NO_TRAITS: Final = SchemaTraits()
"""The traits of an adapter without a schema."""


class Login(NamedTuple):
    """The parts of a request that select an account; only keyed digests of them may be stored or shown."""

    credentials: list[str]
    """Credentials, homes and programs in the request; empty for the machine's own login."""
    settings: list[str]
    """Settings that select among logins."""


def read_schema_traits(schema_json: str) -> SchemaTraits:
    """Return the traits of a schema; none of an invalid one."""
    try:
        schema = json.loads(schema_json or "{}")
    except (ValueError, RecursionError):
        return NO_TRAITS
    if not isinstance(schema, dict):
        return NO_TRAITS
    properties = schema.get("properties")
    named = properties.items() if isinstance(properties, dict) else ()
    declared = schema.get("x-login-variables")
    variables = [one for one in declared if isinstance(one, str)] if isinstance(declared, list) else None
    return SchemaTraits(
        login_settings=frozenset(name for name, one in named if isinstance(one, dict) and one.get("x-login") is True),
        is_token_login=schema.get("x-login-token") is True,
        login_variables=None if variables is None else tuple(variables[:_MOST_VARIABLES]),
        requires_settings=bool(schema.get("required")),
    )


def login_of(request: adapter_pb2.ExecuteRequest, traits: SchemaTraits) -> Login:
    """Return the parts of a request that select the account, in a canonical order.

    Args:
        request: the request. Variables with the caller's prefix count only if a setting names them.
        traits: the traits of the adapter's schema.
    """
    config = _config(request)
    chosen = {name: value for name, value in config.items() if name in traits.login_settings and _has_value(value)}
    if request.model and _MODEL in traits.login_settings:
        chosen[_MODEL] = struct_pb2.Value(string_value=request.model)
    command = config[_COMMAND].string_value if _COMMAND in config else ""
    credentials = [
        *_variables(request, config, chosen.values(), traits.login_variables),
        *([f"command {command}"] if command else []),
        *([f"token {request.auth_token}"] if request.auth_token and traits.is_token_login else []),
    ]
    chosen.pop(_COMMAND, None)
    return Login(credentials, [f"{name}={_canonical(chosen[name])}" for name in sorted(chosen)])


def _config(request: adapter_pb2.ExecuteRequest) -> dict[str, struct_pb2.Value]:
    """Return the settings in effect, as an adapter reads them."""
    struct = request.config if request.HasField("config") else request.agent.adapter_config
    return dict(struct.fields.items())


def _variables(
    request: adapter_pb2.ExecuteRequest,
    config: dict[str, struct_pb2.Value],
    chosen: Iterable[struct_pb2.Value],
    declared: tuple[str, ...] | None,
) -> list[str]:
    """Return the variables that may hold credentials, and those that a setting names, e.g. as ``{{env.NAME}}``."""
    prefix = f"{request.brand.env_prefix or 'DRAGOMAN'}_"
    configured = config["env"].struct_value.fields.items() if "env" in config else ()
    variables = {**{name: value.string_value for name, value in configured}, **request.env}
    named = {name for value in chosen for text in _texts(value) for name in _NAME.findall(text)} & variables.keys()
    candidates = {name for name in variables if _is_login_variable(name, declared)}
    callers = {name for name in candidates if name.startswith(prefix)}
    return [f"{name}={variables[name]}" for name in sorted(named | (candidates - callers))]


def _is_login_variable(name: str, declared: tuple[str, ...] | None) -> bool:
    if _HOME_NAME.fullmatch(name) or (declared is not None and name in declared):
        return True
    looks_like_one = _SECRET_NAME.search(name) or _ACCOUNT_NAME.search(name)
    if declared is None:
        return bool(looks_like_one) and not _PER_RUN_WORDS & set(name.upper().split("_"))
    return bool(looks_like_one) and any("*" in pattern and fnmatchcase(name, pattern) for pattern in declared)


def _texts(value: struct_pb2.Value) -> Iterator[str]:
    yield value.string_value
    for item in value.list_value.values:
        yield from _texts(item)
    for item in value.struct_value.fields.values():
        yield from _texts(item)


def _has_value(value: struct_pb2.Value) -> bool:
    """Return whether a setting has a value: absent and empty mean the same."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return bool(value.struct_value.fields)
    if kind == "list_value":
        return bool(value.list_value.values)
    return kind in {"bool_value", "number_value"} or bool(value.string_value)


def _canonical(value: struct_pb2.Value) -> str:
    return value.SerializeToString(deterministic=True).decode("latin-1")
