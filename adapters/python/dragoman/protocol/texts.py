"""Texts within bounds, and JSON values as Python holds them after parsing. Pure."""

import json
import math
from typing import Final, TypeAlias

from google.protobuf import struct_pb2
from google.protobuf.descriptor import EnumDescriptor

_EXACT_INTEGERS: Final = 2.0**53  # beyond, neighbouring integers share a double

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""Whatever ``json.loads`` returns."""

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object."""


def compact(value: object) -> str:
    """Return ``value`` as JSON text on one line, without spaces and with non-ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def enum_name(enum: EnumDescriptor, number: int, prefix: str = "") -> str:
    """Return the name of an enumeration's value without a prefix; of a value of a later contract, its number."""
    value = enum.values_by_number.get(number)
    return str(number) if value is None else str(value.name).removeprefix(prefix)


def whole_number(value: float) -> int | float:
    """Return a double that is a whole number as the integer it stands for; any other as it is.

    Protobuf's Struct knows only doubles, so 5 arrives as 5.0. Beyond 2**53 it is unknown which integer
    was meant.
    """
    return int(value) if value.is_integer() and abs(value) <= _EXACT_INTEGERS else value


def struct_values(struct: struct_pb2.Struct) -> JsonObject:
    """Return a Struct as Python values, whole numbers as ints.

    Raises:
        ValueError: it holds a number that is infinite or not a number.
    """
    return {key: _value(value) for key, value in struct.fields.items()}


def _value(value: struct_pb2.Value) -> JsonValue:
    match value.WhichOneof("kind"):
        case "struct_value":
            return struct_values(value.struct_value)
        case "list_value":
            return [_value(item) for item in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "number_value":
            if not math.isfinite(value.number_value):
                raise ValueError("a number that is infinite or not a number")
            return whole_number(value.number_value)
    return None


def well_formed(text: str) -> str:
    r"""Return ``text`` with every lone surrogate made U+FFFD; the same object if there is none.

    JSON can smuggle half a surrogate pair into a string (``"\ud800"``); UTF-8, and so protobuf,
    refuses it.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # Halves that do stand next to each other are joined on the way.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def utf8_bytes(text: str) -> int:
    """Return how many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def cut_text(text: str, max_bytes: int) -> tuple[str, int]:
    """Shorten ``text`` to at most ``max_bytes`` of UTF-8 without cutting a character.

    Returns:
        The beginning of the text (well formed; the same object if nothing was changed) and the
        number of bytes left out.
    """
    text = well_formed(text)
    if len(text) * 4 <= max_bytes:  # no character takes more than four bytes
        return text, 0
    data = text.encode()
    if len(data) <= max_bytes:
        return text, 0
    kept = data[: max(0, max_bytes)].decode("utf-8", "ignore")
    return kept, len(data) - len(kept.encode())
