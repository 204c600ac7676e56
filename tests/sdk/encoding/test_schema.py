"""A wrong config is reported by path, with what would be right, and never by value."""

from typing import Any

import jsonschema
import pytest
from dragoman.sdk._encoding.config import common_properties
from dragoman.sdk._encoding.json_text import JsonObject
from dragoman.sdk._encoding.schema import ConfigSchema, Problem, show_path
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.schemas import config_schema

SCHEMA = ConfigSchema(
    config_schema(
        {
            **common_properties(),
            "effort": {"enum": ["low", "medium", "high"]},
            "mode": {"const": "fast", "description": "There is but one."},
            "retries": {"type": "integer", "exclusiveMinimum": 0, "maximum": 5},
            "names": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "uniqueItems": True,
                "maxItems": 2,
            },
            "target": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "step": {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "boolean"}]},
            "either": {"anyOf": [{"type": "string"}, {"type": ["integer", "null"]}]},
            "nested": {
                "type": "object",
                "properties": {"deep": config_schema({"a": {"type": "string"}}, ["a", "b"])},
            },
            "x": {"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False},
            "odd": {"not": {}, "description": "Never right."},
        }
    )
)

EVERYTHING: JsonObject = {
    "cwd": "/work",
    "promptTemplate": "{{agent.id}}",
    "bootstrapPromptTemplate": "Hello",
    "model": "",
    "effort": "high",
    "env": {"A": "1"},
    "extraArgs": ["--verbose"],
    "command": "claude",
    "timeoutSec": 0,
    "graceSec": 15,
    "instructionsFilePath": "/AGENTS.md",
    "maxTurns": 3,
    "dangerouslySkipPermissions": False,
    "dangerouslyBypassApprovalsAndSandbox": True,
}


def test_paperclips_config_fits_unchanged() -> None:
    assert SCHEMA.validate(EVERYTHING) == []
    assert SCHEMA.validate({"graceSec": 1.5, "maxTurns": 3.0}) == []
    assert SCHEMA.validate({}) == []


@pytest.mark.parametrize(
    ("config", "path", "message", "hint"),
    [
        ({"cwd": 5}, "config.cwd", "must be a string, not a whole number", ""),
        ({"cwd": None}, "config.cwd", "must be a string, not null", ""),
        ({"timeoutSec": "5"}, "config.timeoutSec", "must be a number, not a string", ""),
        ({"timeoutSec": True}, "config.timeoutSec", "must be a number, not a boolean", ""),
        ({"maxTurns": 2.5}, "config.maxTurns", "must be a whole number, not a number", ""),
        ({"env": []}, "config.env", "must be an object, not a list", ""),
        ({"env": {"FOO": 1}}, "config.env.FOO", "must be a string, not a whole number", ""),
        ({"env": {"a b": {}}}, 'config.env["a b"]', "must be a string, not an object", ""),
        ({"env": {"A=B": "x"}}, "config.env", 'must not have a key "A=B"', ""),
        ({"extraArgs": ["a", 2]}, "config.extraArgs[1]", "must be a string, not a whole number", ""),
        ({"extraArgs": "a b"}, "config.extraArgs", "must be a list, not a string", ""),
        (
            {"dangerouslySkipPermissions": 1},
            "config.dangerouslySkipPermissions",
            "must be true or false, not a whole number",
            "",
        ),
        ({"timeoutSec": -1}, "config.timeoutSec", "must be at least 0", "Seconds a run may take. 0: no limit."),
        ({"timeoutSeconds": 5}, "config.timeoutSeconds", "is not known", "did you mean timeoutSec?"),
        ({"timeout_sec": 5}, "config.timeout_sec", "is not known", "did you mean timeoutSec?"),
        ({"effort": "hihg"}, "config.effort", 'must be one of "low", "medium", "high"', 'did you mean "high"?'),
        ({"effort": 3}, "config.effort", 'must be one of "low", "medium", "high"', ""),
        ({"mode": "slow"}, "config.mode", 'must be "fast"', "There is but one."),
        ({"retries": 0}, "config.retries", "must be more than 0", ""),
        ({"retries": 6}, "config.retries", "must be at most 5", ""),
        ({"names": [""]}, "config.names[0]", "must have at least 1 characters", ""),
        ({"names": ["a", "a"]}, "config.names", "must not have the same item twice", ""),
        ({"names": ["a", "b", "c"]}, "config.names", "must have at most 2 items", ""),
        ({"target": 5}, "config.target", "must be a string or a list, not a whole number", ""),
        ({"target": ["a", 5]}, "config.target[1]", "must be a string, not a whole number", ""),
        ({"step": 2}, "config.step", "must be at least 5", ""),
        ({"either": []}, "config.either", "must be a string or a whole number or null, not a list", ""),
        ({"nested": {"deep": {"a": "x"}}}, "config.nested.deep.b", "is required", ""),
        ({"x": {"x-1": 1, "y": 2}}, "config.x.y", "is not known", ""),
        ({"odd": 1}, "config.odd", "breaks the rule 'not' of the schema", "Never right."),
    ],
)
def test_each_problem_is_reported(config: JsonObject, path: str, message: str, hint: str) -> None:
    assert SCHEMA.validate(config) == [Problem(path, message, hint)]


