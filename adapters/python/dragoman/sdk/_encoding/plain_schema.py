"""Whether a value fits a schema that uses only the common keywords of JSON Schema.

To import the library that knows all of them takes a third of a sidecar's start, and most configs fit. Here nothing is
explained: what does not fit, or is not plain, is for the library.
"""

# No library does this for less: fastjsonschema knows no draft of 2020 and takes 17 ms of CPU to import; jsonschema-rs
# takes 26 ms and 9 MB in each sidecar, jsonschema 80 ms. This takes none and half a millisecond for the first config.

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dragoman.sdk._encoding.json_text import JsonValue

__all__ = ["fits", "is_plain"]

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
_TYPES: Final[Mapping[str, Callable[[JsonValue], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def is_plain(schema: object) -> bool:
    """Return whether ``fits`` understands everything that a schema says."""
    return isinstance(schema, Mapping) and all(
        keyword in _ANNOTATIONS or keyword.startswith("x-") or (keyword in _PLAIN and _PLAIN[keyword](rule))
        for keyword, rule in schema.items()
    )


def fits(value: JsonValue, schema: Mapping[str, Any]) -> bool:
    """Return whether a value fits a plain schema; false may also mean that it is not known."""
    return all(_FITS[keyword](value, rule) for keyword, rule in schema.items() if keyword in _FITS) and (
        not isinstance(value, dict) or _has_known_properties(value, schema)
    )


def _has_known_properties(value: Mapping[str, JsonValue], schema: Mapping[str, Any]) -> bool:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    rules = ((item, known.get(name, others)) for name, item in value.items())
    return all(rule if isinstance(rule, bool) else fits(item, rule) for item, rule in rules)


def _is_number(rule: object) -> bool:
    return _TYPES["number"](rule)  # type: ignore[arg-type]  # any value may be in a schema


def _is_length(rule: object) -> bool:
    return isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0


def _is_pattern(rule: object) -> bool:
    try:
        return isinstance(rule, str) and re.compile(rule) is not None
    except re.error:
        return False


def _are_strings(rule: object) -> bool:
    return isinstance(rule, list) and all(isinstance(item, str) for item in rule) and len(set(rule)) == len(rule)


_PLAIN: Final[Mapping[str, Callable[[Any], bool]]] = {
    "$schema": lambda rule: rule == _DRAFT,
    "type": lambda rule: isinstance(rule, str) and rule in _TYPES,
    "enum": _are_strings,
    "required": _are_strings,
    "minimum": _is_number,
    "maximum": _is_number,
    "minLength": _is_length,
    "maxLength": _is_length,
    "pattern": _is_pattern,
    "items": is_plain,
    "propertyNames": is_plain,
    "properties": lambda rule: isinstance(rule, Mapping) and all(map(is_plain, rule.values())),
    "additionalProperties": lambda rule: isinstance(rule, bool) or is_plain(rule),
    "uniqueItems": lambda rule: isinstance(rule, bool),
}
"""The keywords, and whether a rule is one."""

_FITS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "type": lambda value, rule: _TYPES[rule](value),
    "enum": lambda value, rule: isinstance(value, str) and value in rule,
    "required": lambda value, rule: not isinstance(value, dict) or value.keys() >= set(rule),
    "minimum": lambda value, rule: not _is_number(value) or value >= rule,
    "maximum": lambda value, rule: not _is_number(value) or value <= rule,
    "minLength": lambda value, rule: not isinstance(value, str) or len(value) >= rule,
    "maxLength": lambda value, rule: not isinstance(value, str) or len(value) <= rule,
    "pattern": lambda value, rule: not isinstance(value, str) or re.search(rule, value) is not None,
    "items": lambda value, rule: not isinstance(value, list) or all(fits(item, rule) for item in value),
    "propertyNames": lambda value, rule: not isinstance(value, dict) or all(fits(name, rule) for name in value),
    "uniqueItems": lambda value, rule: not rule or not isinstance(value, list) or _are_strings(value),
}
