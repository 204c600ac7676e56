"""The recordings are what the parser tests think they are: whole, small, without traces of a machine."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "recordings" / "claude"
RUNS = json.loads((FOLDER / "index.json").read_text())["runs"]
NEUTRAL = ("/workspace", "/home/agent", "/bin/", "/no/such", "/legal", "/articles", "/login")


def test_the_index_names_every_recording() -> None:
    assert {f"{name}.stdout.jsonl" for name in RUNS} == {path.name for path in FOLDER.glob("*.jsonl")}


@pytest.mark.parametrize("name", RUNS)
def test_each_line_is_an_object_with_a_type(name: str) -> None:
    data = (FOLDER / f"{name}.stdout.jsonl").read_bytes()
    assert len(data) < 60_000
    assert data.endswith(b"\n")
    for line in data[:-1].split(b"\n"):
        assert isinstance(json.loads(line)["type"], str)


@pytest.mark.parametrize("name", RUNS)
def test_paths_are_neutral(name: str) -> None:
    text = (FOLDER / f"{name}.stdout.jsonl").read_text() + json.dumps(RUNS[name])
    absolute = re.findall(r"(?<![\w.:/<~*-])/[a-z][\w.-]*/[\w./-]*", text)
    assert [path for path in absolute if not path.startswith(NEUTRAL)] == []
