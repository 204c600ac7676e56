"""What in a request chooses the account that a run works with, as far as a router can tell.

Another home chooses one with any agent, and so does another program. Which settings and variables do, the adapter
says in the schema of its ``config``: ``"x-login": true`` on a property, ``"x-login-token": true`` on the whole where
``auth_token`` is what the agent logs in with, and ``"x-login-variables"`` on the whole: names, or patterns of which
those count that look like a login. Of an adapter that does not say which variables, all do that look so but those
that one run has for itself, as their names say: callers give each run a token of its own for their tools.
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
_OF_A_RUN: Final = frozenset({"RUN", "TASK", "ISSUE", "WAKE"})
"""Words of names of what one run has for itself."""
_MOST_VARIABLES: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMAND: Final = "command"
_MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a router reads in the schema of an adapter's ``config``."""

    login: frozenset[str] = frozenset()
    """Settings that decide which account is used."""
    is_token_login: bool = False
    """Whether ``auth_token`` is what the agent logs in with."""
    variables: tuple[str, ...] | None = None
    """Names and patterns of variables that decide which account is used; ``None`` if it does not say."""
    is_needy: bool = False
    """Whether no run works without settings of its own."""


NO_TRAITS: Final = Traits()
"""Of an adapter that says nothing of them."""


class Login(NamedTuple):
    """What chooses an account; nothing of it may be kept or told but as a keyed digest."""

    given: list[str]
    """Secrets and places of logins in the request; empty for the machine's own login."""
    settings: list[str]
    """Settings that choose among logins."""


def read_traits(schema_json: str) -> Traits:
    """Read a schema as its adapter sent it; one that cannot be read says nothing."""
    try:
        schema = json.loads(schema_json or "{}")
    except (ValueError, RecursionError):
        return NO_TRAITS
    if not isinstance(schema, dict):
        return NO_TRAITS
    properties = schema.get("properties")
    named = properties.items() if isinstance(properties, dict) else ()
    said = schema.get("x-login-variables")
    variables = [one for one in said if isinstance(one, str)] if isinstance(said, list) else None
    return Traits(
        login=frozenset(name for name, one in named if isinstance(one, dict) and one.get("x-login") is True),
        is_token_login=schema.get("x-login-token") is True,
        variables=None if variables is None else tuple(variables[:_MOST_VARIABLES]),
        is_needy=bool(schema.get("required")),
    )


def login_of(request: adapter_pb2.ExecuteRequest, traits: Traits) -> Login:
    """Return what in a request chooses the account, each part in one order.

    Args:
        request: the request. The caller's own variables are not the agent's login, unless a setting names them.
        traits: of the adapter.
    """
    config = _config(request)
    chosen = {name: value for name, value in config.items() if name in traits.login and _is_said(value)}
    if request.model and _MODEL in traits.login:
        chosen[_MODEL] = struct_pb2.Value(string_value=request.model)
    command = config[_COMMAND].string_value if _COMMAND in config else ""
    given = [
        *_variables(request, config, chosen.values(), traits.variables),
        *([f"command {command}"] if command else []),
        *([f"token {request.auth_token}"] if request.auth_token and traits.is_token_login else []),
    ]
    chosen.pop(_COMMAND, None)
    return Login(given, [f"{name}={_exact(chosen[name])}" for name in sorted(chosen)])


def _config(request: adapter_pb2.ExecuteRequest) -> dict[str, struct_pb2.Value]:
    """Return the settings in force, as an adapter reads them."""
    struct = request.config if request.HasField("config") else request.agent.adapter_config
    return dict(struct.fields.items())


def _variables(
    request: adapter_pb2.ExecuteRequest,
    config: dict[str, struct_pb2.Value],
    chosen: Iterable[struct_pb2.Value],
    said: tuple[str, ...] | None,
) -> list[str]:
    """Return the variables that may hold a login, and those that a setting means, e.g. as ``{{env.NAME}}``."""
    prefix = f"{request.brand.env_prefix or 'DRAGOMAN'}_"
    told = config["env"].struct_value.fields.items() if "env" in config else ()
    variables = {**{name: value.string_value for name, value in told}, **request.env}
    meant = {word for value in chosen for text in _texts(value) for word in _NAME.findall(text)} & variables.keys()
    looks = {name for name in variables if _may_log_in(name, said)}
    own = {name for name in looks if name.startswith(prefix)}
    return [f"{name}={variables[name]}" for name in sorted(meant | (looks - own))]


def _may_log_in(name: str, said: tuple[str, ...] | None) -> bool:
    if _HOME_NAME.fullmatch(name) or (said is not None and name in said):
        return True
    looks = _SECRET_NAME.search(name) or _ACCOUNT_NAME.search(name)
    if said is None:
        return bool(looks) and not _OF_A_RUN & set(name.upper().split("_"))
    return bool(looks) and any("*" in one and fnmatchcase(name, one) for one in said)


def _texts(value: struct_pb2.Value) -> Iterator[str]:
    yield value.string_value
    for item in value.list_value.values:
        yield from _texts(item)
    for item in value.struct_value.fields.values():
        yield from _texts(item)


def _is_said(value: struct_pb2.Value) -> bool:
    """Tell whether a setting says anything: absent and empty mean the same."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return bool(value.struct_value.fields)
    if kind == "list_value":
        return bool(value.list_value.values)
    return kind in {"bool_value", "number_value"} or bool(value.string_value)


def _exact(value: struct_pb2.Value) -> str:
    return value.SerializeToString(deterministic=True).decode("latin-1")
