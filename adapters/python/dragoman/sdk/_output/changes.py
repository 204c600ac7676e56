"""File changes of agents that name a file and its new content, and do not say what was there before.

What was there is read when the call is announced, which is before the agent has run it or shortly after: a file that
already holds the new content shows nothing, and its change has no operation and no diff then.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dragoman.sdk._output.diffs import unified_diff
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct

MOST_BYTES: Final = 1024 * 1024
"""Bytes of a file that is read; of a larger one there is no diff."""
_MOST_CALLS: Final = 256
"""Calls that are remembered at once."""


class _Before(Struct):
    path: str
    is_absent: bool = False
    text: str | None = None
    """None: absent, outside the workspace, too large, or no text."""


class Changes:
    """The files that the open tool calls of one attempt are about.

    Args:
        roots: the workspace: the working directory first. Relative paths are meant from it, and files outside are not
            read.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(roots)
        self._open: dict[str, _Before] = {}

    def begin(self, call_id: str, path: str) -> None:
        """Note what a call is about to change. Only the first announcement of a call counts."""
        if path and call_id not in self._open and len(self._open) < _MOST_CALLS:
            self._open[call_id] = self._look(self._absolute(path))

    def drop(self, call_id: str) -> None:
        """Forget a call that changed nothing."""
        self._open.pop(call_id, None)

    def written(self, call_id: str, path: str, content: str | None) -> pb.FileChange:
        """Return the change of a call that wrote a whole file; ``content`` is None if it is not known."""
        before = self._close(call_id, path, content)
        change = _change(call_id, before.path)
        if before.is_absent:
            change.operation = pb.FILE_OPERATION_CREATE
            change.diff = unified_diff(before.path, "", content, created=True) if content is not None else ""
        elif before.text is not None and content is not None and before.text != content:
            change.operation = pb.FILE_OPERATION_MODIFY
            change.diff = unified_diff(before.path, before.text, content, created=False)
        return change

    def edited(self, call_id: str, path: str, edits: Sequence[tuple[str, str]]) -> pb.FileChange:
        """Return the change of a call that replaced texts, each the first of its kind, in a file that was there."""
        before = self._open.get(call_id)
        after = before.text if before is not None else None
        for old, new in edits:
            after = after.replace(old, new, 1) if after is not None and old and old in after else None
        before = self._close(call_id, path, after)
        change = _change(call_id, before.path, pb.FILE_OPERATION_MODIFY)
        if after is not None and before.text is not None:
            change.diff = unified_diff(before.path, before.text, after, created=False)
        return change

    def deleted(self, call_id: str, path: str) -> pb.FileChange:
        """Return the change of a call that deleted a file."""
        before = self._close(call_id, path, None)
        return _change(call_id, before.path, pb.FILE_OPERATION_DELETE)

    def _close(self, call_id: str, path: str, after: str | None) -> _Before:
        found = self._open.pop(call_id, None) or _Before(self._absolute(path))
        for other in self._open.values():
            if other.path == found.path:  # announced together with this one
                other.is_absent, other.text = False, after
        return found

    def _absolute(self, path: str) -> str:
        return os.path.normpath(Path(self._roots[0] if self._roots else "/", path))

    def _look(self, path: str) -> _Before:
        try:
            if not self._is_inside(path):
                return _Before(path)
            # Non-blocking: a named pipe without another end must not stop us.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                data = file.read(MOST_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        except FileNotFoundError:
            return _Before(path, is_absent=True)
        except (OSError, ValueError):
            return _Before(path)
        if data is None or len(data) > MOST_BYTES:
            return _Before(path)
        try:
            return _Before(path, text=data.decode())
        except UnicodeDecodeError:
            return _Before(path)

    def _is_inside(self, path: str) -> bool:
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(root)) for root in self._roots)


def _change(
    call_id: str, path: str, operation: pb.FileOperation.ValueType = pb.FILE_OPERATION_UNSPECIFIED
) -> pb.FileChange:
    return pb.FileChange(path=path, operation=operation, provenance=pb.PROVENANCE_INFERRED, tool_call_id=call_id)
