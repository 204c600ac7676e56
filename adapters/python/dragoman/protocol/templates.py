"""Prompt templates: ``{{path.to.value}}``, and nothing more.

There is no logic, no escaping and no second pass: a value that contains ``{{...}}`` stays as it is, so that a task's
text cannot reach for the agent's settings.
"""

import re
from collections.abc import Mapping
from typing import Final

from dragoman.protocol.limits import MAX_REQUEST_BYTES
from dragoman.protocol.texts import JsonValue, compact
from msgspec import Struct

_CONTINUE: Final = "Continue your {{brand.name}} work."

_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*\}\}")
_INDEX: Final = re.compile("[0-9]{1,9}")
_MOST_RENDERED: Final = MAX_REQUEST_BYTES
"""Characters that values put into one template."""


class TemplateSizeError(ValueError):
    """The values of a template make too long a text."""


class Rendered(Struct, frozen=True):
    """A template with its values in place."""

    text: str
    missing: tuple[str, ...]
    """Paths that led nowhere or to null, each once, in order; empty text stands in their place."""


def default_prompt(data: Mapping[str, JsonValue]) -> str:
    """Return the template of a run with neither prompt nor template: it says who the agent is, as far as it is known.

    Paperclip and its like start an agent without a prompt: it looks for its work itself.
    """
    names = [f"{{{{{path}}}}}" for path in ("agent.id", "agent.name") if _value_at(data, path)]
    if not names:
        return _CONTINUE
    return f"You are agent {names[0]}{''.join(f' ({name})' for name in names[1:])}. {_CONTINUE}"


def render(template: str, data: Mapping[str, JsonValue]) -> Rendered:
    """Replace every ``{{path.to.value}}`` by its value.

    A path goes through objects by key and through lists by index. Text is put in as it is, anything else as JSON on
    one line.

    Raises:
        TemplateSizeError: the values would make more than 16 Mi characters.
    """
    shown: dict[str, str] = {}
    missing: dict[str, None] = {}
    size = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal size
        path = match[1]
        if path not in shown:
            value = _value_at(data, path)
            if value is None:
                missing[path] = None
            shown[path] = value if isinstance(value, str) else "" if value is None else compact(value)
        size += len(shown[path])
        if size > _MOST_RENDERED:
            raise TemplateSizeError
        return shown[path]

    text = _PLACEHOLDER.sub(replacement, template)
    return Rendered(text, tuple(missing))


def _value_at(data: Mapping[str, JsonValue], path: str) -> JsonValue:
    first, *parts = path.split(".")
    value = data.get(first)
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
