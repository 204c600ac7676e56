"""Tool calls: followed through their updates, emitted as events; what each is about and what became of it. Pure."""

import posixpath
import shlex
from collections.abc import Collection, Iterator
from typing import Final

from dragoman.sdk._encoding.config import as_int
from dragoman.sdk._encoding.fields import Fields, inner, objects, text
from dragoman.sdk._encoding.json_text import JsonValue, compact
from dragoman.sdk._output.diffs import unified_diff
from dragoman.sdk._output.mcp_names import mcp_server_of
from dragoman.sdk._output.tool_calls import host_of
from dragoman.sdk.acp._session import AcpOptions, ToolState
from dragoman.v1 import event_pb2 as pb


def block_text(block: Fields) -> str:
    """Return a content block as text; what is no text is named in brackets."""
    kind = text(block, "type")
    if kind == "text":
        return text(block, "text")
    if kind == "resource_link":
        return f"[{text(block, 'name') or 'link'}]({text(block, 'uri')})"
    if kind == "resource":
        resource = inner(block, "resource")
        return text(resource, "text") or f"[{text(resource, 'uri') or 'resource'}]"
    return f"[{text(block, 'mimeType') or kind or 'content'}]"


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
_WORDS: Final = {kind: word for word, kind in KINDS.items()}
"""What stands for the name of a tool: the protocol has none, and not every agent adds one of its own."""
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


def exit_code(output: Fields) -> int | None:
    """Return the exit code that a call's raw output has; None if it has none."""
    for place in (output, inner(output, "metadata")):
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


_RUNNING: Final = {
    "": pb.TOOL_STATUS_PENDING,
    "pending": pb.TOOL_STATUS_PENDING,
    "in_progress": pb.TOOL_STATUS_RUNNING,
}
_ENDED: Final = frozenset({"completed", "failed"})
_MOST_CALLS: Final = 4096
"""Calls that are remembered; an agent that never ends one must not fill the memory."""


def _shown(call: ToolState) -> str:
    """Return the text that a call shows."""
    texts = [block_text(inner(item, "content")) for item in call.content if text(item, "type") == "content"]
    return "\n".join(texts)


