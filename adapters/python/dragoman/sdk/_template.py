"""Prompt templates: ``{{path.to.value}}``, and nothing more.

No logic, no escapes, no second look at what was put in: a value that contains ``{{...}}`` stays as it
is, so that a task's text cannot reach for the agent's settings.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dragoman.sdk._json import JsonObject, JsonValue, compact, whole_number
from dragoman.sdk._secret_patterns import KeyKind, is_numeric, key_kind

DEFAULT_PROMPT: Final = "You are agent {{agent.id}} ({{agent.name}}). Continue your {{brand.name}} work."
"""The prompt of a run with neither prompt nor template."""

DEFAULT_BRAND: Final = "Dragoman"
"""What ``{{brand.name}}`` is for a caller without one."""

_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*\}\}")
_INDEX: Final = re.compile("[0-9]{1,9}")
# Outside of config, "key" alone is too common a word (issueKey, taskKey) to hide what is under it.
_CREDENTIAL: Final = re.compile(
    "token|secret|password|passwd|passphrase|authorization|cookie|(?:api|access|private)[-_ ]?key", re.IGNORECASE
)

_HUMP: Final = re.compile("(?<=[a-z0-9])([A-Z])")
# The seeds know some things by two names; either leads to the same.
_CONTEXT_ALIASES: Final = (("taskId", "issueId"), ("wakeCommentId", "commentId"), ("linkedIssueIds", "issueIds"))

Data: TypeAlias = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template with its values in place."""

    text: str
    missing: tuple[str, ...]
    """Paths that led nowhere or to null, each once, in order; empty text stands in their place."""


def render(template: str, data: Data) -> Rendered:
    """Put values in place of every ``{{path.to.value}}``.

    A path goes through objects by key and through lists by index. Text is put in as it is, numbers
    and booleans as JSON writes them (5, not 5.0), objects and lists as JSON on one line.
    """
    missing: dict[str, None] = {}

    def value_of(match: re.Match[str]) -> str:
        value = _plain_numbers(_look_up(data, match[1]))
        if value is None:
            missing[match[1]] = None
            return ""
        return value if isinstance(value, str) else compact(value)

    text = _PLACEHOLDER.sub(value_of, template)
    return Rendered(text, tuple(missing))


def template_data(
    *,
    run_id: str,
    agent: Data | None = None,
    company: Data | None = None,
    run: Data | None = None,
    context: Data | None = None,
    brand: Data | None = None,
) -> JsonObject:
    """Return the variables that templates can use: those of the seeds, and ``brand``.

    ``agentId``, ``companyId``, ``runId``; ``agent`` {id, companyId, name, adapterType, adapterConfig},
    ``company``, ``run`` {id}, ``context`` {taskId, issueId, wakeReason, wakeCommentId, commentId,
    approvalId, approvalStatus, issueIds, linkedIssueIds}, ``brand`` {name}. Each object also holds
    whatever else it was given. Keys may be given in either spelling (``company_id``, ``companyId``)
    and can be used in both. ``context.extra`` is spread into ``context``, where the named fields win.

    Empty text and empty lists of agent and context are absent.

    Secrets are out of reach: no ``env``, no value under a key that names a secret anywhere in
    ``adapterConfig``, nor under one that names a credential elsewhere.
    """
    made_agent = _both_spellings(_agent(agent or {}))
    made_company = _both_spellings(_public(company or {}))
    made_brand = _both_spellings(_public(brand or {}))
    if not made_brand.get("name"):
        made_brand["name"] = DEFAULT_BRAND
    return {
        "agentId": made_agent.get("id"),
        "companyId": made_agent.get("companyId") or made_company.get("id"),
        "runId": run_id,
        "agent": made_agent,
        "company": made_company,
        "run": {**_both_spellings(_public(run or {})), "id": run_id},
        "context": _both_spellings(_context(context or {})),
        "brand": made_brand,
    }


def _look_up(data: Data, path: str) -> JsonValue:
    value: JsonValue = dict(data)
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and _INDEX.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _plain_numbers(value: JsonValue) -> JsonValue:
    """Return ``value`` with whole numbers as integers, as JSON writes them, and what JSON lacks as null."""
    if isinstance(value, float):
        return whole_number(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    return value


def _agent(agent: Data) -> JsonObject:
    config = agent.get("adapter_config") or agent.get("adapterConfig")
    others = {key: item for key, item in agent.items() if key not in {"adapter_config", "adapterConfig"}}
    made = _present(_public(others))
    if isinstance(config, dict):
        made["adapterConfig"] = _public_object(config, _is_secret_setting)
    return made


def _context(context: Data) -> JsonObject:
    extra = context.get("extra")
    made = _public(extra) if isinstance(extra, dict) else {}
    named = _present(_public({key: item for key, item in context.items() if key != "extra"}))
    made = _both_spellings(made) | _both_spellings(named)
    for one, other in _CONTEXT_ALIASES:
        if one in made or other in made:
            made.setdefault(one, made.get(other))
            made.setdefault(other, made.get(one))
    return made


def _present(data: JsonObject) -> JsonObject:
    return {key: item for key, item in data.items() if item not in ("", [], None)}


def _both_spellings(data: JsonObject) -> JsonObject:
    made = dict(data)
    for key, item in data.items():
        first, *others = key.split("_")
        made.setdefault(first + "".join(map(str.capitalize, others)), item)
        made.setdefault(_HUMP.sub(r"_\1", key).lower(), item)
    return made


def _public(data: Data) -> JsonObject:
    return _public_object(data, _is_credential)


def _public_object(data: Data, is_secret: Callable[[str, JsonValue], bool]) -> JsonObject:
    return {key: _public_value(item, is_secret) for key, item in data.items() if not is_secret(key, item)}


def _public_value(value: JsonValue, is_secret: Callable[[str, JsonValue], bool]) -> JsonValue:
    if isinstance(value, dict):
        return _public_object(value, is_secret)
    if isinstance(value, list):
        return [_public_value(item, is_secret) for item in value]
    return value


def _is_secret_setting(key: str, value: JsonValue) -> bool:
    kind = key_kind(key)
    if kind is KeyKind.COUNTER:
        return not (isinstance(value, int | float) or (isinstance(value, str) and is_numeric(value)))
    return kind is KeyKind.SECRET or key.lower() == "env"


def _is_credential(key: str, value: JsonValue) -> bool:
    return _CREDENTIAL.search(key) is not None and _is_secret_setting(key, value)
