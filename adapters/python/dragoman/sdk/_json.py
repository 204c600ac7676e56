"""JSON values as Python holds them after parsing."""

import json
from typing import TypeAlias

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
"""Whatever ``json.loads`` returns."""

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object."""


def compact(value: object) -> str:
    """Return ``value`` as JSON text on one line, without spaces and with non-ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
