"""Config values: whole numbers whole again, Paperclip's keys under their names, fall-backs for the rest."""

import math
import subprocess
import sys
from typing import Any

import pytest
from dragoman.protocol.bounds import LONGEST_DURATION_S
from dragoman.protocol.texts import JsonObject, struct_values, whole_number
from dragoman.sdk._encoding.config import (
    as_bool,
    as_int,
    as_number,
    as_object,
    as_string,
    as_string_list,
    bundled_schema,
    common_properties,
    extra_args,
)
from dragoman.sdk._encoding.schema import ConfigSchema
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.schemas import config_schema


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5.0, 5),
        (-0.0, 0),
        (0.5, 0.5),
        (2.0**53, 2**53),
        (2.0**53 + 2, 2.0**53 + 2),
        (-(2.0**60), -(2.0**60)),
        (1e300, 1e300),
    ],
)
def test_whole_numbers_become_integers(value: float, expected: float) -> None:
    assert repr(whole_number(value)) == repr(expected)  # 5 == 5.0, but only one of them is good in argv


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_objects = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    ),
    max_size=4,
)


@given(json_objects)
def test_a_struct_gives_back_what_was_put_in(value: JsonObject) -> None:
    struct = Struct()
    json_format.ParseDict(value, struct)
    assert struct_values(struct) == value


def test_the_common_keys_are_all_there_under_their_names() -> None:
    assert list(common_properties()) == [
        *("cwd", "promptTemplate", "bootstrapPromptTemplate", "model", "effort", "env", "extraArgs", "args"),
        *("command", "timeoutSec", "graceSec", "instructionsFilePath", "maxTurns"),
        *("dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox"),
    ]
    assert list(common_properties("model", "cwd")) == ["model", "cwd"]
    with pytest.raises(KeyError):
        common_properties("efort")


def test_properties_say_what_they_do_what_is_dangerous_and_what_not_every_agent_has() -> None:
    properties = common_properties()
    assert all(schema["description"] for schema in properties.values())
    dangerous = {name for name, schema in properties.items() if schema.get("x-dangerous")}
    without_safeguard = {name for name in properties if name.startswith("dangerously")}
    assert dangerous == {"command", "extraArgs", "args", *without_safeguard}
    assert all("DANGEROUS" in str(properties[name]["description"]) for name in without_safeguard)
    special = {name for name, schema in properties.items() if not schema.get("x-common")}
    assert special == {"effort", "maxTurns", *without_safeguard}
    assert (properties["timeoutSec"]["default"], properties["graceSec"]["default"]) == (0, 15)


def test_limits_of_time_are_those_of_the_contract() -> None:
    times = common_properties("timeoutSec", "graceSec")
    assert {about["maximum"] for about in times.values()} == {LONGEST_DURATION_S}


def test_every_default_fits_its_own_schema() -> None:
    defaults = {name: schema["default"] for name, schema in common_properties().items() if "default" in schema}
    assert ConfigSchema(config_schema(common_properties())).validate(defaults) == []


def test_references_to_common_keys_are_replaced_and_what_stands_beside_them_wins() -> None:
    written = config_schema(
        {
            "model": {"$ref": "dragoman:common#/$defs/model"},
            "effort": {"$ref": "dragoman:common#/$defs/effort", "enum": ["low"], "description": "Own."},
            "speed": {"type": "integer", "$ref": "#/$defs/own"},
        },
        ["model"],
    )
    schema = bundled_schema({**written, "x-own": True})
    assert schema["properties"] == {
        **common_properties("model"),
        "effort": {"type": "string", "enum": ["low"], "description": "Own.", "x-group": "model"},
        "speed": {"type": "integer", "$ref": "#/$defs/own"},
    }
    assert {key: value for key, value in schema.items() if key != "properties"} == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["model"],
        "additionalProperties": False,
        "x-own": True,
    }
    with pytest.raises(ValueError, match="efort"):
        bundled_schema({"properties": {"a": {"$ref": "dragoman:common#/$defs/efort"}}})


def test_an_adapter_may_change_its_copy() -> None:
    common_properties()["env"].clear()
    assert common_properties()["env"]["type"] == "object"


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (as_string, ["x", " "], ["", None, 5, True, ["x"]]),
        (as_int, [0, -5, 2**70], [True, "5", 2.5, None, math.nan]),
        (as_number, [0, 2.5, -1], [True, "5", None, math.nan, math.inf]),
        (as_bool, [True, False], [0, 1, "true", None]),
        (as_object, [{}, {"a": 1}], [None, [], "x"]),
    ],
)
def test_helpers_return_what_fits_and_else_the_fallback(function: Any, good: list[Any], bad: list[Any]) -> None:
    fallback = object()
    assert [function(value, fallback) for value in good] == good
    assert all(function(value, fallback) is fallback for value in bad)


def test_as_int_takes_whole_doubles() -> None:
    assert repr(as_int(5.0, None)) == "5"


def test_lists_of_strings() -> None:
    assert as_string_list(["a", 5, None, "b"]) == ["a", "b"]
    assert as_string_list(("a",)) == ["a"]
    assert as_string_list("ab") == as_string_list(None) == []
    assert as_string_list(None, ["z"]) == ["z"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({"extraArgs": ["-a"]}, ["-a"]),
        ({"args": ["-b"]}, ["-b"]),
        ({"extraArgs": [], "args": ["-b"]}, []),
    ],
)
def test_extra_args_go_by_two_names(config: JsonObject, expected: list[str]) -> None:
    assert extra_args(config) == expected


def test_importing_costs_no_schema_library() -> None:
    code = "import sys, dragoman.sdk._encoding.config; sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
