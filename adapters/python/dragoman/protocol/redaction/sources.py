"""Where in a request secrets may be: every place from which a value can get into what an agent prints. Pure."""

import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dragoman.protocol.duties import settings_of
from dragoman.protocol.redaction.patterns import (
    command_values,
    is_caller_secret,
    is_caller_secret_name,
    is_numeric,
    is_secret_flag,
)
from dragoman.protocol.secrets import is_plain_word
from dragoman.v1 import adapter_pb2
from google.protobuf import struct_pb2

_CREDENTIAL: Final = re.compile(r"^(?i:bearer|basic|token) +(\S+)$")
# Bounded schemes: else each letter of a long word would be looked at once for each letter before it.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s\"'<>]+")
_MAPS_OF_VARIABLES: Final = frozenset({"env", "headers"})
"""Objects in settings whose values are judged as variables are."""
# Settings that stand under names like USE_TOKENS or COOKIE; as secrets they would be cut out of every text.
_COMMON_VALUES: Final = frozenset({"oauth2", "read-only", "read-write", "us-east-1", "localhost"})


def is_searchable(value: str) -> bool:
    """Return whether texts are searched for a secret value: not for words and common settings."""
    return bool(value) and not is_plain_word(value) and value.lower() not in _COMMON_VALUES


def request_secrets(request: adapter_pb2.ExecuteRequest) -> tuple[str, ...]:
    """Return the secrets that a request holds, each once: the token whatever it is, others unless they are words."""
    found = [
        *variable_secrets(request.env),
        *_setting_secrets("", settings_of(request)),
        *url_secrets(request.api_url),
    ]
    for server in request.mcp_servers:
        found += variable_secrets(server.stdio.env)
        found += variable_secrets(server.http.headers)
        found += argument_secrets(server.stdio.args)
        found += url_secrets(server.http.url)
    token = [request.auth_token] if request.auth_token else []
    return tuple(dict.fromkeys([*token, *filter(is_searchable, found)]))


def variable_secrets(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets among variables or headers that a caller gave."""
    for name, value in variables.items():
        if is_caller_secret(name, value):
            yield value
            yield from _CREDENTIAL.findall(value)
        yield from url_secrets(value)


def argument_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the secrets on a command line: ``--token X``, ``--api-key=X``, ``X_TOKEN=X``, ``Authorization: X``."""
    after_flag = False
    for item in arguments:
        if after_flag and not item.startswith("-"):
            yield item
        after_flag = is_secret_flag(item)
        yield from command_values(item)
        yield from url_secrets(item)


def url_secrets(text: str) -> Iterator[str]:
    """Yield the secrets in the URLs of a text: user and password, and parameters whose name says so."""
    if "://" not in text:
        return
    for url in _URL.findall(text):
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError:  # no URL after all
            continue
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        yield from _both(password or user)
        for pair in f"{parts.query}&{parts.fragment}".split("&"):
            name, _, value = pair.partition("=")
            if value and is_caller_secret_name(name) and not is_numeric(value):
                yield from _both(value)


def _both(value: str) -> Iterable[str]:
    return {value, urllib.parse.unquote(value)}


def _setting_secrets(key: str, struct: struct_pb2.Struct) -> Iterator[str]:
    """Yield the secrets among settings: by their names, and in objects of variables as variables are judged."""
    for name, value in struct.fields.items():
        if key.lower() in _MAPS_OF_VARIABLES and value.WhichOneof("kind") == "string_value":
            yield from variable_secrets({name: value.string_value})
        else:
            yield from _value_secrets(name, value)


def _value_secrets(key: str, value: struct_pb2.Value) -> Iterator[str]:
    match value.WhichOneof("kind"):
        case "string_value":
            text = value.string_value
            if text and is_caller_secret_name(key) and not is_numeric(text):
                yield text
                yield from _CREDENTIAL.findall(text)
            yield from url_secrets(text)
        case "struct_value":
            yield from _setting_secrets(key, value.struct_value)
        case "list_value":
            items = value.list_value.values
            texts = [item.string_value for item in items if item.WhichOneof("kind") == "string_value"]
            yield from argument_secrets(texts)
            for item in items:
                yield from _value_secrets(key, item)
