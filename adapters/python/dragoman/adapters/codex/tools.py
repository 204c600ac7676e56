"""Codex's items that are tool calls: of what sort they are, what they are about, and how they ended. Pure.

An item is a ``ThreadItem`` of the app server, as ``codex app-server generate-ts`` defines it.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dragoman.sdk import JsonValue, compact
from dragoman.sdk.fields import Fields, count, inner, objects, text
from dragoman.v1 import event_pb2 as pb

SHELL: Final = "exec_command"
PATCH: Final = "apply_patch"
_LONGEST_TITLE: Final = 120
"""Characters."""
_SHELLS: Final = ("sh", "bash", "zsh", "dash", "ksh")
_STATUSES: Final[Mapping[str, pb.ToolStatus.ValueType]] = {
    "failed": pb.TOOL_STATUS_FAILED,
    "declined": pb.TOOL_STATUS_DENIED,
    "interrupted": pb.TOOL_STATUS_CANCELLED,
}
_OPERATIONS: Final[Mapping[str, pb.FileOperation.ValueType]] = {
    "add": pb.FILE_OPERATION_CREATE,
    "delete": pb.FILE_OPERATION_DELETE,
    "update": pb.FILE_OPERATION_MODIFY,
}


@dataclass(slots=True)
class Calls:
    """What is known of the calls of one attempt."""

    open: dict[str, Fields] = field(default_factory=dict)
    """Their items from beginning to end, by id: some questions name nothing but the id."""
    refusals: dict[str, str] = field(default_factory=dict)
    """What was said when a call was declined, by id."""


def script_of(command: str) -> str:
    """Return what a shell is told to run: ``ls`` of ``/bin/bash -lc ls``; any other command as it is."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    is_shell = len(words) == 3 and words[0].rpartition("/")[2] in _SHELLS and words[1] in {"-c", "-lc"}
    return words[2] if is_shell else command


def changed_paths(item: Fields) -> list[str]:
    """Return the paths that a patch touches, those that files are moved to included."""
    paths = []
    for change in objects(item, "changes"):
        paths += [text(change, "path"), text(inner(change, "kind"), "move_path")]
    return [path for path in dict.fromkeys(paths) if path]


def tool_call(item: Fields, cwd: str) -> pb.ToolCall | None:
    """Return the call that an item is; None if it is none."""
    make = _CALLS.get(text(item, "type"))
    if make is None or not text(item, "id"):
        return None
    call = make(item, cwd)
    call.id = text(item, "id")
    call.title = _line(call.title or call.name)
    return call


def tool_result(item: Fields) -> pb.ToolResult:
    """Return how a call ended that ``tool_call`` knows."""
    status = _STATUSES.get(text(item, "status"), pb.TOOL_STATUS_COMPLETED)
    error = text(inner(item, "error"), "message")
    if error or item.get("success") is False:
        status = pb.TOOL_STATUS_FAILED
    result = pb.ToolResult(
        tool_call_id=text(item, "id"),
        status=status,
        is_error=status != pb.TOOL_STATUS_COMPLETED,
        # The newline that ends the last line says nothing.
        content=(error or _content(item)).removesuffix("\n"),
    )
    code = item.get("exitCode")
    if isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31:
        result.exit_code = code
    milliseconds = count(item, "durationMs")
    if milliseconds is not None and milliseconds < 10**12:
        result.duration.FromMilliseconds(milliseconds)
    structured = inner(inner(item, "result"), "structuredContent")
    if structured:
        result.output_json = compact(structured)
    return result


def file_changes(item: Fields) -> Iterator[pb.FileChange]:
    """Yield what a patch that was applied has changed."""
    for change in objects(item, "changes"):
        path, kind = text(change, "path"), text(inner(change, "kind"), "type")
        moved_to = text(inner(change, "kind"), "move_path")
        if path:
            yield pb.FileChange(
                path=moved_to or path,
                old_path=path if moved_to else "",
                operation=pb.FILE_OPERATION_RENAME if moved_to else _OPERATIONS.get(kind, pb.FILE_OPERATION_MODIFY),
                diff=_diff(path, kind, text(change, "diff")),
                provenance=pb.PROVENANCE_NATIVE,
                tool_call_id=text(item, "id"),
            )


