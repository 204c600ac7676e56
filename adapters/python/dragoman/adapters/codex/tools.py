"""Codex's items that are tool calls: kinds, subjects and results. Pure.

An item is a ``ThreadItem`` of the app server, as ``codex app-server generate-ts`` defines it.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dragoman.sdk.fields import Fields, JsonValue, compact, count, inner, objects, text
from dragoman.sdk.parsing import one_line, whole_file_diff
from dragoman.v1 import event_pb2 as pb

SHELL: Final = "exec_command"
PATCH: Final = "apply_patch"
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


class Calls:
    """The calls of one attempt.

    Args:
        cwd: the working directory, to show paths below it as relative.
    """

    def __init__(self, cwd: str) -> None:
        self.open: dict[str, Fields] = {}
        """Their items from beginning to end, by ID: some questions name nothing but the ID."""
        self.refusals: dict[str, str] = {}
        """The reasons of declined calls, by ID."""
        self._cwd = cwd

    def begin(self, item: Fields) -> Iterator[pb.AgentEvent]:
        """Handle the start of an item."""
        call = tool_call(item, self._cwd)
        if call is not None:
            self.open[call.id] = item
            pending = pb.ToolCall(id=call.id, name=call.name, kind=call.kind, status=pb.TOOL_STATUS_PENDING)
            yield pb.AgentEvent(tool_call=pending)
            call.status = pb.TOOL_STATUS_RUNNING
            yield pb.AgentEvent(tool_call=call)

    def output(self, params: Fields) -> Iterator[pb.AgentEvent]:
        """Handle what a running command has printed."""
        call_id, words = text(params, "itemId"), text(params, "delta")
        if call_id and words:
            output = pb.ToolOutput(tool_call_id=call_id, stream=pb.OUTPUT_STREAM_PTY, text=words)
            yield pb.AgentEvent(tool_output=output)

    def end(self, item: Fields) -> Iterator[pb.AgentEvent]:
        """Handle the end of an item."""
        if tool_call(item, self._cwd) is None:
            return
        call_id = text(item, "id")
        if call_id not in self.open:  # its start was not reported
            yield from self.begin(item)
        self.open.pop(call_id, None)
        result = tool_result(item)
        if result.status == pb.TOOL_STATUS_FAILED and call_id in self.refusals:
            result.status = pb.TOOL_STATUS_DENIED  # Codex calls a refused tool of an MCP server failed
        if result.status == pb.TOOL_STATUS_DENIED:
            result.content = self.refusals.get(call_id, result.content)
        yield pb.AgentEvent(tool_result=result)
        if result.status == pb.TOOL_STATUS_COMPLETED and text(item, "type") == "fileChange":
            yield from (pb.AgentEvent(file_change=change) for change in file_changes(item))

    def cancel(self) -> Iterator[pb.AgentEvent]:
        """End all calls that are open."""
        for call_id in self.open:
            result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_CANCELLED, is_error=True)
            yield pb.AgentEvent(tool_result=result)
        self.open.clear()


def script_of(command: str) -> str:
    """Return the script of a shell's command line: ``ls`` of ``/bin/bash -lc ls``; any other command as it is."""
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
    call.title = one_line(call.title or call.name)
    return call


def tool_result(item: Fields) -> pb.ToolResult:
    """Return the result of a call."""
    status = _STATUSES.get(text(item, "status"), pb.TOOL_STATUS_COMPLETED)
    error = text(inner(item, "error"), "message")
    if error or item.get("success") is False:
        status = pb.TOOL_STATUS_FAILED
    result = pb.ToolResult(
        tool_call_id=text(item, "id"),
        status=status,
        is_error=status != pb.TOOL_STATUS_COMPLETED,
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
    """Yield the changes of an applied patch."""
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
    if kind in {"add", "delete"}:
        return whole_file_diff(path, diff, deleted=kind == "delete")
    return f"--- {path}\n+++ {path}\n{diff}" if diff.startswith("@@") else diff


def _content(item: Fields) -> str:
    output = text(item, "aggregatedOutput")
    if output:
        return output
    content = objects(inner(item, "result"), "content") or objects(item, "contentItems")
    return "\n".join(text(part, "text") or f"[{text(part, 'type') or 'content'}]" for part in content)


def _shell(item: Fields, cwd: str) -> pb.ToolCall:
    script = script_of(text(item, "command"))
    arguments: dict[str, JsonValue] = {"cmd": script}
    if text(item, "cwd") not in {"", cwd}:
        arguments["workdir"] = text(item, "cwd")
    return pb.ToolCall(name=SHELL, kind=pb.TOOL_KIND_EXECUTE, title=script, input_json=compact(arguments))


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
    arguments = compact(item.get("arguments"))
    return pb.ToolCall(name=text(item, "tool") or "tool", kind=pb.TOOL_KIND_OTHER, input_json=arguments)


def _nested(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    prompt = text(item, "prompt")
    arguments = compact({"prompt": prompt, "model": item.get("model")})
    return pb.ToolCall(
        name=text(item, "tool") or "agent", kind=pb.TOOL_KIND_SUBAGENT, title=prompt, input_json=arguments
    )


def _search(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    query = text(item, "query")
    arguments = compact({"query": query, "action": item.get("action")})
    title = f"Search the web: {query}" if query else "Search the web"
    return pb.ToolCall(name="web_search", kind=pb.TOOL_KIND_SEARCH, title=title, input_json=arguments)


def _view(item: Fields, cwd: str) -> pb.ToolCall:
    del cwd
    path = text(item, "path")
    arguments = compact({"path": path})
    return pb.ToolCall(name="view_image", kind=pb.TOOL_KIND_READ, title=f"View {path}", input_json=arguments)


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
