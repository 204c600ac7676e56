"""The three tools: what the model gets for what it asks, and the diff of what changed."""

import os
import subprocess
from pathlib import Path

import pytest
from dragoman.adapters.model_api.tools import Done, offered, run_tool, subject, tool_call
from dragoman.adapters.model_api.workspace import RefusedError, Workspace
from dragoman.sdk.fields import JsonValue
from dragoman.sdk.parsing import unified_diff
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

TEXTS = st.lists(st.sampled_from(["a", "b", "b\r", "", "c\u2028d"]), max_size=12).map("\n".join)


def run(root: Path, name: str, **fields: JsonValue) -> Done:
    return run_tool("call-1", name, {"file_path": "notes.txt", **fields}, Workspace(str(root)))


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_a_diff_turns_the_old_text_into_the_new(tmp_path_factory: pytest.TempPathFactory, old: str, new: str) -> None:
    root = tmp_path_factory.mktemp("diff")
    diff = unified_diff("notes.txt", old, new, created=False)
    assert (diff == "") == (old == new)
    if diff:
        (root / "notes.txt").write_bytes(old.encode())
        patch = ["git", "apply", "-p0", "--unidiff-zero", "--whitespace=nowarn", "-"]
        subprocess.run(patch, cwd=root, input=diff.encode(), check=True, capture_output=True)
        assert (root / "notes.txt").read_bytes() == new.encode()


def test_a_new_file_comes_from_nowhere() -> None:
    assert unified_diff("/w/a", "", "x\n", created=True) == "--- /dev/null\n+++ /w/a\n@@ -0,0 +1 @@\n+x\n"


def test_reading_goes_by_lines(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("".join(f"line {number}\n" for number in range(1, 3001)))
    first = run(tmp_path, "Read").content
    assert first.startswith("line 1\n")
    assert first.endswith("line 2000\n[... 1000 more lines; ask with offset 2001 ...]")
    assert run(tmp_path, "Read", offset=2999).content == "line 2999\nline 3000\n"
    assert run(tmp_path, "Read", offset=2, limit=1).content.startswith("line 2\n[...")
    assert run(tmp_path, "Read", offset=4000).failed


def test_reading_says_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert run(tmp_path, "Read").content == "(The file is empty.)"
    (tmp_path / "notes.txt").write_text("x" * 400_000)
    read = run(tmp_path, "Read").content
    assert read.endswith("x\n[... cut here; ask for fewer lines with offset and limit ...]")
    assert set(read.split("\n", 1)[0]) == {"x"}


@pytest.mark.parametrize(
    ("name", "path", "reason"),
    [
        ("Read", ".", "That is the working directory itself, not a file."),
        ("Write", ".", "That is the working directory itself, not a file."),
        ("Read", "folder", "folder cannot be used: Is a directory."),
        ("Write", "folder", "folder is a directory."),
    ],
)
def test_a_directory_is_no_file(tmp_path: Path, name: str, path: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    done = run(tmp_path, name, file_path=path, content="x")
    assert (done.failed, done.content) == (True, reason)


def test_a_file_that_is_read_only_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    done = run(tmp_path, "Write", content="x")
    assert (done.failed, done.content) == (True, "notes.txt is read-only.")
    assert (tmp_path / "notes.txt").read_text() == "kept"


def test_there_are_three_tools(tmp_path: Path) -> None:
    assert run(tmp_path, "Bash").content == "There is no tool 'Bash'; there are Read, Write, Edit."


def test_editing_wants_one_place(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one two two\n")
    assert "2 times" in run(tmp_path, "Edit", old_string="two", new_string="2").content
    assert "not in the file" in run(tmp_path, "Edit", old_string="three", new_string="3").content
    assert run(tmp_path, "Edit", old_string="", new_string="3").failed
    assert run(tmp_path, "Edit", old_string="one", new_string="one").failed
    done = run(tmp_path, "Edit", old_string="two", new_string="2", replace_all=True)
    assert (tmp_path / "notes.txt").read_text() == "one 2 2\n"
    assert done.change is not None
    assert done.change.operation == pb.FILE_OPERATION_MODIFY


def test_an_edit_cannot_blow_a_file_up(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x" * 100_000)
    assert "more than" in run(tmp_path, "Edit", old_string="x", new_string="y" * 1000, replace_all=True).content
    assert (tmp_path / "notes.txt").read_text() == "x" * 100_000


@pytest.mark.parametrize("name", ["Read", "Write", "Edit", "Bash", ""])
@given(
    fields=st.dictionaries(
        st.sampled_from(["file_path", "content", "old_string", "new_string", "offset", "limit", "replace_all"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=2)),
    )
)
@settings(max_examples=30, deadline=None)
def test_no_input_raises(tmp_path_factory: pytest.TempPathFactory, name: str, fields: dict[str, JsonValue]) -> None:
    root = tmp_path_factory.mktemp("garbage")
    run_tool("call-1", name, fields, Workspace(str(root)))
    tool_call("call-1", name, fields, pb.TOOL_STATUS_RUNNING)


def test_a_permission_is_about_the_path_that_is_touched(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    touched = subject("call-1", "Write", {"file_path": "./a//b.txt"}, workspace)
    assert list(touched.paths) == [f"{tmp_path}/a/b.txt"]
    assert touched.tool_kind == pb.TOOL_KIND_EDIT
    with pytest.raises(RefusedError):
        subject("call-1", "Write", {"file_path": "a/../../b.txt"}, workspace)


def test_what_is_offered() -> None:
    assert [tool.name for tool in offered(whole_files_only=False)] == ["Read", "Write", "Edit"]
    assert [tool.name for tool in offered(whole_files_only=True)] == ["Read", "Write"]