def _diff(path: str, kind: str, diff: str) -> str:
    """Return a unified diff; of files that are new or gone, Codex gives the content alone."""
    if not diff:
        return ""
    if kind not in {"add", "delete"}:
        return f"--- {path}\n+++ {path}\n{diff}" if diff.startswith("@@") else diff
    lines = diff.removesuffix("\n").split("\n")
    sign, old, new = ("+", "/dev/null", path) if kind == "add" else ("-", path, "/dev/null")
    hunk = f"@@ -0,0 +1,{len(lines)} @@" if kind == "add" else f"@@ -1,{len(lines)} +0,0 @@"
    body = "".join(f"{sign}{line}\n" for line in lines)
    end = "" if diff.endswith("\n") else "\\ No newline at end of file\n"
    return f"--- {old}\n+++ {new}\n{hunk}\n{body}{end}"


def _content(item: Fields) -> str:
    said = text(item, "aggregatedOutput")
    if said:
        return said
    content = objects(inner(item, "result"), "content") or objects(item, "contentItems")
    return "\n".join(text(part, "text") or f"[{text(part, 'type') or 'content'}]" for part in content)


def _shell(item: Fields, cwd: str) -> pb.ToolCall:
    script = script_of(text(item, "command"))
    given: dict[str, JsonValue] = {"cmd": script}
    if text(item, "cwd") not in {"", cwd}:
        given["workdir"] = text(item, "cwd")
    return pb.ToolCall(name=SHELL, kind=pb.TOOL_KIND_EXECUTE, title=script, input_json=compact(given))


def _patch(item: Fields, cwd: str) -> pb.ToolCall:
    kinds = {text(inner(change, "kind"), "type") for change in objects(item, "changes")}
    kind = pb.TOOL_KIND_DELETE if kinds == {"delete"} else pb.TOOL_KIND_EDIT
    paths = [path.removeprefix(f"{cwd.rstrip('/')}/") if cwd else path for path in changed_paths(item)]
    return pb.ToolCall(
        name=PATCH,
        kind=kind,
        title=f"{'Delete' if kind == pb.TOOL_KIND_DELETE else 'Edit'} {', '.join(paths)}",
        input_json=compact({"changes": item.get("changes")}),
    )


def _mcp(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    server, tool = text(item, "server"), text(item, "tool")
    return pb.ToolCall(
        name=f"mcp__{server}__{tool}",
        kind=pb.TOOL_KIND_MCP,
        title=f"{server}: {tool}",
        input_json=compact(item.get("arguments")),
        mcp_server=server,
    )


def _dynamic(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    given = compact(item.get("arguments"))
    return pb.ToolCall(name=text(item, "tool") or "tool", kind=pb.TOOL_KIND_OTHER, input_json=given)


def _nested(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    prompt = text(item, "prompt")
    given = compact({"prompt": prompt, "model": item.get("model")})
    return pb.ToolCall(name=text(item, "tool") or "agent", kind=pb.TOOL_KIND_SUBAGENT, title=prompt, input_json=given)


def _search(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    query = text(item, "query")
    given = compact({"query": query, "action": item.get("action")})
    title = f"Search the web: {query}" if query else "Search the web"
    return pb.ToolCall(name="web_search", kind=pb.TOOL_KIND_SEARCH, title=title, input_json=given)


def _view(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    path = text(item, "path")
    given = compact({"path": path})
    return pb.ToolCall(name="view_image", kind=pb.TOOL_KIND_READ, title=f"View {path}", input_json=given)


def _other(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    return pb.ToolCall(name=text(item, "type"), kind=pb.TOOL_KIND_OTHER, input_json=compact(item))


_CALLS: Final[Mapping[str, Callable[[Fields, str], pb.ToolCall]]] = {
    "commandExecution": _shell,
    "fileChange": _patch,
    "mcpToolCall": _mcp,
    "dynamicToolCall": _dynamic,
    "collabAgentToolCall": _nested,
    "webSearch": _search,
    "imageView": _view,
    "imageGeneration": _other,
    "sleep": _other,
}


def _line(value: str) -> str:
    first = value.strip().split("\n", 1)[0]
    return first if len(first) <= _LONGEST_TITLE else f"{first[: _LONGEST_TITLE - 1]}…"
