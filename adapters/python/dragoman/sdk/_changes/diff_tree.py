"""What ``git diff-tree`` says of two trees, as changed files. Pure. See git-diff-tree(1), "Raw output format"."""

from collections.abc import Iterator
from typing import Final

from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_OPERATIONS: Final = {"A": pb.FILE_OPERATION_CREATE, "D": pb.FILE_OPERATION_DELETE, "R": pb.FILE_OPERATION_RENAME}
_TYPE_CHANGED: Final = "T"
_SUBMODULE: Final = 0o160000
_DIFF_START: Final = b"diff --git "


class ChangedPath(Struct):
    """One file that two trees differ in."""

    path: str
    operation: pb.FileOperation.ValueType
    old_path: str = ""
    old_mode: int = 0
    new_mode: int = 0
    added_lines: int | None = None
    """None if the file is binary."""
    deleted_lines: int | None = None
    diffs: int = 1
    """How many diffs of ``git diff-tree --patch`` are about it: a file that became a link has two."""

    @property
    def is_submodule(self) -> bool:
        """Whether it is, or was, the commit of another repository."""
        return _SUBMODULE in {self.old_mode, self.new_mode}


def read_changes(raw: bytes, numstat: bytes) -> list[ChangedPath]:
    """Return the changed files of ``git diff-tree -z --raw`` and ``-z --numstat``, in git's order.

    Raises:
        ValueError: this is not what git writes.
    """
    counts = _read_counts(numstat)
    changes = list(_read_raw(raw))
    for change in changes:
        change.added_lines, change.deleted_lines = counts.get(change.path, (None, None))
    return changes


def _read_raw(raw: bytes) -> Iterator[ChangedPath]:
    fields = iter(_fields(raw))
    for head in fields:
        old_mode, new_mode, _, _, status = head.removeprefix(":").split(" ")
        path, old_path = next(fields, None), ""
        if status[:1] in {"R", "C"}:
            old_path, path = path or "", next(fields, None)
        if path is None:
            raise ValueError(f"git diff-tree named no path after {head!r}")
        yield ChangedPath(
            path=path,
            operation=_OPERATIONS.get(status[:1], pb.FILE_OPERATION_MODIFY),
            old_path=old_path,
            old_mode=int(old_mode, 8),
            new_mode=int(new_mode, 8),
            diffs=2 if status[:1] == _TYPE_CHANGED else 1,
        )


def _read_counts(numstat: bytes) -> dict[str, tuple[int | None, int | None]]:
    counts: dict[str, tuple[int | None, int | None]] = {}
    fields = iter(_fields(numstat))
    for head in fields:
        added, deleted, path = head.split("\t", 2)
        if not path:  # renamed: the old path and the new one follow
            next(fields, None)
            path = next(fields, "")
        counts[path] = (None, None) if added == "-" else (int(added), int(deleted))
    return counts


def split_diffs(patch: bytes, changes: list[ChangedPath], *, is_whole: bool) -> list[bytes]:
    """Return the diff of each change; empty for those that a cut patch does not have whole.

    No line within a diff begins as a diff does: each begins with a space, a sign, or a word of git's.
    """
    starts = [0] if patch.startswith(_DIFF_START) else []
    position = patch.find(b"\n" + _DIFF_START)
    while position >= 0:
        starts.append(position + 1)
        position = patch.find(b"\n" + _DIFF_START, position + 1)
    pieces = [patch[start:end] for start, end in zip(starts, [*starts[1:], len(patch)], strict=True)]
    if not is_whole and pieces:
        pieces.pop()
    diffs, taken = [], 0
    for change in changes:
        own = pieces[taken : taken + change.diffs]
        diffs.append(b"".join(own) if len(own) == change.diffs else b"")
        taken += change.diffs
    return diffs


def _fields(data: bytes) -> list[str]:
    # A path may be of any bytes; what is no UTF-8 is shown by a replacement.
    return [field.decode(errors="replace") for field in data.split(b"\0") if field]
