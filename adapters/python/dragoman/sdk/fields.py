"""Reading JSON from an untrusted source: values of the expected type, or a fallback."""

from dragoman.sdk._encoding.config import as_bool, as_int, as_number, as_object, as_string, as_string_list
from dragoman.sdk._encoding.fields import Fields, count, inner, iso_moment, number, objects, text, unix_moment
from dragoman.sdk._encoding.json_text import JsonValue, compact, parse_json_object, read_json_object

__all__ = [
    "Fields",
    "JsonValue",
    "as_bool",
    "as_int",
    "as_number",
    "as_object",
    "as_string",
    "as_string_list",
    "compact",
    "count",
    "inner",
    "iso_moment",
    "number",
    "objects",
    "parse_json_object",
    "read_json_object",
    "text",
    "unix_moment",
]
