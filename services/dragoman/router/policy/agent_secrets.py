"""Secrets of stored agents: where one stands, where a reference to one may stand, and its value in its place. Pure.

A reference is a whole value ``${NAME}``. It may stand only where the redaction finds its value in a request: under
names that mark secrets. Elsewhere an agent could print it into the run's events.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from dragoman.protocol.errors import FieldViolation
from dragoman.protocol.redaction.patterns import looks_random, mask_forms
from dragoman.protocol.redaction.sources import argument_secrets, request_secrets, url_secrets, variable_secrets
from dragoman.protocol.secrets import SHORTEST_SECRET
from dragoman.v1 import adapter_pb2, router_pb2
from google.protobuf import struct_pb2
from msgspec import Struct

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_WHERE_REFERRED: Final = "looks like a secret; put it into a file of the router's secrets, and write ${NAME} here"
_NOT_HERE: Final = "holds what looks like a secret, and a reference to one cannot stand here; leave it out"
_NOT_WHOLE: Final = "a reference ${NAME} to a secret must be the whole value, without text beside it"


class Place(Struct, frozen=True):
    """A text of an agent, and where it stands."""

    path: str
    text: str
    secrets: frozenset[str]
    """What the redaction takes for secrets in it."""


def reference(text: str) -> str | None:
    """Return the name of the secret that a value refers to; ``None`` if it is no reference."""
    found = _REFERENCE.fullmatch(text)
    return found[1] if found is not None else None


def references(agent: router_pb2.StoredAgent) -> list[str]:
    """Return the names of the secrets that an agent refers to, each once."""
    names = (reference(place.text) for place in _values(agent))
    return list(dict.fromkeys(name for name in names if name is not None))


def secret_violations(agent: router_pb2.StoredAgent) -> list[FieldViolation]:
    """Return the fields of an agent that hold a secret, or a reference where none may stand."""
    wrong = [*_wrong_values(agent), *_wrong_texts(agent)]
    return wrong or [*_unredacted(agent)]


def _wrong_values(agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    for place in _values(agent):
        name = reference(place.text)
        if name is None and _REFERENCE.search(place.text):
            yield FieldViolation(place.path, _NOT_WHOLE)
        elif name is None and place.secrets:
            yield FieldViolation(place.path, _WHERE_REFERRED)
        elif name is None and _looks_secret(place.text):
            yield FieldViolation(place.path, _NOT_HERE)
        elif name is not None and not _NAME.fullmatch(name):
            yield FieldViolation(place.path, f"a secret's name must match {_NAME.pattern}")


def _unredacted(agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    """Yield the places of references whose values would not be redacted."""
    for place in _values(agent):
        name = reference(place.text)
        if name is not None and place.text not in place.secrets:
            why = "a secret may stand only under a name that says so, such as API_KEY or token: others are shown"
            yield FieldViolation(place.path, why)


def _wrong_texts(agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    """Yield the texts in which a reference would stand for itself, and that hold a secret."""
    texts = {
        "description": agent.description,
        "system_prompt": agent.system_prompt,
        "instructions.text": agent.instructions.text,
        **{f"labels.{name}": value for name, value in sorted(agent.labels.items())},
    }
    for path, text in texts.items():
        if mask_forms(text) != text or any(True for _ in url_secrets(text)):
            yield FieldViolation(path, _NOT_HERE)
    if _looks_secret(agent.model):
        yield FieldViolation("model", _NOT_HERE)
    yield from _wrong_servers(agent)
    yield from _wrong_files(agent)
    yield from _wrong_fallbacks(agent)


def _wrong_servers(agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    for number, server in enumerate(agent.mcp_servers):
        path = f"mcp_servers[{number}]"
        if any(True for _ in argument_secrets(server.stdio.args)) or any(map(_looks_secret, server.stdio.args)):
            yield FieldViolation(f"{path}.stdio.args", _NOT_HERE)
        if any(True for _ in url_secrets(server.http.url)):
            yield FieldViolation(f"{path}.http.url", _NOT_HERE)


def _wrong_files(agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    for number, skill in enumerate(agent.skills):
        for file, content in sorted(skill.files.content.items()):
            text = content.decode("utf-8", "replace")
            if mask_forms(text) != text:
                yield FieldViolation(f"skills[{number}].files.content.{file}", _NOT_HERE)


def _wrong_fallbacks(agent: router_pb2.StoredAgent) -> Iterator[FieldViolation]:
    for name, struct in sorted(agent.fallback.configs.items()):
        for place in _settings(f"fallback.configs.{name}", struct):
            if place.secrets or _looks_secret(place.text) or _REFERENCE.search(place.text):
                yield FieldViolation(place.path, _NOT_HERE)


def _looks_secret(text: str) -> bool:
    """Return whether a text is a secret by its form, whatever it stands under.

    What looks random is searched for between dashes and dots: names of models, such as Qwen2.5-Coder-32B-Instruct,
    look random as a whole.
    """
    return mask_forms(text) != text or any(map(looks_random, re.split(r"[-.]", text)))


def _values(agent: router_pb2.StoredAgent) -> Iterator[Place]:
    """Yield the texts of an agent in whose place a reference may stand."""
    yield from _variables("env", agent.env)
    for number, server in enumerate(agent.mcp_servers):
        yield from _variables(f"mcp_servers[{number}].stdio.env", server.stdio.env)
        yield from _variables(f"mcp_servers[{number}].http.headers", server.http.headers)
    yield from _settings("config", agent.config)


def _variables(path: str, variables: Mapping[str, str]) -> Iterator[Place]:
    for name, value in sorted(variables.items()):
        yield Place(f"{path}.{name}", value, frozenset(variable_secrets({name: value})))


def _settings(path: str, struct: struct_pb2.Struct) -> Iterator[Place]:
    found = frozenset(request_secrets(adapter_pb2.ExecuteRequest(config=struct)))
    for own, text in _texts(path, struct_pb2.Value(struct_value=struct)):
        yield Place(own, text, frozenset(secret for secret in found if secret in text))


def _texts(path: str, value: struct_pb2.Value) -> Iterator[tuple[str, str]]:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        yield path, value.string_value
    elif kind == "struct_value":
        for name in sorted(value.struct_value.fields):
            yield from _texts(f"{path}.{name}", value.struct_value.fields[name])
    elif kind == "list_value":
        for number, item in enumerate(value.list_value.values):
            yield from _texts(f"{path}[{number}]", item)


def resolve(agent: router_pb2.StoredAgent, secrets: Mapping[str, str]) -> list[str]:
    """Put the values of secrets in place of the references to them; return the names of those that would be shown.

    Args:
        agent: the agent; it is changed.
        secrets: the values by name, of all ``references``.
    """
    for variables in (
        agent.env,
        *(server.stdio.env for server in agent.mcp_servers if server.HasField("stdio")),
        *(server.http.headers for server in agent.mcp_servers if server.HasField("http")),
    ):
        for name, value in list(variables.items()):
            if (known := reference(value)) is not None:
                variables[name] = secrets[known]
    for setting in agent.config.fields.values():
        _resolve_setting(setting, secrets)
    request = adapter_pb2.ExecuteRequest(config=agent.config, env=agent.env, mcp_servers=agent.mcp_servers)
    redacted = frozenset(request_secrets(request))
    return sorted(name for name, value in secrets.items() if value not in redacted or len(value) < SHORTEST_SECRET)


def _resolve_setting(value: struct_pb2.Value, secrets: Mapping[str, str]) -> None:
    kind = value.WhichOneof("kind")
    if kind == "string_value" and (name := reference(value.string_value)) is not None:
        value.string_value = secrets[name]
    elif kind == "struct_value":
        for item in value.struct_value.fields.values():
            _resolve_setting(item, secrets)
    elif kind == "list_value":
        for item in value.list_value.values:
            _resolve_setting(item, secrets)
