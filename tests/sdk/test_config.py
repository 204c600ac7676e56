"""Config values: whole numbers whole again, the seeds' keys under their names, fall-backs for the rest."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from dragoman.sdk._config import (
    ConfigValueError,
    adapter_schema,
    as_bool,
    as_int,
    as_number,
    as_object,
    as_string,
    as_string_list,
    common_properties,
    config_schema,
    extra_args,
    normalise,
    print_schema,
    validate,
)
from dragoman.sdk._json import JsonObject
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st


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
        (True, True),
        (None, None),
        ("5.0", "5.0"),
        ({"a": [1.0, {"b": (2.0,)}]}, {"a": [1, {"b": [2]}]}),
    ],
)
def test_whole_numbers_become_integers(value: object, expected: object) -> None:
    result = normalise(value)
    assert result == expected
    assert repr(result) == repr(expected)  # 5 == 5.0, but only one of them is good in argv


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0.0, math.nan]}, "config.a[1] must be a finite number"),
        (math.inf, "config must be a finite number"),
        ({"a": b"bytes"}, "config.a must be a JSON value"),
        ({"a": {1: 2}}, "config.a must be a JSON value"),
        ({"a": object()}, "config.a must be a JSON value"),
    ],
)
def test_what_is_no_json_is_refused_by_path(value: object, message: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        normalise(value)
    assert str(caught.value) == message
    assert caught.value.problem.path == message.split(" ", maxsplit=1)[0]


def test_a_bottomless_value_is_refused() -> None:
    value: Any = 1
    for _ in range(2000):
        value = {"a": value}
    with pytest.raises(ConfigValueError, match=r"config\.a is nested more than 100"):
        normalise(value)


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
    once = normalise(json_format.MessageToDict(struct))
    assert once == value
    assert repr(normalise(once)) == repr(once)


def test_the_keys_of_the_seeds_are_all_there_under_their_names() -> None:
    assert list(common_properties()) == [
        *("cwd", "promptTemplate", "bootstrapPromptTemplate", "model", "effort", "env", "extraArgs", "args"),
        *("command", "timeoutSec", "graceSec", "instructionsFilePath", "maxTurns"),
        *("dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox"),
    ]


def test_properties_say_what_they_do_what_is_dangerous_and_what_not_every_agent_has() -> None:
    properties = common_properties()
    assert all(schema["description"] for schema in properties.values())
    dangerous = {name for name, schema in properties.items() if schema.get("x-dangerous")}
    without_safeguard = {name for name in properties if name.startswith("dangerously")}
    assert dangerous == {"command", "extraArgs", "args", *without_safeguard}
    assert all("DANGEROUS" in str(properties[name]["description"]) for name in without_safeguard)
    special = {name for name, schema in properties.items() if not schema["x-common"]}
    assert special == {"effort", "maxTurns", *without_safeguard}
    assert (properties["timeoutSec"]["default"], properties["graceSec"]["default"]) == (0, 15)


def test_every_default_fits_its_own_schema() -> None:
    defaults = {name: schema["default"] for name, schema in common_properties().items() if "default" in schema}
    assert validate(defaults, config_schema(common_properties())) == []


def test_an_adapter_may_leave_out_what_it_cannot_honour() -> None:
    properties = common_properties(without=["effort"])
    assert "effort" not in properties
    (problem,) = validate({"effort": "high"}, config_schema(properties))
    assert problem.path == "config.effort"
    with pytest.raises(KeyError):
        common_properties(without=["efort"])


def test_an_adapters_own_properties_stand_besides_the_seeds_or_over_them() -> None:
    own: dict[str, JsonObject] = {"model": {"type": "integer"}, "effort": {}, "speed": {"x-dangerous": True}}
    schema = adapter_schema(own, without=["maxTurns"], also=["placeInWorkspace"], required=["model"])
    properties = schema["properties"]
    assert properties["model"] == {"type": "integer", "x-common": True, "x-login": True}
    assert properties["effort"] == {"x-common": False}
    assert properties["speed"] == {"x-dangerous": True, "x-common": False}
    assert set(properties) == {*common_properties(also=["placeInWorkspace"]), "speed"} - {"maxTurns"}
    assert (schema["required"], schema["additionalProperties"]) == (["model"], False)
    assert "required" not in adapter_schema({})


def test_what_chooses_the_login_is_said_of_what_all_have_and_of_what_is_an_adapters_own() -> None:
    def logins(schema: dict[str, Any]) -> set[str]:
        return {name for name, one in schema["properties"].items() if one.get("x-login")}

    assert logins(adapter_schema({})) == {"model", "command"}
    schema = adapter_schema({"url": {}, "model": {}}, without=["command"], login=["url"], is_token_login=True)
    assert logins(schema) == {"model", "url"}
    assert schema["x-login-token"] is True
    assert "x-login-token" not in adapter_schema({})
    with pytest.raises(KeyError):
        adapter_schema({}, login=["url"])


def test_a_schema_is_printed_as_it_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    print_schema(adapter_schema({"a": {"description": "é"}}))
    told = capsys.readouterr().out
    assert json.loads(told) == adapter_schema({"a": {"description": "é"}})
    assert told.startswith('{\n  "$schema"')
    assert "é" in told


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
    code = "import sys, dragoman.sdk._config; sys.exit('jsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
