"""File changes that are concluded from calls: never more is emitted than is certain."""

from pathlib import Path

import pytest
from dragoman.sdk._output.changes import MOST_BYTES, Changes
from dragoman.v1 import event_pb2 as pb


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    return Changes([str(tmp_path)])


def test_a_new_file(changes: Changes, tmp_path: Path) -> None:
    changes.begin("c", "a.txt")
    (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    change = changes.written("c", "a.txt", "hello\n")
    assert (change.path, change.tool_call_id) == (str(tmp_path / "a.txt"), "c")
    assert (change.operation, change.provenance) == (pb.FILE_OPERATION_CREATE, pb.PROVENANCE_INFERRED)
    assert change.diff.splitlines()[0] == "--- /dev/null"
    assert "+hello" in change.diff


def test_a_file_that_was_there(changes: Changes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    changes.begin("c", "a.txt")
    change = changes.written("c", "a.txt", "one\nthree\n")
    assert change.operation == pb.FILE_OPERATION_MODIFY
    assert ("-two\n" in change.diff, "+three\n" in change.diff) == (True, True)
    changes.begin("d", "a.txt")
    change = changes.edited("d", "a.txt", [("two", "four")])
    assert change.operation == pb.FILE_OPERATION_MODIFY
    assert ("-two\n" in change.diff, "+four\n" in change.diff) == (True, True)
    assert changes.deleted("e", "a.txt").operation == pb.FILE_OPERATION_DELETE


def test_who_looks_too_late_says_neither_operation_nor_diff(changes: Changes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("new\n", encoding="utf-8")
    changes.begin("c", "a.txt")
    change = changes.written("c", "a.txt", "new\n")
    assert (change.operation, change.diff) == (pb.FILE_OPERATION_UNSPECIFIED, "")
    changes.begin("d", "a.txt")
    change = changes.edited("d", "a.txt", [("old", "new")])
    assert (change.operation, change.diff) == (pb.FILE_OPERATION_MODIFY, "")
    assert changes.written("never begun", "b.txt", "x").operation == pb.FILE_OPERATION_UNSPECIFIED


def test_of_two_calls_for_one_file_the_second_comes_after_the_first(changes: Changes) -> None:
    changes.begin("c", "a.txt")
    changes.begin("d", "a.txt")
    assert changes.written("c", "a.txt", "one\n").operation == pb.FILE_OPERATION_CREATE
    change = changes.written("d", "a.txt", "two\n")
    assert change.operation == pb.FILE_OPERATION_MODIFY
    assert "-one\n" in change.diff


@pytest.mark.parametrize("what", ["outside", "a link out", "large", "binary", "a directory", "a zero byte"])
def test_what_is_not_read(changes: Changes, tmp_path: Path, what: str) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.write_text("secret\n", encoding="utf-8")
    path = tmp_path / "a.txt"
    match what:
        case "outside":
            path = elsewhere
        case "a link out":
            path.symlink_to(elsewhere)
        case "large":
            path.write_bytes(b"x" * (MOST_BYTES + 1))
        case "binary":
            path.write_bytes(b"\xff\xfe")
        case "a directory":
            path.mkdir()
        case _:
            path = Path(f"{path}\0")
    changes.begin("c", str(path))
    change = changes.written("c", str(path), "new\n")
    assert (change.operation, change.diff) == (pb.FILE_OPERATION_UNSPECIFIED, "")
