"""Schemas that tests write."""

from collections.abc import Mapping, Sequence

from dragoman.sdk._encoding.json_text import JsonObject


def config_schema(properties: Mapping[str, JsonObject], required: Sequence[str] = ()) -> JsonObject:
    """Return the schema of a config with these properties and no others."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        **({"required": list(required)} if required else {}),
        "properties": dict(properties),
        "additionalProperties": False,
    }
