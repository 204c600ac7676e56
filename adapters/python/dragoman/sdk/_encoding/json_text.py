"""JSON values as Python holds them after parsing."""

import json
import re
from pathlib import Path
from typing import Final

from dragoman.protocol.texts import JsonObject, JsonValue, compact, well_formed, whole_number

__all__ = ["JsonObject", "JsonValue", "compact", "parse_json_object", "read_json_object", "whole_number"]

_MOST_FILE_BYTES: Final = 1024 * 1024

# Escaped, or as the three bytes that json.loads takes for one although UTF-8 forbids them.
_MAY_HOLD_SURROGATES: Final = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


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
