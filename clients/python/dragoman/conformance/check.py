"""What a check is: a rule as data, and the function that examines it.

The rules are in ``rules.toml``; `RULES` has them. ``@check`` binds a coroutine function to a rule, ``@stream_check``
a function that looks at every stream of all other checks, ``@status_check`` one that looks at every error status.
"""

import enum
import tomllib
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from dragoman.conformance.kit import Kit
    from dragoman.conformance.streams import Stream
    from dragoman.protocol.errors import DragomanError


class Level(enum.StrEnum):
    """How binding a rule is, as in RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class Rule(Struct, frozen=True):
    """One rule of the contract."""

    id: str
    level: Level
    text: str
    """The rule in one sentence."""
    place: str
    """Where the contract says so."""
    revision: int = 1
    """The revision of the contract that has it first."""
    wait_s: float = 0.0
    """How long the check waits by its nature, in seconds; that does not count against its time limit."""
    declared_by: tuple[str, ...] = ()
    """What a description says of an adapter that has to keep the rule, as ``declarations`` names it; one of them is
    enough. Empty: every adapter has to."""


UNEXAMINED: dict[str, str] = {
    "FEATURE_SURGICAL_EDIT": "what an agent's own tools can do shows in no event",
    "FEATURE_COMPACTION": "the kit cannot fill the context of an agent, and a stand-in has none",
    "FEATURE_NATIVE_SKILLS": "in whichever way a skill reaches the agent, settings.skills examines that it does",
    "FEATURE_IMAGES": "only a model sees an image; attachments.images examines that others refuse it",
}
"""The features that no rule examines, with the reasons."""


class Violation(Exception):  # noqa: N818 - what a check finds, not an error of the kit
    """The target violates the rule; the text says how."""


class Skip(Exception):  # noqa: N818 - as above
    """The rule cannot be examined here; the text says why."""


def expect(condition: object, message: str) -> None:
    """Require a condition.

    Raises:
        Violation: it does not hold.
    """
    if not condition:
        raise Violation(message)


def _load() -> dict[str, Rule]:
    data = tomllib.loads(resources.files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))
    rules = [
        Rule(name, Level(entry.pop("level")), declared_by=tuple(entry.pop("declared_by", ())), **entry)
        for name, entry in _flat(data)
    ]
    return {rule.id: rule for rule in rules}


def _flat(data: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{topic}.{name}", entry) for topic, entries in data.items() for name, entry in entries.items()]


RULES: dict[str, Rule] = _load()
"""Every rule, by ID."""

CheckFunction = Callable[["Kit"], Awaitable[None]]
StreamFunction = Callable[["Stream"], str]
StatusFunction = Callable[["DragomanError"], str]

CHECKS: dict[str, CheckFunction] = {}
"""The checks that call the target, by the rule's ID."""
STREAM_CHECKS: dict[str, StreamFunction] = {}
"""The checks of all streams; each returns what is wrong, or an empty text."""
STREAM_KINDS: dict[str, frozenset[str]] = {}
"""The kinds of events without which a check of streams sees nothing; empty: any."""
STATUS_CHECKS: dict[str, StatusFunction] = {}
"""The checks of all error statuses; each returns what is wrong, or an empty text."""


def check(rule_id: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register the check of a rule. It raises `Violation` or `Skip`; returning means that the rule is kept."""

    def register(function: CheckFunction) -> CheckFunction:
        CHECKS[rule_id] = function
        return function

    return register


def stream_check(rule_id: str, *kinds: str) -> Callable[[StreamFunction], StreamFunction]:
    """Register a check of all streams, or of those with an event of certain kinds."""

    def register(function: StreamFunction) -> StreamFunction:
        STREAM_KINDS[rule_id] = frozenset(kinds)
        STREAM_CHECKS[rule_id] = function
        return function

    return register


def status_check(rule_id: str) -> Callable[[StatusFunction], StatusFunction]:
    """Register a check of all error statuses."""

    def register(function: StatusFunction) -> StatusFunction:
        STATUS_CHECKS[rule_id] = function
        return function

    return register
