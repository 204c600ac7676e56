"""Requests from plain values."""

from typing import Any

import pytest
from dragoman.client import DragomanError, execute_request, to_struct
from dragoman.client._requests import duration
from google.protobuf import json_format


def test_a_struct_says_what_json_says() -> None:
    values = {"a": None, "b": True, "c": 1.5, "d": "x", "e": [1, {"f": ["y"]}], "g": 2**53}
    assert json_format.MessageToDict(to_struct(values)) == values


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"a": b"bytes"}, "config.a"),
        ({"a": {"b": [1, object()]}}, "config.a.b[1]"),
        ({"a": 2**53 + 1}, "config.a"),
        ({"a": [float("nan")]}, "config.a[0]"),
        ({"a": float("inf")}, "config.a"),
    ],
)
def test_what_has_no_exact_form_is_refused_with_its_path(values: dict[str, Any], path: str) -> None:
    with pytest.raises(DragomanError) as caught:
        to_struct(values)
    assert [violation.path for violation in caught.value.violations] == [path]


def test_absent_arguments_are_not_set() -> None:
    request = execute_request("process")
    assert [field.name for field, _value in request.ListFields()] == ["adapter"]


def test_everything_arrives_in_its_field() -> None:
    request = execute_request(
        "process",
        "do it",
        cwd="/srv",
        model="m",
        config={"command": "true"},
        env={"A": "1"},
    )
    assert json_format.MessageToDict(request) == {
        "adapter": "process",
        "prompt": "do it",
        "workspace": {"cwd": "/srv"},
        "model": "m",
        "config": {"command": "true"},
        "env": {"A": "1"},
    }


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -float("inf"), 1e300, 3.2e11])
def test_a_time_that_is_none_is_refused_with_its_path(seconds: float) -> None:
    with pytest.raises(DragomanError) as caught:
        duration(seconds, "grace")
    assert [violation.path for violation in caught.value.violations] == ["grace"]


def test_a_time_keeps_its_fraction() -> None:
    assert duration(4.35, "grace").ToNanoseconds() == 4_350_000_000


def test_an_empty_prompt_is_a_prompt() -> None:
    assert execute_request("process", "").WhichOneof("task") == "prompt"
