"""JSON values as Python holds them after parsing."""

import json
import re
from pathlib import Path
from typing import Final, TypeAlias

from dragoman.sdk._encoding.lines import well_formed

_EXACT_INTEGERS: Final = 2.0**53  # beyond, neighbouring integers share a double

_MOST_FILE_BYTES: Final = 1024 * 1024

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""Whatever ``json.loads`` returns."""

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object."""

# Escaped, or as the three bytes that json.loads takes for one although UTF-8 forbids them.
_MAY_HOLD_SURROGATES: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


def compact(value: object) -> str:
    """Return ``value`` as JSON text on one line, without spaces and with non-ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def whole_number(value: float) -> int | float:
    """Return a double that is a whole number as the integer it stands for; any other as it is.

    Protobuf's Struct knows only doubles, so 5 arrives as 5.0. Beyond 2**53 it is unknown which integer
    was meant.
    """
    return int(value) if value.is_integer() and abs(value) <= _EXACT_INTEGERS else value


def parse_json_object(data: bytes) -> JsonObject | None:
    """Return the JSON object that ``data`` holds; None if it holds anything else.

    Strings come out well formed: JSON can smuggle in half a surrogate pair, which protobuf refuses.
    """
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            return None
        return _well_formed_object(value) if _MAY_HOLD_SURROGATES.search(data) else value
    except (ValueError, RecursionError):
        return None


def read_json_object(path: Path) -> JsonObject:
    """Return the JSON object in a file; empty if there is none that can be read, or it has more than a mebibyte."""
    try:
        with path.open("rb") as file:
            return parse_json_object(file.read(_MOST_FILE_BYTES)) or {}
    except (OSError, ValueError):  # ValueError: no path at all
        return {}


def _well_formed_object(value: JsonObject) -> JsonObject:
    return {well_formed(key): _well_formed_value(item) for key, item in value.items()}


def _well_formed_value(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return _well_formed_object(value)
    if isinstance(value, list):
        return [_well_formed_value(item) for item in value]
    return value
