"""Who honours each field of a request, and who has each other duty of a run.

The table is data beside the contract (``duties.json``), from which the documentation is generated. ``unsupported``
finds what a request sets and an adapter cannot honour; it needs nothing but the request and the description.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast

from dragoman.v1 import adapter_pb2, event_pb2
from google.protobuf import struct_pb2
from google.protobuf.message import Message
from msgspec import Struct

Who = Literal["adapter", "optional", "adapter_or_router", "adapter_or_refused", "router"]
"""See ``meanings``."""

ALL_DUTIES: Final = tuple(number for number in adapter_pb2.Duty.values() if number)
"""What an adapter declares that leaves nothing to a router."""


LIMIT_SETTINGS: Final = {"wall": "timeoutSec", "grace": "graceSec"}
"""Settings that hold a limit where ``limits`` does not."""


class Rule(Struct, frozen=True):
    """One row of the table."""

    name: str
    """The path of a field of ExecuteRequest (``limits.wall``), or the name of a duty."""
    who: Who
    rule: str
    """What is to be done, for people."""
    declared_by: tuple[str, ...] = ()
    """What a description says of an adapter that does it: names of values of Duty, Feature and PermissionMode, and of
    fields; one of them is enough."""


@cache
def _table() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(adapter_pb2.__file__).with_name("duties.json").read_text(encoding="utf-8"))
    return data


@cache
def fields() -> tuple[Rule, ...]:
    """Return a rule for each field of ExecuteRequest, or for each field of the message in it."""
    return tuple(_rule("field", row) for row in _table()["fields"])


@cache
def duties() -> tuple[Rule, ...]:
    """Return the rules of the duties beside the fields, and of those behind several fields."""
    return tuple(_rule("duty", row) for row in _table()["duties"])


def meanings() -> dict[Who, str]:
    """Return what each ``who`` means, for people."""
    return dict(_table()["who"])


def _rule(key: str, row: dict[str, Any]) -> Rule:
    return Rule(row[key], row["who"], row["rule"], tuple(row.get("declared_by", ())))


def declarations(description: adapter_pb2.DescribeResponse) -> frozenset[str]:
    """Return what a description declares, as ``Rule.declared_by`` names it, without what a later revision added."""
    capabilities = description.capabilities
    modes = event_pb2.PermissionMode.DESCRIPTOR.values_by_number
    return frozenset(
        (
            *_names(adapter_pb2.Duty.DESCRIPTOR, description.duties),
            *_names(event_pb2.Feature.DESCRIPTOR, (item.feature for item in capabilities.items)),
            *((modes[capabilities.permission_mode].name,) if capabilities.permission_mode in modes else ()),
            *(name for name in ("batching", "config_schema_json") if getattr(description, name)),
        )
    )


def _names(kind: Any, numbers: Any) -> Iterator[str]:
    return (kind.values_by_number[number].name for number in numbers if number in kind.values_by_number)


def is_set(request: adapter_pb2.ExecuteRequest, path: str) -> bool:
    """Return whether a request sets the field at a path to anything; an empty message asks for nothing."""
    value, has_presence = cast("Any", request), True
    for name in path.split("."):
        has_presence = value.DESCRIPTOR.fields_by_name[name].has_presence
        if has_presence and not value.HasField(name):
            return False
        value = getattr(value, name)
    return bool(value.ByteSize()) if isinstance(value, Message) else has_presence or bool(value)


def settings_of(request: adapter_pb2.ExecuteRequest) -> struct_pb2.Struct:
    """Return the settings in effect: the request's ``config``, else those in its record of the agent."""
    return request.config if request.HasField("config") else request.agent.adapter_config


def unsupported(request: adapter_pb2.ExecuteRequest, declared: frozenset[str]) -> list[Rule]:
    """Return the rules of the fields that a request sets and that an adapter with these ``declarations`` rejects."""
    return [
        rule
        for rule in fields()
        if rule.who == "adapter_or_refused" and declared.isdisjoint(rule.declared_by) and is_set(request, rule.name)
    ]
