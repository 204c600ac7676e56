"""Tool calls: followed through their updates, told as events. Pure."""

import difflib
import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from dragoman.sdk._config import as_int
from dragoman.sdk._fields import Fields, inner, objects, text
from dragoman.sdk._json import JsonValue, compact
from dragoman.sdk.acp._content import block_text
from dragoman.sdk.acp._options import AcpOptions, ToolState
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
_RUNNING: Final = {
    "": pb.TOOL_STATUS_PENDING,
    "pending": pb.TOOL_STATUS_PENDING,
    "in_progress": pb.TOOL_STATUS_RUNNING,
}
_ENDED: Final = frozenset({"completed", "failed"})
_EXIT_KEYS: Final = ("exitCode", "exit_code", "exit")
_OUTPUT_KEYS: Final = ("output", "content", "stdout", "message", "error", "text")
_PATH_KEYS: Final = ("path", "file_path", "filePath", "filepath", "absolute_path", "fileName", "file")
_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MOST_DIFF_LINES: Final = 10_000
"""Lines of both sides together; comparing more takes too long."""
_MOST_CALLS: Final = 4096
"""Calls that are remembered; an agent that never ends one must not fill the memory."""


class ToolCalls:
    """The tool calls of one attempt.

    Args:
        options: the agent's ways.
        cwd: where relative paths are meant from.
    """

    def __init__(self, options: AcpOptions, cwd: str) -> None:
        self._options = options
        self._cwd = cwd
        self._calls: dict[str, ToolState] = {}
        self._told: dict[str, bytes] = {}
        self._printed: dict[str, str] = {}
        self._open: set[str] = set()
        self.denied: set[str] = set()
        """Calls whose permission was refused."""
        self._cut: set[str] = set()
        """Calls that were open when the agent was told to stop."""

    def get(self, call_id: str) -> ToolState | None:
        """Return a call as it stands; None if it is not known."""
        return self._calls.get(call_id)

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
        call.title = text(update, "title") or call.title
        call.raw_input = inner(update, "rawInput") or call.raw_input
        output = update.get("rawOutput")
        if output is not None:
            call.raw_output = output if isinstance(output, dict) else {"output": output}
        call.content = objects(update, "content") if isinstance(update.get("content"), list) else call.content
        call.paths = _locations(update, self._cwd) or call.paths
        return call

    def asked_about(self, asked: Fields) -> ToolState | None:
        """Return the call that a permission request is about; None if it names none.

        What is known of it stays: a request may show only the part of a call that needs permission.
        """
        known = self._calls.get(text(asked, "toolCallId"))
        if known is None:
            return self.merge(asked)
        if not known.raw_input:  # nor may it have been told before
            known.raw_input = inner(asked, "rawInput")
        return known

    def announce(self, call_id: str) -> Iterator[pb.AgentEvent]:
        """Tell a call that permission is asked for, if nothing was told of it."""
        call = self._calls.get(call_id)
        if call is not None and call_id not in self._told:
            self._open.add(call_id)
            yield from self._tell(call)

    def update(self, update: Fields) -> Iterator[pb.AgentEvent]:
        """Take ``tool_call`` or ``tool_call_update``."""
        call = self.merge(update)
        if call is None:
            return
        call.status = text(update, "status") or call.status
        if call.status in _ENDED:
            if call.id in self._open or call.id not in self._told:
                yield from self._end(call)
            return
        self._open.add(call.id)
        yield from self._tell(call)
        yield from self._output(call)

    def interrupt(self) -> None:
        """Note that the agent is told to stop: what is open now counts as cancelled, as the protocol wants it.

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
        for known in (self._calls, self._told, self._printed):
            known.pop(call_id, None)
        self._open.discard(call_id)

    def _tell(self, call: ToolState) -> Iterator[pb.AgentEvent]:
        """Tell a call if it changed: some agents repeat themselves."""
        event = pb.ToolCall(
            id=call.id,
            name=call.name,
            kind=call.kind or pb.TOOL_KIND_OTHER,
            title=call.title,
            input_json=compact(call.raw_input) if call.raw_input else "",
            status=_RUNNING.get(call.status, pb.TOOL_STATUS_RUNNING),
        )
        told = event.SerializeToString()
        if self._told.get(call.id) != told:
            self._told[call.id] = told
            yield pb.AgentEvent(tool_call=event)

    def _output(self, call: ToolState) -> Iterator[pb.AgentEvent]:
        """Tell what a running command has printed since it was last told: each update has all of it so far."""
        if call.kind != pb.TOOL_KIND_EXECUTE:
            return
        printed, before = _content_text(call.content), self._printed.get(call.id, "")
        if len(printed) <= len(before) or not printed.startswith(before):
            return
        self._printed[call.id] = printed
        piece = pb.ToolOutput(tool_call_id=call.id, stream=pb.OUTPUT_STREAM_PTY, text=printed[len(before) :])
        yield pb.AgentEvent(tool_output=piece)

    def _end(self, call: ToolState) -> Iterator[pb.AgentEvent]:
        self._open.discard(call.id)
        if call.id not in self._told or call.raw_input:
            status, call.status = call.status, "in_progress"
            yield from self._tell(call)
            call.status = status
        content = _content_text(call.content) or _output_text(call.raw_output)
        result = pb.ToolResult(
            tool_call_id=call.id,
            status=self._result_status(call),
            content=content,
            is_error=call.status == "failed",
            exit_code=_exit_code(call.raw_output),
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


def subject(call: ToolState, asked: Fields, cwd: str, reason: str = "") -> pb.InputSubject:
    """Return what a permission is about.

    Args:
        call: the call as it is known, the request's own words included.
        asked: the request's ``toolCall``, which may be about something narrower than the call.
        cwd: where relative paths are meant from.
        reason: the agent's reason.
    """
    kind = call.kind
    if kind in {pb.TOOL_KIND_UNSPECIFIED, pb.TOOL_KIND_OTHER}:
        kind = KINDS.get(text(asked, "kind"), pb.TOOL_KIND_OTHER)
    said = [*call.content, *objects(asked, "content")]
    paths = [*call.paths, *_locations(asked, cwd), *_diff_paths(said, cwd)]
    raw = {**call.raw_input, **inner(asked, "rawInput")}
    is_about_files = kind != pb.TOOL_KIND_EXECUTE
    return pb.InputSubject(
        tool_call_id=call.id,
        tool_name=call.name,
        tool_kind=kind,
        command=_command(raw),
        paths=dict.fromkeys([*paths, *_named_paths(raw, cwd)]) if is_about_files else (),
        host=_host(text(raw, "url")),
        reason=reason,
    )


def file_changes(call: ToolState, cwd: str) -> list[pb.FileChange]:
    """Return what a completed call did to files, as its diffs tell, else its kind and places."""
    diffs = [item for item in call.content if text(item, "type") == "diff" and text(item, "path")]
    if diffs:
        return [_diffed(item, call.id, cwd) for item in diffs]
    # Without a diff nobody says whether the file is new.
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


def unified_diff(path: str, old: str, new: str, *, created: bool) -> str:
    """Return a unified diff; empty if nothing changed or it would take too long to find out what."""
    before, after = _LINES.findall(old), _LINES.findall(new)
    if len(before) + len(after) > _MOST_DIFF_LINES:
        return ""
    lines = difflib.unified_diff(before, after, "/dev/null" if created else path, path)
    ends = "\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else f"{line}\n{ends}" for line in lines)


def _content_text(content: list[Fields]) -> str:
    return "\n".join(block_text(inner(item, "content")) for item in content if text(item, "type") == "content")


def _output_text(output: Fields) -> str:
    for key in _OUTPUT_KEYS:
        value = output.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and (blocks := objects(output, key)):
            return "\n".join(block_text(block) for block in blocks)
    return compact(output) if output else ""


def _exit_code(output: Fields) -> int | None:
    for place in (output, inner(output, "metadata")):
        for key in _EXIT_KEYS:
            code = as_int(place.get(key), None)
            if code is not None and -(2**31) <= code < 2**31:
                return code
    return None


def _locations(update: Fields, cwd: str) -> list[str]:
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


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
