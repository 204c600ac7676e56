"""Templates put in values by path, and say what was not there."""

import json

import pytest
from dragoman.protocol.templates import Rendered, TemplateSizeError, render
from dragoman.sdk._encoding.json_text import JsonObject, JsonValue
from hypothesis import given
from hypothesis import strategies as st

DATA: JsonObject = {
    "agent": {"id": "a1", "name": "Ada", "n": 5, "half": 0.5, "on": True, "nothing": None, "empty": ""},
    "list": ["zero", {"one": 1}, [2]],
    "evil": "{{agent.name}} \\1 \\g<0>",
    "dash-ed_9": {"": "unreachable"},
    "large": 1e300,
    "object": {"n": 2},
}


@pytest.mark.parametrize(
    ("template", "text", "missing"),
    [
        ("", "", ()),
        ("plain { } {{}} {{ }} }} {{", "plain { } {{}} {{ }} }} {{", ()),
        ("{{agent.name}}", "Ada", ()),
        ("{{ agent.name }}/{{\tagent.id\n}}", "Ada/a1", ()),
        ("{{agent.n}} {{agent.half}} {{agent.on}} {{large}}", "5 0.5 true 1e+300", ()),
        ("[{{agent.empty}}]", "[]", ()),
        ("{{list.0}} {{list.1.one}} {{list.2.0}}", "zero 1 2", ()),
        ("{{list}}", '["zero",{"one":1},[2]]', ()),
        ("{{object}}", '{"n":2}', ()),
        ("{{list.1}} {{list.2}}", '{"one":1} [2]', ()),
        ("{{evil}}", "{{agent.name}} \\1 \\g<0>", ()),
        ("{{a}}{{agent.nothing}}{{agent.name.x}}{{a}}", "", ("a", "agent.nothing", "agent.name.x")),
        ("{{list.3}}{{list.-1}}{{list.x}}", "", ("list.3", "list.-1", "list.x")),
        ("{{list." + "9" * 5000 + "}}", "", ("list." + "9" * 5000,)),
        (
            "{{agent..name}} {{.agent}} {{agent.}} {{agent name}}",
            "{{agent..name}} {{.agent}} {{agent.}} {{agent name}}",
            (),
        ),
        ("{{{agent.id}}}", "{a1}", ()),
        ("{{dash-ed_9}}", '{"":"unreachable"}', ()),
        ("a\\n{{agent.id}}", "a\\na1", ()),
    ],
)
def test_rendering(template: str, text: str, missing: tuple[str, ...]) -> None:
    assert render(template, DATA) == Rendered(text, missing)


@given(value=st.text(), around=st.text(alphabet="ab {}"))
def test_text_is_put_in_as_it_is_and_once(value: str, around: str) -> None:
    if "{{" in around or "}}" in around or around.endswith("{") or around.startswith("}"):
        around = ""
    rendered = render(f"{around}{{{{v}}}}{around}", {"v": value})
    assert rendered == Rendered(f"{around}{value}{around}", ())


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text()), st.lists))
def test_lists_are_json(value: JsonValue) -> None:
    rendered = render("{{v}}", {"v": [value]})
    assert json.loads(rendered.text) == [value]


def test_values_are_bounded_together() -> None:
    with pytest.raises(TemplateSizeError):
        render("{{v}}" * 17, {"v": "x" * 2**20})
