"""Whether adapters to fall back to know the settings that they would get.

What they do not know they refuse, and by then the run has failed once. So where an adapter has said what it knows, it
is seen before the run begins. No setting is left out for it: it may be what restricts the agent.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from dragoman.protocol.errors import FieldViolation
from dragoman.router._domain.fallback import settings_for
from dragoman.v1 import adapter_pb2

_MOST_NAMED: Final = 10
_LONGEST_NAME: Final = 64


def unknown_settings(
    request: adapter_pb2.ExecuteRequest, described: Mapping[str, adapter_pb2.DescribeResponse]
) -> list[FieldViolation]:
    """Return which adapters would refuse their settings, and what helps.

    Args:
        request: as the caller sent it.
        described: what adapters say of themselves, by their names in ``fallback``. One that is missing says what it
            does not know when it is asked to run.
    """
    wrong = []
    for name, description in described.items():
        settings = settings_for(request, name, request.fallback).fields
        known = _known(description.config_schema_json) if settings else None
        strange = sorted(set(settings) - known) if known is not None else []
        if strange:
            told = _told(description.adapter, strange, is_own=name in request.fallback.configs)
            wrong.append(FieldViolation(f"fallback.configs.{name}", told))
    return wrong


def _known(schema_json: str) -> set[str] | None:
    """Return the names of all settings that a schema allows; ``None`` if it does not say that these are all."""
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


def _told(adapter: str, strange: Sequence[str], *, is_own: bool) -> str:
    more = f" and {len(strange) - _MOST_NAMED} more" if len(strange) > _MOST_NAMED else ""
    names = ", ".join(name[:_LONGEST_NAME] for name in strange[:_MOST_NAMED]) + more
    if is_own:
        return f"the adapter {adapter!r} does not know these settings: {names}"
    return (
        f"must say what settings the adapter {adapter!r} gets in place of the request's, {{}} for none:"
        f" it does not know {names}"
    )
