"""What is given on the command line, as values."""

from typing import Any

import click
import pytest
from dragoman.cli import values


@pytest.mark.parametrize(
    ("pairs", "settings"),
    [
        (["a=1"], {"a": 1}),
        (["a=text here"], {"a": "text here"}),
        (["a=true", "b=null", 'c=["x"]', 'd={"e": 1.5}'], {"a": True, "b": None, "c": ["x"], "d": {"e": 1.5}}),
        (['a="1"'], {"a": "1"}),
        (["a=b=c"], {"a": "b=c"}),
        (["a="], {"a": ""}),
        (["a=NaN", "b=Infinity"], {"a": "NaN", "b": "Infinity"}),
        (["a.b.c=1", "a.d=2"], {"a": {"b": {"c": 1}, "d": 2}}),
        (['a={"b": 1}', "a.c=2"], {"a": {"b": 1, "c": 2}}),
    ],
)
def test_settings(pairs: list[str], settings: dict[str, Any]) -> None:
    assert values.config(pairs) == settings


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["a"], "is not key=value"),
        (["=1"], "is not key=value"),
        (["a..b=1"], "is not key=value"),
        (["a=1", "a=2"], "set twice"),
        (["a=1", "a.b=2"], "already has a value"),
    ],
)
def test_wrong_settings(pairs: list[str], message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        values.config(pairs)


def test_what_must_be_text_is_text() -> None:
    schema = '{"properties": {"command": {"type": "string"}, "n": {"type": "integer"}, "odd": true}}'
    assert values.config(["command=false", "n=5", "odd=1"], schema) == {"command": "false", "n": 5, "odd": 1}
    assert values.config(['command="quoted"'], schema) == {"command": "quoted"}


@pytest.mark.parametrize("schema", ["", "no json", "[]", "{}", '{"properties": 1}'])
def test_a_schema_that_says_nothing_changes_nothing(schema: str) -> None:
    assert values.config(["command=false"], schema) == {"command": False}


def test_variables() -> None:
    assert values.variables(["A=1", "B", "C="], {"B": "from here"}) == {"A": "1", "B": "from here", "C": ""}
    with pytest.raises(click.BadParameter, match="NOPE is not set here"):
        values.variables(["NOPE"], {})
    with pytest.raises(click.BadParameter, match="is not NAME=value"):
        values.variables(["=1"], {})


def test_labels() -> None:
    assert values.labels(["a=1", "b="]) == {"a": "1", "b": ""}
    with pytest.raises(click.BadParameter, match="is not key=value"):
        values.labels(["a"])
