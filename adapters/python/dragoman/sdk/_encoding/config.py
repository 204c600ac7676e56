"""An adapter's ``config``: numbers as they were meant, checked against its schema, read with fall-backs.

Checking is in ``schema``; here is what a config is made of.
"""

import copy
import json
import math
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from dragoman.sdk._encoding.json_text import JsonObject, JsonValue, whole_number

_COMMON: Final = "dragoman:common#/$defs/"
T = TypeVar("T")


@cache
def _common_definitions() -> dict[str, JsonObject]:
    definitions: dict[str, JsonObject] = json.loads(packaged_file("dragoman.sdk", "common.schema.json"))["$defs"]
    return definitions


def packaged_file(package: str, name: str) -> str:
    """Return the text of a file beside a package's modules; ``importlib.resources`` is slow to import.

    Raises:
        OSError: There is none.
    """
    data = pkgutil.get_data(package, name)
    assert data is not None, "every loader of packages gives their files"
    return data.decode()


def common_properties(*names: str) -> dict[str, JsonObject]:
    """Return JSON Schema properties that many adapters share; all of ``common.schema.json`` if none is named.

    Each says in its description what it does, its unit and what absence means. ``x-common`` is true for what
    every command line can honour, ``x-dangerous`` for what runs a program or takes a safeguard away.

    Raises:
        KeyError: One of ``names`` is no common property.
    """
    common = _common_definitions()
    return copy.deepcopy({name: common[name] for name in names or common})


def bundled_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an adapter's schema with its references to ``common.schema.json`` replaced by what they name.

    A property refers to a common one with ``{"$ref": "dragoman:common#/$defs/model"}``. What else it says wins.

    Raises:
        ValueError: There is no such common property.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return dict(schema)
    return {**schema, "properties": {name: _resolved(about) for name, about in properties.items()}}


def _resolved(about: object) -> object:
    reference = about.get("$ref") if isinstance(about, Mapping) else None
    if not isinstance(about, Mapping) or not isinstance(reference, str) or not reference.startswith(_COMMON):
        return about
    name = reference.removeprefix(_COMMON)
    if name not in _common_definitions():
        known = ", ".join(sorted(_common_definitions()))
        raise ValueError(f"$ref {reference}: there is no such common property; known are: {known}")
    return {**common_properties(name)[name], **{key: value for key, value in about.items() if key != "$ref"}}


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
