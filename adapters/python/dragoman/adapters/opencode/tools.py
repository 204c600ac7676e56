"""opencode's tools over the Agent Client Protocol. Pure."""

import re
from typing import Final

from dragoman.sdk.acp import Fields, ToolState, unified_diff
from dragoman.sdk.fields import JsonValue, as_object, as_string
from dragoman.v1 import event_pb2 as pb

KINDS: Final = {
    "read": pb.TOOL_KIND_READ,
    "list": pb.TOOL_KIND_READ,
    **dict.fromkeys(("glob", "grep", "lsp", "codesearch", "websearch"), pb.TOOL_KIND_SEARCH),
    **dict.fromkeys(("edit", "write", "patch", "apply_patch", "multiedit"), pb.TOOL_KIND_EDIT),
    "bash": pb.TOOL_KIND_EXECUTE,
    "webfetch": pb.TOOL_KIND_FETCH,
    "task": pb.TOOL_KIND_SUBAGENT,
    "skill": pb.TOOL_KIND_SKILL,
    **dict.fromkeys(("todowrite", "todoread"), pb.TOOL_KIND_TODO),
    "question": pb.TOOL_KIND_ASK_USER,
    **dict.fromkeys(("plan_enter", "plan_exit"), pb.TOOL_KIND_SWITCH_MODE),
}
"""opencode's own tools. Any other is one of an MCP server or of a plugin."""
_NAME: Final = re.compile(r"[A-Za-z][\w-]{0,127}")


def tool_name(update: Fields) -> str:
    """Return a tool's name: it is the title when a call begins; later titles are for people."""
    if update.get("sessionUpdate") != "tool_call":
        return ""
    title = as_string(update.get("title"), "")
    return title if _NAME.fullmatch(title) else ""


def file_changes(call: ToolState) -> list[pb.FileChange] | None:
    """Return the change to a file in the result of a completed call; None: see the call's diffs."""
    if call.kind != pb.TOOL_KIND_EDIT:
        return []
    change = file_change(call.id, call.raw_input, call.raw_output)
    return None if change is None else [change]


def file_change(call_id: str, tool_input: Fields, output: Fields) -> pb.FileChange | None:
    """Return the change to a file that a call made; None if it names no file.

    Args:
        call_id: the call.
        tool_input: its input, or that of the permission request.
        output: its result, with ``metadata``.
    """
    metadata = as_object(output.get("metadata"), {})
    path = _first(metadata.get("filepath"), tool_input.get("filePath"), tool_input.get("filepath"))
    if not path:
        return None
    is_new = metadata.get("exists") is False
    diff = _without_heading(_first(metadata.get("diff"), tool_input.get("diff")))
    content = tool_input.get("content")
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
