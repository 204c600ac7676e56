"""Checks before a run whether its fallback adapters know the settings that they would get.

An adapter rejects settings that it does not know, so that the fallback would fail when it is needed. If the router
knows the adapter's schema, it rejects the request instead. It drops no setting, as that may be what restricts the
agent.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from dragoman.protocol.errors import FieldViolation
from dragoman.router.policy.fallback import settings_for
from dragoman.v1 import adapter_pb2

_MOST_NAMED: Final = 10
_LONGEST_NAME: Final = 64


def unknown_settings(
    request: adapter_pb2.ExecuteRequest, described: Mapping[str, adapter_pb2.DescribeResponse]
) -> list[FieldViolation]:
    """Return which adapters would reject their settings, and what to do about it.

    Args:
        request: as the caller sent it.
        described: descriptions of adapters by their names in ``fallback``. An adapter without one is not checked.
    """
    wrong = []
    for name, description in described.items():
        settings = settings_for(request, name, request.fallback).fields
        known = _known(description.config_schema_json) if settings else None
        strange = sorted(set(settings) - known) if known is not None else []
        if strange:
            problem = _description(description.adapter, strange, is_own=name in request.fallback.configs)
            wrong.append(FieldViolation(f"fallback.configs.{name}", problem))
    return wrong


def _known(schema_json: str) -> set[str] | None:
    """Return the names of all settings that a schema allows; ``None`` if it allows further ones."""
    try:
        schema = json.loads(schema_json)
    except (ValueError, RecursionError):
        return None
    if not isinstance(schema, dict) or "patternProperties" in schema:
        return None
    if schema.get("additionalProperties") is not False:
        return None
    properties = schema.get("properties", {})
    return set(properties) if isinstance(properties, dict) else None


def _description(adapter: str, strange: Sequence[str], *, is_own: bool) -> str:
    more = f" and {len(strange) - _MOST_NAMED} more" if len(strange) > _MOST_NAMED else ""
    names = ", ".join(name[:_LONGEST_NAME] for name in strange[:_MOST_NAMED]) + more
    if is_own:
        return f"adapter {adapter!r} does not know these settings: {names}"
    return (
        f"adapter {adapter!r} does not know these settings of the request: {names}; set this field to the settings"
        " it gets instead, {} for none"
    )
