"""Checking an adapter's ``config`` against its JSON Schema, and reporting what is wrong.

A problem is reported by path (``config.env.FOO``, ``config.extraArgs[2]``) and never by value: a value
in the wrong place may be a secret.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dragoman.protocol.identity import near_names
from dragoman.sdk._encoding.json_text import JsonValue
from dragoman.sdk._encoding.plain_schema import fits, is_plain
from msgspec import Struct

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

_ROOT: Final = "config"
_LONGEST_KEY: Final = 80  # characters of a key that are shown
_MOST_PROBLEMS: Final = 100  # that are reported of one config
_MOST_GUESSES: Final = 10  # unknown keys for which a known one is suggested
_IDENTIFIER: Final = re.compile("[A-Za-z_][A-Za-z0-9_-]*")

_KINDS: Final[Mapping[str, str]] = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
# What a rule of JSON Schema demands, by its name; %s is the rule's value.
_DEMANDS: Final[Mapping[str, str]] = {
    "const": "must be %s",
    "minimum": "must be at least %s",
    "maximum": "must be at most %s",
    "exclusiveMinimum": "must be more than %s",
    "exclusiveMaximum": "must be less than %s",
    "multipleOf": "must be a multiple of %s",
    "minLength": "must have at least %s characters",
    "maxLength": "must have at most %s characters",
    "minItems": "must have at least %s items",
    "maxItems": "must have at most %s items",
    "minProperties": "must have at least %s entries",
    "maxProperties": "must have at most %s entries",
    "pattern": "must match the pattern %s",
    "uniqueItems": "must not have the same item twice",
}


class Problem(Struct, frozen=True):
    """One thing that is wrong with a config."""

    path: str
    """Where: ``config.env.FOO``."""

    message: str
    """What, as the rest of a sentence that begins with the path."""

    hint: str = ""
    """How to fix it; empty if that is obvious."""


class ConfigSchema:
    """A JSON Schema for ``config``, compiled when first used."""

    __slots__ = ("_is_plain", "_validator", "schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema: Final = dict(schema)
        self._is_plain: bool | None = None
        self._validator: Validator | None = None

    def check(self) -> None:
        """Check the schema itself.

        Raises:
            ValueError: a rule of it is wrong; the message says where, and what.
        """
        if not is_plain(self.schema):
            self._compiled()

    def validate(self, config: Mapping[str, JsonValue]) -> list[Problem]:
        """Return what is wrong with ``config``, in the order of paths; best nothing. Ends after 100 problems.

        A mistake in the schema itself is one problem, as nothing can be checked then.
        """
        try:
            if self._is_plain is None:
                self._is_plain = is_plain(self.schema)
            if self._is_plain and fits(dict(config), self.schema):
                return []
            found = (problem for error in self._errors(config) for problem in _problems(_Breach.of(error)))
            problems = dict.fromkeys(itertools.islice(found, _MOST_PROBLEMS))
        except (ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            return [Problem(_ROOT, f"cannot be checked, as the adapter's config_schema has a mistake: {why}")]
        return sorted(problems, key=lambda problem: problem.path)

    def _errors(self, config: Mapping[str, JsonValue]) -> "Iterator[ValidationError]":
        import referencing  # noqa: PLC0415 - comes with jsonschema

        try:
            yield from self._compiled().iter_errors(config)
        except referencing.exceptions.Unresolvable as error:
            raise ValueError(f"$ref {error.ref}: there is no such place") from error

    def _compiled(self) -> "Validator":
        if self._validator is None:
            import jsonschema  # noqa: PLC0415 - slow to import, and only needed for this

            if not isinstance(self.schema.get("$schema", ""), str):
                raise ValueError("not a JSON Schema: $schema: must be a string")
            kind = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
            try:
                kind.check_schema(self.schema)
            except jsonschema.SchemaError as error:
                place = "".join(f"{step}." for step in error.absolute_path).removesuffix(".")
                raise ValueError(f"not a JSON Schema: {f'{place}: ' if place else ''}{error.message}") from error
            self._validator = kind(self.schema)
        return self._validator


class _Breach(Struct, frozen=True):
    """A rule of a schema, and where it is broken."""

    path: tuple[str | int, ...]
    rule: str
    value: Any  # what the schema says for the rule
    instance: Any
    schema: Mapping[str, Any]
    of_key: bool  # broken by a key, not by the value under it
    alternatives: tuple["_Breach", ...]

    @classmethod
    def of(cls, error: "ValidationError") -> "_Breach":
        schema = error.schema
        return cls(
            path=tuple(error.absolute_path),
            rule=str(error.validator),
            value=error.validator_value,
            instance=error.instance,
            schema=schema if isinstance(schema, Mapping) else {},
            of_key="propertyNames" in error.absolute_schema_path,
            alternatives=tuple(map(cls.of, error.context or ())),
        )

    @property
    def description(self) -> str:
        found = self.schema.get("description")
        return found if isinstance(found, str) else ""


def _problems(breach: _Breach) -> Iterator[Problem]:
    where = show_path(breach.path)
    match breach.rule:
        case _ if breach.of_key:
            yield Problem(where, f"must not have a key {_quote(breach.instance)}")
        case "required":
            missing = [name for name in breach.value if name not in breach.instance]
            yield from (Problem(show_path((*breach.path, name)), "is required") for name in missing)
        case "additionalProperties":
            yield from _unknown_keys(breach)
        case "type":
            yield _wrong_type(breach, _as_list(breach.value))
        case "enum":
            yield _not_one_of(breach)
        case "anyOf" | "oneOf" if breach.alternatives:
            yield from _no_alternative(breach)
        case rule if rule in _DEMANDS:
            value = json.dumps(breach.value, ensure_ascii=False)
            yield Problem(where, _DEMANDS[rule].replace("%s", value), breach.description)
        case rule:
            yield Problem(where, f"breaks the rule {rule!r} of the schema", breach.description)


def _unknown_keys(breach: _Breach) -> Iterator[Problem]:
    known = list(breach.schema.get("properties", ()))
    patterns = list(breach.schema.get("patternProperties", ()))
    guesses = _MOST_GUESSES
    for key in breach.instance:
        if key in known or any(re.search(pattern, key) for pattern in patterns):
            continue
        near = _near(key, known) if guesses else None  # comparing names is slow
        guesses = max(0, guesses - 1)
        listed = f"known are: {', '.join(sorted(known))}" if known else ""
        yield Problem(show_path((*breach.path, key)), "is not known", f"did you mean {near}?" if near else listed)


def _wrong_type(breach: _Breach, kinds: Iterable[str]) -> Problem:
    expected = " or ".join(_KINDS[kind] for kind in kinds)
    return Problem(show_path(breach.path), f"must be {expected}, not {_kind(breach.instance)}")


def _not_one_of(breach: _Breach) -> Problem:
    names = [item for item in breach.value if isinstance(item, str)]
    near = _near(breach.instance, names) if isinstance(breach.instance, str) else None
    listed = ", ".join(json.dumps(item, ensure_ascii=False) for item in breach.value)
    hint = f"did you mean {_quote(near)}?" if near else breach.description
    return Problem(show_path(breach.path), f"must be one of {listed}", hint)


def _no_alternative(breach: _Breach) -> Iterator[Problem]:
    """Report the alternative that fits best: the one of the right type, or broken deepest inside."""
    others = [each for each in breach.alternatives if each.rule != "type" or len(each.path) > len(breach.path)]
    if others:
        yield from _problems(max(others, key=lambda each: len(each.path)))
    else:
        yield _wrong_type(breach, (kind for each in breach.alternatives for kind in _as_list(each.value)))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _kind(instance: object) -> str:
    if isinstance(instance, bool):
        return "a boolean"
    kinds = ((str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object"))
    return next((_KINDS[name] for kind, name in kinds if isinstance(instance, kind)), _KINDS["null"])


def _near(word: str, known: Sequence[str]) -> str | None:
    return next(iter(near_names(word[:_LONGEST_KEY], known, limit=1)), None)


def show_path(path: Sequence[str | int]) -> str:
    """Return a path as people write it: ``config.env.FOO``, ``config.extraArgs[2]``."""
    text = _ROOT
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _IDENTIFIER.fullmatch(part) and len(part) <= _LONGEST_KEY:
            text += f".{part}"
        else:
            text += f"[{_quote(part)}]"
    return text


def _quote(key: str) -> str:
    cut = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}..."
    return json.dumps(cut, ensure_ascii=False)
