"""Claude Code's tools: kinds, subjects and results. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from dragoman.sdk.fields import Fields, as_string_list, compact, count, inner, objects, text
from dragoman.sdk.parsing import host_of, one_line, whole_file_diff
from dragoman.v1 import event_pb2 as pb

_KINDS: Final[Mapping[str, pb.ToolKind.ValueType]] = {
    **dict.fromkeys(("Read", "NotebookRead"), pb.TOOL_KIND_READ),
    **dict.fromkeys(("Write", "Edit", "MultiEdit", "NotebookEdit"), pb.TOOL_KIND_EDIT),
    **dict.fromkeys(("Glob", "Grep", "LS", "ToolSearch", "WebSearch", "web_search"), pb.TOOL_KIND_SEARCH),
    **dict.fromkeys(("WebFetch", "web_fetch"), pb.TOOL_KIND_FETCH),
    **dict.fromkeys(("Bash", "BashOutput", "KillBash", "KillShell", "PowerShell", "Monitor"), pb.TOOL_KIND_EXECUTE),
    **dict.fromkeys(("Agent", "Task", "TaskOutput", "TaskStop", "SendMessage", "Workflow"), pb.TOOL_KIND_SUBAGENT),
    **dict.fromkeys(("Skill", "SlashCommand"), pb.TOOL_KIND_SKILL),
    **dict.fromkeys(("TodoWrite", "TaskCreate", "TaskUpdate", "TaskGet", "TaskList"), pb.TOOL_KIND_TODO),
    **dict.fromkeys(("EnterPlanMode", "ExitPlanMode", "EnterWorktree", "ExitWorktree"), pb.TOOL_KIND_SWITCH_MODE),
    **dict.fromkeys(("ListMcpResources", "ReadMcpResource"), pb.TOOL_KIND_MCP),
    "AskUserQuestion": pb.TOOL_KIND_ASK_USER,
}
_FILE_KEYS: Final = ("file_path", "notebook_path", "path")
_TITLE_KEYS: Final = ("subject", "description", "command", "pattern", "query", "url", "skill", "plan")
_EXIT_CODE: Final = re.compile(r"(?:Error: )?Exit code (\d{1,3})(?:\n|$)")
_CREATED: Final = "File created successfully"
_TIMED_OUT: Final = re.compile(r"\bCommand timed out after\b")

EDITING: Final = frozenset({"Write", "Edit", "MultiEdit", "NotebookEdit"})
"""Tools that change a file."""


def mcp_server(name: str) -> str:
    """Return the MCP server that a tool belongs to; empty for built-in tools."""
    parts = name.split("__", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "mcp" else ""


def tool_kind(name: str) -> pb.ToolKind.ValueType:
    """Return the kind of a tool."""
    return pb.TOOL_KIND_MCP if mcp_server(name) else _KINDS.get(name, pb.TOOL_KIND_OTHER)


def tool_title(name: str, tool_input: Fields, cwd: str) -> str:
    """Return one line that says what a call does."""
    server = mcp_server(name)
    if server:
        return one_line(f"{server}: {name.split('__', 2)[2]}")
    if name == "AskUserQuestion":
        return one_line(next((text(item, "question") for item in objects(tool_input, "questions")), name))
    path = next((text(tool_input, key) for key in _FILE_KEYS if text(tool_input, key)), "")
    if path and name != "Grep":
        return one_line(f"{name} {_below(path, cwd)}")
    about = next((text(tool_input, key) for key in _TITLE_KEYS if text(tool_input, key)), "")
    return one_line(f"{name}: {about}" if about else name)


def tool_call(call_id: str, name: str, tool_input: Fields, cwd: str, status: pb.ToolStatus.ValueType) -> pb.ToolCall:
    """Return a call whose input is known."""
    return pb.ToolCall(
        id=call_id,
        name=name,
        kind=tool_kind(name),
        title=tool_title(name, tool_input, cwd),
        input_json=compact(tool_input),
        status=status,
        mcp_server=mcp_server(name),
    )


def subject(call_id: str, name: str, tool_input: Fields, reason: str) -> pb.InputSubject:
    """Return what a permission is about, as policies see it.

    Paths are those that the tool itself names. A shell command has none, whatever files it touches: a rule that
    allows paths must not allow commands.
    """
    paths = [text(tool_input, key) for key in _FILE_KEYS if text(tool_input, key)]
    return pb.InputSubject(
        tool_call_id=call_id,
        tool_name=name,
        tool_kind=tool_kind(name),
        command=text(tool_input, "command") if tool_kind(name) == pb.TOOL_KIND_EXECUTE else "",
        paths=paths if tool_kind(name) in {pb.TOOL_KIND_READ, pb.TOOL_KIND_EDIT, pb.TOOL_KIND_SEARCH} else (),
        host=host_of(text(tool_input, "url")),
        reason=reason,
    )


def result_status(block: Fields, content: str, meta: Fields, *, was_denied: bool) -> pb.ToolStatus.ValueType:
    """Return how a call ended.

    Args:
        block: the ``tool_result`` block.
        content: its text.
        meta: ``tool_result_meta`` of this call, or empty.
        was_denied: whether an earlier frame reported the call as denied.
    """
    if was_denied or text(inner(meta, "permission_decision"), "decision") == "reject":
        return pb.TOOL_STATUS_DENIED
    if text(meta, "non_execution_kind") == "user-rejected":
        # No user rejected it: the run was interrupted, before the call or during it.
        return pb.TOOL_STATUS_CANCELLED
    if text(meta, "non_execution_kind") == "permission-rule":
        return pb.TOOL_STATUS_DENIED
    if block.get("is_error") is not True:
        return pb.TOOL_STATUS_COMPLETED
    return pb.TOOL_STATUS_TIMED_OUT if _TIMED_OUT.search(content[:2000]) else pb.TOOL_STATUS_FAILED


def exit_code(name: str, content: str) -> int | None:
    """Return the exit code of a shell command, where its result names one. Success names none."""
    found = _EXIT_CODE.match(content) if tool_kind(name) == pb.TOOL_KIND_EXECUTE else None
    return int(found[1]) if found else None


def result_text(block: Fields) -> str:
    """Return the text of a ``tool_result`` block; content of other types is named in brackets."""
    content = block.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        text(item, "text") if text(item, "type") == "text" else f"[{text(item, 'type') or 'content'}]"
        for item in objects(block, "content")
    )


def file_change(
    name: str, call_id: str, tool_input: Fields, structured: Fields, content: str
) -> pb.FileChange | None:
    """Return the change that an editing tool made; None if it names no file.

    Args:
        name: the tool.
        call_id: the call.
        tool_input: its input.
        structured: its structured result; empty if there is none, as from nested agents.
        content: its result as text.
    """
    if name not in EDITING:
        return None
    path = text(structured, "filePath") or text(structured, "notebook_path")
    native = bool(path)
    path = path or next((text(tool_input, key) for key in _FILE_KEYS if text(tool_input, key)), "")
    if not path:
        return None
    created = text(structured, "type") == "create" or content.startswith(_CREATED)
    return pb.FileChange(
        path=path,
        operation=pb.FILE_OPERATION_CREATE if created else pb.FILE_OPERATION_MODIFY,
        diff=_diff(path, structured, created=created),
        provenance=pb.PROVENANCE_NATIVE if native else pb.PROVENANCE_INFERRED,
        tool_call_id=call_id,
    )


def _diff(path: str, structured: Fields, *, created: bool) -> str:
    hunks = objects(structured, "structuredPatch")
    if created and not hunks:
        return whole_file_diff(path, text(structured, "content"))
    if not hunks:
        return ""
    lines = [f"--- {path}", f"+++ {path}"]
    for hunk in hunks:
        old = f"{count(hunk, 'oldStart') or 0},{count(hunk, 'oldLines') or 0}"
        new = f"{count(hunk, 'newStart') or 0},{count(hunk, 'newLines') or 0}"
        lines.append(f"@@ -{old} +{new} @@")
        lines += as_string_list(hunk.get("lines"))
    return "\n".join(lines) + "\n"


def _below(path: str, cwd: str) -> str:
    return path.removeprefix(f"{cwd.rstrip('/')}/") if cwd else path
