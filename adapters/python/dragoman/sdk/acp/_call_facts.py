"""What a tool call is about and what became of it, read from its pieces. Pure."""

import posixpath
import shlex
from typing import Final

from dragoman.sdk._encoding.config import as_int
from dragoman.sdk._encoding.fields import Fields, inner, objects, text
from dragoman.sdk._encoding.json_text import JsonValue, compact
from dragoman.sdk._output.diffs import unified_diff
from dragoman.sdk._output.tool_calls import host_of
from dragoman.sdk.acp._content import block_text
from dragoman.sdk.acp._options import ToolState
from dragoman.v1 import event_pb2 as pb

KINDS: Final = {
    "read": pb.TOOL_KIND_READ,
    "edit": pb.TOOL_KIND_EDIT,
    "delete": pb.TOOL_KIND_DELETE,
    "move": pb.TOOL_KIND_MOVE,
    "search": pb.TOOL_KIND_SEARCH,
    "execute": pb.TOOL_KIND_EXECUTE,
    "think": pb.TOOL_KIND_THINK,
    "fetch": pb.TOOL_KIND_FETCH,
    "switch_mode": pb.TOOL_KIND_SWITCH_MODE,
    "other": pb.TOOL_KIND_OTHER,
}
_EXIT_KEYS: Final = ("exitCode", "exit_code", "exit")
_OUTPUT_KEYS: Final = ("output", "content", "stdout", "message", "error", "text")
_PATH_KEYS: Final = ("path", "file_path", "filePath", "filepath", "absolute_path", "fileName", "file")


def subject(call: ToolState, asked: Fields, cwd: str, reason: str = "") -> pb.InputSubject:
    """Return what a permission is about.

    Args:
        call: the call as it is known, with what the request adds to it.
        asked: the request's ``toolCall``, which may be about something narrower than the call.
        cwd: where relative paths are meant from.
        reason: the agent's reason.
    """
    kind = call.kind
    if kind in {pb.TOOL_KIND_UNSPECIFIED, pb.TOOL_KIND_OTHER}:
        kind = KINDS.get(text(asked, "kind"), pb.TOOL_KIND_OTHER)
    content = [*call.content, *objects(asked, "content")]
    paths = [*call.paths, *locations(asked, cwd), *_diff_paths(content, cwd)]
    raw = {**call.raw_input, **inner(asked, "rawInput")}
    is_about_files = kind != pb.TOOL_KIND_EXECUTE
    return pb.InputSubject(
        tool_call_id=call.id,
        tool_name=call.name,
        tool_kind=kind,
        command=_command(raw),
        paths=dict.fromkeys([*paths, *_named_paths(raw, cwd)]) if is_about_files else (),
        host=host_of(text(raw, "url")),
        reason=reason,
    )


def file_changes(call: ToolState, cwd: str) -> list[pb.FileChange]:
    """Return what a completed call did to files, as its diffs show, else its kind and places."""
    diffs = [item for item in call.content if text(item, "type") == "diff" and text(item, "path")]
    if diffs:
        return [_diffed(item, call.id, cwd) for item in diffs]
    # Without a diff it is unknown whether the file is new.
    operations = {pb.TOOL_KIND_EDIT: pb.FILE_OPERATION_UNSPECIFIED, pb.TOOL_KIND_DELETE: pb.FILE_OPERATION_DELETE}
    operation = operations.get(call.kind)
    if operation is None:
        return []
    return [
        pb.FileChange(path=path, operation=operation, provenance=pb.PROVENANCE_INFERRED, tool_call_id=call.id)
        for path in call.paths
    ]


def _diffed(item: Fields, call_id: str, cwd: str) -> pb.FileChange:
    path, old, new = _absolute(text(item, "path"), cwd), text(item, "oldText"), text(item, "newText")
    # The protocol says null for a new file; some say an empty text.
    operation = pb.FILE_OPERATION_MODIFY if old else pb.FILE_OPERATION_CREATE
    return pb.FileChange(
        path=path,
        operation=operation,
        diff=unified_diff(path, old, new, created=not old),
        provenance=pb.PROVENANCE_NATIVE,
        tool_call_id=call_id,
    )


def output_text(output: Fields) -> str:
    """Return a call's raw output as text."""
    for key in _OUTPUT_KEYS:
        value = output.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and (blocks := objects(output, key)):
            return "\n".join(block_text(block) for block in blocks)
    return compact(output) if output else ""


def exit_code(output: Fields, *terminals: Fields) -> int | None:
    """Return the exit code that a call's raw output, or else a terminal in it, has; None if none does."""
    for place in (output, inner(output, "metadata"), *terminals):
        for key in _EXIT_KEYS:
            code = as_int(place.get(key), None)
            if code is not None and -(2**31) <= code < 2**31:
                return code
    return None


def locations(update: Fields, cwd: str) -> list[str]:
    """Return the files that an update says the call is about, absolute."""
    return [_absolute(text(item, "path"), cwd) for item in objects(update, "locations") if text(item, "path")]


def _diff_paths(content: list[Fields], cwd: str) -> list[str]:
    return [_absolute(text(item, "path"), cwd) for item in content if text(item, "type") == "diff"]


def _named_paths(raw: Fields, cwd: str) -> list[str]:
    return [_absolute(text(raw, key), cwd) for key in _PATH_KEYS if text(raw, key)]


def _absolute(path: str, cwd: str) -> str:
    return path if not cwd or posixpath.isabs(path) else posixpath.join(cwd, path)


def _command(raw: Fields) -> str:
    command: JsonValue = raw.get("command")
    if isinstance(command, list):
        return shlex.join(item for item in command if isinstance(item, str))
    return command if isinstance(command, str) else ""
