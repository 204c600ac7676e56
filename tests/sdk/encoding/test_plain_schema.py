"""The short way through plain schemas: it must never let pass what the library refuses."""

import importlib
from typing import Any

import jsonschema
import pytest
from dragoman.sdk._encoding.plain_schema import fits, is_plain
from hypothesis import given
from hypothesis import strategies as st

AGENTS = ["claude_code", "codex", "copilot", "cursor", "gemini_cli", "openclaw", "opencode", "pi", "process", "qwen"]

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 2.0]) | st.sampled_from(["", "a", "bb"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8
)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "boolean", "integer", "number", "array", "object", "null"]),
        "enum": st.lists(st.sampled_from(["", "a", "bb"]), unique=True, min_size=1),
        "minimum": st.integers(-2, 2),
        "maximum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["^a", "b$"]),
        "required": st.lists(st.sampled_from("abc"), unique=True),
        "uniqueItems": st.booleans(),
        "description": st.just("text"),
        "x-own": st.just(1),
    },
)
SCHEMAS = st.recursive(
    RULES,
    lambda inner: st.builds(
        lambda rules, more: {**rules, **more},
        RULES,
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(st.sampled_from("ab"), inner),
                "additionalProperties": st.booleans() | inner,
                "propertyNames": inner,
                "items": inner,
            },
        ),
    ),
    max_leaves=5,
)


@given(schema=SCHEMAS, value=VALUES)
def test_what_fits_is_valid(schema: dict[str, Any], value: Any) -> None:
    assert is_plain(schema)
    if fits(value, schema):
        jsonschema.Draft202012Validator(schema).validate(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}]},
        {"type": ["string", "null"]},
        {"type": "text"},
        {"enum": [1, "a"]},
        {"minLength": -1},
        {"minimum": "1"},
        {"pattern": "("},
        {"properties": {"a": {"const": 1}}},
        {"additionalProperties": {"$ref": "#/$defs/a"}},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        True,
    ],
)
def test_what_is_not_plain_is_left_to_the_library(schema: object) -> None:
    assert not is_plain(schema)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_shipped_schemas_are_plain(agent: str) -> None:
    adapter = importlib.import_module(f"dragoman.adapters.{agent}").adapter()
    assert is_plain(adapter.describe().config_schema)
