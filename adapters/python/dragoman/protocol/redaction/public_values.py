"""JSON objects without the values that are secret by their names, for texts that an agent reads. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from dragoman.protocol.redaction.patterns import KeyKind, is_numeric, key_kind
from dragoman.protocol.texts import JsonObject, JsonValue

# Outside of settings, "key" alone is too common a word (issueKey, taskKey) to hide what is under it.
_CREDENTIAL: Final = (
    "(?i)token|secret|password|passwd|passphrase|authorization|cookie|(?:api|access|private)[-_ ]?key"
)


def public_settings(settings: Mapping[str, JsonValue]) -> JsonObject:
    """Return settings without ``env`` and without values under keys that name a secret, at any depth."""
    return _public(settings, _is_secret)


def public_data(data: Mapping[str, JsonValue]) -> JsonObject:
    """Return other data without values under keys that name a credential, at any depth."""
    return _public(data, lambda key, value: re.search(_CREDENTIAL, key) is not None and _is_secret(key, value))


def _public(data: Mapping[str, JsonValue], is_secret: Callable[[str, JsonValue], bool]) -> JsonObject:
    def shown(value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return _public(value, is_secret)
        return [shown(item) for item in value] if isinstance(value, list) else value

    return {key: shown(value) for key, value in data.items() if not is_secret(key, value)}


def _is_secret(key: str, value: JsonValue) -> bool:
    kind = key_kind(key)
    if kind is KeyKind.COUNTER:
        return not (isinstance(value, int | float) or (isinstance(value, str) and is_numeric(value)))
    return kind is KeyKind.SECRET or key.lower() == "env"
