"""What git says of changed files, read; and what is no such thing."""

import pytest
from dragoman.sdk._changes.diff_tree import read_changes
from dragoman.v1 import event_pb2 as pb

RAW = b":100644 100755 aaa bbb M\0run.sh\0:100644 100644 ccc ddd R90\0old\0new\0"
COUNTS = b"".join((b"1\t2\trun.sh\x00", b"0\t3\t\x00old\x00new\x00"))


def test_changes_have_their_paths_modes_and_lines() -> None:
    found = read_changes(RAW, COUNTS)
    assert [(one.path, one.old_path, one.old_mode, one.new_mode) for one in found] == [
        ("run.sh", "", 0o100644, 0o100755),
        ("new", "old", 0o100644, 0o100644),
    ]
    assert [(one.added_lines, one.deleted_lines) for one in found] == [(1, 2), (0, 3)]
    assert [one.operation for one in found] == [pb.FILE_OPERATION_MODIFY, pb.FILE_OPERATION_RENAME]


@pytest.mark.parametrize(
    "raw", [b":100644 100644 aaa bbb M\0", b":100644 100644 aaa bbb R90\0old\0"], ids=["changed", "renamed"]
)
def test_a_change_without_a_path_is_none_of_gits(raw: bytes) -> None:
    with pytest.raises(ValueError, match="named no path"):
        read_changes(raw, b"")