class ToolCalls:
    """The tool calls of one attempt.

    Args:
        options: the agent's ways.
        cwd: where relative paths are meant from.
        servers: the names of the run's MCP servers.
    """

    def __init__(self, options: AcpOptions, cwd: str, servers: Collection[str] = ()) -> None:
        self._options = options
        self._cwd = cwd
        self._servers = servers
        self._calls: dict[str, ToolState] = {}
        self._emitted: dict[str, bytes] = {}
        self._printed: dict[str, str] = {}
        self._open: set[str] = set()
        self.denied: set[str] = set()
        """Calls whose permission was refused."""
        self._cut: set[str] = set()
        """Calls that were open when the agent was asked to stop."""

    def merge(self, update: Fields) -> ToolState | None:
        """Put an update, or the call of a permission request, into what is known; None if it names no call."""
        call_id = text(update, "toolCallId")
        if not call_id:
            return None
        call = self._calls.get(call_id)
        if call is None:
            if len(self._calls) >= _MOST_CALLS:
                self._forget(next(iter(self._calls)))
            call = self._calls[call_id] = ToolState(call_id)
        call.name = self._options.tool_name(update) or call.name
        kind = KINDS.get(text(update, "kind"), pb.TOOL_KIND_UNSPECIFIED)
        if kind != pb.TOOL_KIND_UNSPECIFIED:
            call.kind = kind
        self._sort(call)
        call.title = text(update, "title") or call.title
        call.raw_input = inner(update, "rawInput") or call.raw_input
        output = update.get("rawOutput")
        if output is not None:
            call.raw_output = output if isinstance(output, dict) else {"output": output}
        call.content = objects(update, "content") if isinstance(update.get("content"), list) else call.content
        call.paths = locations(update, self._cwd) or call.paths
        return call

    def _sort(self, call: ToolState) -> None:
        """Set the kind of a call where its name is more precise than the protocol's kinds."""
        known = self._options.tool_kinds.get(call.name)
        is_vague = call.kind in {pb.TOOL_KIND_UNSPECIFIED, pb.TOOL_KIND_OTHER}
        server = None
        if known is None:
            server = mcp_server_of(call.name, self._servers, unprefixed=is_vague or call.kind == pb.TOOL_KIND_MCP)
        if server is not None:
            call.kind, call.mcp_server = pb.TOOL_KIND_MCP, server
        elif known is not None and is_vague:
            call.kind = known

    def asked_about(self, asked: Fields) -> ToolState | None:
        """Return the call that a permission request is about; None if it names none.

        What is known of it stays: a request may show only the part of a call that needs permission.
        """
        known = self._calls.get(text(asked, "toolCallId"))
        if known is None:
            return self.merge(asked)
        if not known.name:
            known.name = self._options.tool_name(asked)
            self._sort(known)
        if not known.raw_input:  # nor may it have been emitted before
            known.raw_input = inner(asked, "rawInput")
        return known

    def announce(self, call_id: str) -> Iterator[pb.AgentEvent]:
        """Emit a call that permission is requested for, unless it was emitted."""
        call = self._calls.get(call_id)
        if call is not None and call_id not in self._emitted:
            self._open.add(call_id)
            yield from self._emit(call)

    def update(self, update: Fields) -> Iterator[pb.AgentEvent]:
        """Handle ``tool_call`` or ``tool_call_update``."""
        call = self.merge(update)
        if call is None:
            return
        call.status = text(update, "status") or call.status
        if call.status in _ENDED:
            if call.id in self._open or call.id not in self._emitted:
                yield from self._end(call)
            return
        self._open.add(call.id)
        yield from self._emit(call)
        yield from self._output(call)

    def interrupt(self) -> None:
        """Note that the agent is asked to stop: what is open now counts as cancelled, as the protocol has it.

        Some agents call it completed when they have killed the command that they ran.
        """
        self._cut |= self._open

    def close_denied(self) -> Iterator[pb.AgentEvent]:
        """End the calls that were refused and that the agent says nothing more of."""
        for call_id in sorted(self._open & self.denied):
            yield pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_DENIED))
        self._open -= self.denied

    def cut_off(self) -> Iterator[pb.AgentEvent]:
        """End the calls that an interrupted turn has left open."""
        for call_id in sorted(self._open):
            result = pb.ToolResult(tool_call_id=call_id, status=pb.TOOL_STATUS_CANCELLED)
            yield pb.AgentEvent(tool_result=result)
        self._open.clear()

    def _forget(self, call_id: str) -> None:
        for known in (self._calls, self._emitted, self._printed):
            known.pop(call_id, None)
        self._open.discard(call_id)

    def _emit(self, call: ToolState) -> Iterator[pb.AgentEvent]:
        """Emit a call if it changed: some agents repeat themselves."""
        event = pb.ToolCall(
            id=call.id,
            name=call.name or _WORDS.get(call.kind, "other"),
            kind=call.kind or pb.TOOL_KIND_OTHER,
            title=call.title,
            input_json=compact(call.raw_input) if call.raw_input else "",
            status=_RUNNING.get(call.status, pb.TOOL_STATUS_RUNNING),
            mcp_server=call.mcp_server,
        )
        serialized = event.SerializeToString()
        if self._emitted.get(call.id) != serialized:
            self._emitted[call.id] = serialized
            yield pb.AgentEvent(tool_call=event)

    def _output(self, call: ToolState) -> Iterator[pb.AgentEvent]:
        """Emit what a running command has printed since the last update: each update has all of it so far."""
        if call.kind != pb.TOOL_KIND_EXECUTE:
            return
        printed, before = _shown(call), self._printed.get(call.id, "")
        if len(printed) <= len(before) or not printed.startswith(before):
            return
        self._printed[call.id] = printed
        piece = pb.ToolOutput(tool_call_id=call.id, stream=pb.OUTPUT_STREAM_PTY, text=printed[len(before) :])
        yield pb.AgentEvent(tool_output=piece)

    def _end(self, call: ToolState) -> Iterator[pb.AgentEvent]:
        self._open.discard(call.id)
        if call.id not in self._emitted or call.raw_input:
            status, call.status = call.status, "in_progress"
            yield from self._emit(call)
            call.status = status
        content = _shown(call) or output_text(call.raw_output)
        result = pb.ToolResult(
            tool_call_id=call.id,
            status=self._result_status(call),
            content=content,
            is_error=call.status == "failed",
            exit_code=exit_code(call.raw_output),
            output_json=compact(call.raw_output) if call.raw_output else "",
        )
        yield pb.AgentEvent(tool_result=result)
        if call.status == "completed":
            changes = self._options.file_changes(call)
            for change in changes if changes is not None else file_changes(call, self._cwd):
                yield pb.AgentEvent(file_change=change)

    def _result_status(self, call: ToolState) -> pb.ToolStatus.ValueType:
        if call.id in self.denied and call.status == "failed":
            return pb.TOOL_STATUS_DENIED
        if call.id in self._cut:
            return pb.TOOL_STATUS_CANCELLED
        return pb.TOOL_STATUS_COMPLETED if call.status == "completed" else pb.TOOL_STATUS_FAILED
