"""opencode's tools as it tells them over the Agent Client Protocol. Pure."""

import re
from typing import Final

from dragoman.sdk import JsonValue, as_object, as_string
from dragoman.sdk.acp import Fields, ToolState, unified_diff
from dragoman.v1 import event_pb2 as pb

_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,127}")


def tool_name(update: Fields) -> str:
    """Return a tool's name: it stands in the title when a call begins, which then is for people."""
    if update.get("sessionUpdate") != "tool_call":
        return ""
    title = as_string(update.get("title"), "")
    return title if _NAME.fullmatch(title) else ""


def file_changes(call: ToolState) -> list[pb.FileChange] | None:
    """Return what a completed call did to a file, as opencode's own result tells; None: see the call's diffs."""
    if call.kind != pb.TOOL_KIND_EDIT:
        return []
    change = file_change(call.id, call.raw_input, call.raw_output)
    return None if change is None else [change]


def file_change(call_id: str, given: Fields, output: Fields) -> pb.FileChange | None:
    """Return the change to a file that a call made; None if it does not say which.

    Args:
        call_id: the call.
        given: its input, or what opencode asked permission for.
        output: what came of it, with ``metadata``.
    """
    metadata = as_object(output.get("metadata"), {})
    path = _first(metadata.get("filepath"), given.get("filePath"), given.get("filepath"))
    if not path:
        return None
    is_new = metadata.get("exists") is False
    diff = _without_heading(_first(metadata.get("diff"), given.get("diff")))
    content = given.get("content")
    if not diff and is_new and isinstance(content, str):
        diff = unified_diff(path, "", content, created=True)
    return pb.FileChange(
        path=path,
        operation=pb.FILE_OPERATION_CREATE if is_new else pb.FILE_OPERATION_MODIFY,
        diff=diff,
        provenance=pb.PROVENANCE_NATIVE,
        tool_call_id=call_id,
    )


def _first(*values: JsonValue) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def _without_heading(diff: str) -> str:
    """Return a diff without the two lines that stand before it."""
    at = diff.find("--- ")
    return diff[at:] if diff.startswith("Index: ") and at > 0 else diff