def test_the_message_on_an_unknown_key_lists_the_known_ones() -> None:
    (problem,) = ConfigSchema(config_schema({"b": {}, "a": {}})).validate({"zzz": 1})
    assert problem == Problem("config.zzz", "is not known", "known are: a, b")


def test_all_problems_are_reported_at_once_in_the_order_of_paths() -> None:
    config: JsonObject = {"timeoutSec": "x", "cwd": 1, "zzz": 1, "nested": {"deep": {}}}
    paths = [problem.path for problem in SCHEMA.validate(config)]
    assert paths == ["config.cwd", "config.nested.deep.a", "config.nested.deep.b", "config.timeoutSec", "config.zzz"]


def test_the_config_itself_must_be_an_object() -> None:
    wrong: Any = ["a"]
    assert SCHEMA.validate(wrong) == [Problem("config", "must be an object, not a list")]


SECRET = "hunter2-hunter2"
secret_values = st.recursive(
    st.sampled_from([SECRET, 1, 2.5, None, True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("k"), inner, max_size=1),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA.schema["properties"], "unknown"]), secret_values))
def test_no_problem_ever_shows_a_value(config: JsonObject) -> None:
    assert not any(SECRET in repr(problem) for problem in SCHEMA.validate(config))


@given(st.dictionaries(st.sampled_from([*SCHEMA.schema["properties"], "unknown"]), secret_values))
def test_there_are_problems_exactly_when_the_schema_is_broken(config: JsonObject) -> None:
    valid = jsonschema.Draft202012Validator(SCHEMA.schema).is_valid(config)
    assert (SCHEMA.validate(config) == []) == valid


def nested(levels: int) -> JsonObject:
    schema: JsonObject = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strnig"}, "not a JSON Schema: type: 'strnig' is not valid under any of the given schemas"),
        (
            {"properties": {"n": {"minimum": "1"}}},
            "not a JSON Schema: properties.n.minimum: '1' is not of type 'number'",
        ),
        ({"pattern": r"^\p{L}+$"}, r"not a JSON Schema: pattern: '^\\p{L}+$' is not a 'regex'"),
        ({"$schema": 7}, "not a JSON Schema: $schema: must be a string"),
        ({"properties": {"n": {"$ref": "#/nowhere"}}}, "$ref /nowhere: there is no such place"),
        (nested(2000), "it is nested too deep"),
    ],
    ids=["type", "deeper", "pattern", "draft", "reference", "nested"],
)
def test_a_broken_schema_is_the_authors_error(schema: JsonObject, why: str) -> None:
    broken = Problem("config", f"cannot be checked, as the adapter's config_schema has a mistake: {why}")
    assert ConfigSchema(schema).validate({"n": 1}) == [broken]


def test_long_keys_are_cut() -> None:
    assert show_path(["k" * 200, 0, "é"]) == f'config["{"k" * 80}..."][0]["é"]'


@pytest.mark.parametrize(
    ("rule", "value", "instance", "message"),
    [
        ("const", "fast", "slow", 'must be "fast"'),
        ("minimum", 5, 4, "must be at least 5"),
        ("maximum", 5, 6, "must be at most 5"),
        ("exclusiveMinimum", 5, 5, "must be more than 5"),
        ("exclusiveMaximum", 5, 5, "must be less than 5"),
        ("multipleOf", 5, 6, "must be a multiple of 5"),
        ("minLength", 2, "a", "must have at least 2 characters"),
        ("maxLength", 2, "abc", "must have at most 2 characters"),
        ("minItems", 2, [1], "must have at least 2 items"),
        ("maxItems", 2, [1, 2, 3], "must have at most 2 items"),
        ("minProperties", 2, {"a": 1}, "must have at least 2 entries"),
        ("maxProperties", 1, {"a": 1, "b": 2}, "must have at most 1 entries"),
        ("pattern", "^a$", "b", 'must match the pattern "^a$"'),
        ("uniqueItems", True, [1, 1], "must not have the same item twice"),
        ("type", "string", 1, "must be a string, not a whole number"),
        ("type", "integer", "1", "must be a whole number, not a string"),
        ("type", "number", True, "must be a number, not a boolean"),
        ("type", "boolean", 1.5, "must be true or false, not a number"),
        ("type", "array", {}, "must be a list, not an object"),
        ("type", ["object", "null"], [], "must be an object or null, not a list"),
        ("type", "object", None, "must be an object, not null"),
    ],
)
def test_each_rule_says_what_it_demands(rule: str, value: Any, instance: Any, message: str) -> None:
    schema = ConfigSchema({"properties": {"x": {rule: value, "description": "About x."}}})
    hint = "" if rule == "type" else "About x."
    assert schema.validate({"x": instance}) == [Problem("config.x", message, hint)]
