"""JSON from agents: whatever bytes come, what comes out can be put into a message."""

import json
import sys
from pathlib import Path

import pytest
from dragoman.sdk._encoding.json_text import JsonValue, compact, parse_json_object, read_json_object, whole_number
from hypothesis import given
from hypothesis import strategies as st

# Deeper than a function of Python may recurse, on every version.
NESTED = b"[" * sys.getrecursionlimit() + b"]" * sys.getrecursionlimit()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"  {}\r", {}),
        (b"[1]", None),
        (b"5", None),
        (b"", None),
        (b"{", None),
        (b'{"a": "\xff"}', None),
        (b"[" * 100_000, None),
        (rb'{"a": "\ud800", "b": ' + NESTED + b"}", None),
        (b'{"a": ' + b"9" * 5000 + b"}", None),
        ('{"a": "é\u2028"}'.encode(), {"a": "é\u2028"}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        (rb'{"a": ["\ud800x"], "\uDFFF": "\udc00"}', {"a": ["\ufffdx"], "\ufffd": "\ufffd"}),
        (b'{"a": "\xed\xa0\x80"}', {"a": "\ufffd"}),
        (rb'{"a": "\\ud800"}', {"a": "\\ud800"}),
    ],
)
def test_objects_come_out_well_formed_and_all_else_is_none(data: bytes, expected: JsonValue) -> None:
    assert parse_json_object(data) == expected


# Halves of surrogate pairs, whole characters of every length, and what JSON escapes.
texts = st.text('a\\"\u2028\u00e9\U0001f600\ud800\udbff\udc00\udfff', max_size=6)


values = st.recursive(
    texts | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(texts, values, max_size=3))
def test_every_text_in_a_parsed_object_can_be_encoded(value: dict[str, JsonValue]) -> None:
    for data in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")):
        parsed = parse_json_object(data)
        assert parsed is not None
        compact(parsed).encode()


def test_compact_is_one_line_without_spaces() -> None:
    assert compact({"a": [1, "é\n", None]}) == '{"a":[1,"é\\n",null]}'


@pytest.mark.parametrize(
    ("value", "expected"), [(5.0, "5"), (0.5, "0.5"), (2.0**53, str(2**53)), (2.0**54, repr(2.0**54)), (-0.0, "0")]
)
def test_whole_numbers_up_to_what_a_double_can_count(value: float, expected: str) -> None:
    assert repr(whole_number(value)) == expected


def test_a_file_that_holds_no_object_reads_as_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "login.json"
    assert read_json_object(path) == {}
    assert read_json_object(tmp_path) == {}
    assert read_json_object(Path("\0")) == {}
    for content in (b"", b"[]", b"{", b'{"a": "' + b"x" * 1024 * 1024 + b'"}'):
        path.write_bytes(content)
        assert read_json_object(path) == {}
    path.write_bytes(b'{"a": 1}')
    assert read_json_object(path) == {"a": 1}
