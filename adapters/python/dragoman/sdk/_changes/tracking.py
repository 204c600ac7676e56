"""Records a workspace before a run, and compares it with what is there during the run or after it."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dragoman.sdk._changes.diff_tree import ChangedPath, read_changes, split_diffs
from dragoman.sdk._changes.errors import GitError, TooLargeError
from dragoman.sdk._changes.git import PrivateRepository, find_repository
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

_MOST_PATHS: Final = 100_000
_MOST_LISTED_BYTES: Final = 16 * 1024 * 1024
_MOST_BYTES: Final = 1024 * 1024 * 1024
_LARGEST_FILE: Final = 32 * 1024 * 1024
"""Bytes. Larger files are compared by size and time."""
_MOST_FILES: Final = 10_000
_MOST_DIFF_BYTES: Final = 8 * 1024 * 1024
_LARGEST_DIFF: Final = 1024 * 1024


class _Found(Struct):
    """What differs from an index, apart from what git does not look at."""

    paths: list[bytes]
    large: dict[bytes, tuple[int, int, int]]
    """Size in bytes, time of change in nanoseconds, and mode."""
    unreadable: int = 0
    nested: int = 0


class Workspace:
    """A workspace as it was when this was made. All methods read and write files: call them in a thread.

    Args:
        directory: where the agent works; absolute.

    Raises:
        TooLargeError: more than 100 000 files, or 1 GiB, would have to be read.
        GitError: git failed.
    """

    def __init__(self, directory: str) -> None:
        user = find_repository(Path(directory))
        self.root = user.top if user else Path(os.path.realpath(directory))
        self._directory = Path(tempfile.mkdtemp(prefix="dragoman-changes-"))
        try:
            self._repository = PrivateRepository(self._directory, self.root, user)
            self._at_start = self._look()
            self._tree = self._repository.record(self._at_start.paths, self._at_start.large)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove what was recorded."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def changes(self) -> adapter_pb2.GetChangesResponse:
        """Return what differs now.

        Raises:
            TooLargeError: there is more than can be read.
            GitError: git failed.
        """
        found = self._look()
        tree = self._repository.record(found.paths, found.large)
        response = adapter_pb2.GetChangesResponse(root=_text(os.fsencode(self.root)))
        if tree != self._tree:
            self._add_differences(response, tree)
        _add_large(response, self._at_start.large, found.large)
        response.files.sort(key=lambda file: file.path)
        if len(response.files) > _MOST_FILES:
            response.notes.append(f"Only the first {_MOST_FILES} of {len(response.files)} changed files are listed.")
            del response.files[_MOST_FILES:]
        response.notes.extend(_notes(found))
        return response

    def _look(self) -> _Found:
        paths = self._repository.changed_paths(_MOST_LISTED_BYTES)
        if paths is None or len(paths) > _MOST_PATHS:
            raise TooLargeError(
                f"{self.root} has more than {_MOST_PATHS} files to record. Name what is not to be looked at in"
                " .gitignore, or commit it."
            )
        found = _Found([], {})
        total = 0
        for path in paths:
            size = self._sort(path, found)
            total += size
            if total > _MOST_BYTES:
                raise TooLargeError(
                    f"{self.root} has more than {_MOST_BYTES >> 20} MiB of files to record. Name what is not to be"
                    " looked at in .gitignore, or commit it."
                )
        return found

    def _sort(self, path: bytes, found: _Found) -> int:
        """Put a path where it belongs; return the bytes that recording it reads."""
        if path.endswith(b"/"):
            found.nested += 1
            return 0
        full = os.fsencode(self.root) + b"/" + path
        try:
            status = os.lstat(full)
        except OSError:  # deleted
            found.paths.append(path)
            return 0
        if stat.S_ISREG(status.st_mode):
            if status.st_size > _LARGEST_FILE:
                found.large[path] = (status.st_size, status.st_mtime_ns, status.st_mode)
                return 0
            if not os.access(full, os.R_OK):
                found.unreadable += 1
                return 0
        found.paths.append(path)
        return status.st_size

    def _add_differences(self, response: adapter_pb2.GetChangesResponse, tree: str) -> None:
        repository, old = self._repository, self._tree
        raw = repository.differences(old, tree, "-z", "--raw", "--full-index")
        try:
            numstat = repository.differences(old, tree, "-z", "--numstat")
            patch = repository.diff(old, tree, _MOST_DIFF_BYTES)
        except GitError as error:  # e.g. an object that a partial clone does not have
            numstat = patch = b""
            response.notes.append(f"The diffs could not be made: {error}.")
        changes = read_changes(raw, numstat)
        diffs = split_diffs(patch, changes, is_whole=len(patch) < _MOST_DIFF_BYTES)
        for change, diff in zip(changes, diffs, strict=True):
            response.files.append(_message(change, diff))


def _message(change: ChangedPath, diff: bytes) -> adapter_pb2.ChangedFile:
    message = adapter_pb2.ChangedFile(
        path=change.path,
        operation=change.operation,
        old_path=change.old_path,
        old_mode=change.old_mode,
        new_mode=change.new_mode,
        is_binary=change.added_lines is None and not change.is_submodule,
        added_lines=change.added_lines,
        deleted_lines=change.deleted_lines,
    )
    if len(diff) > _LARGEST_DIFF or not diff:
        message.diff_left_out = True
    else:
        message.diff = diff.decode(errors="replace")
    return message


def _add_large(
    response: adapter_pb2.GetChangesResponse,
    old: dict[bytes, tuple[int, int, int]],
    new: dict[bytes, tuple[int, int, int]],
) -> None:
    """Add the large files that differ. One that was small before, or is now, is among the changes already."""
    known = {file.path: file for file in response.files}
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        name = _text(path)
        file = known.get(name) or response.files.add(path=name)
        if name in known or (before and after):
            file.operation = pb.FILE_OPERATION_MODIFY
        else:
            file.operation = pb.FILE_OPERATION_CREATE if after else pb.FILE_OPERATION_DELETE
        file.old_mode = before[2] if before else file.old_mode
        file.new_mode = after[2] if after else file.new_mode
        file.is_binary = file.diff_left_out = True
        for field in ("diff", "added_lines", "deleted_lines"):
            file.ClearField(field)


def _notes(found: _Found) -> Iterable[str]:
    if found.nested:
        yield f"{found.nested} nested repositories were not looked into."
    if found.unreadable:
        yield f"{found.unreadable} files may not be read; they were not compared."


def _text(path: bytes) -> str:
    return path.decode(errors="replace")
