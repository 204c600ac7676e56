"""OpenClaw's tools: kinds, calls, subjects and results. Pure."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Final

from dragoman.sdk import fields as read
from dragoman.sdk.fields import Fields, compact
from dragoman.sdk.parsing import one_line
from dragoman.v1 import event_pb2 as pb

_KINDS: Final[Mapping[str, pb.ToolKind.ValueType]] = {
    **dict.fromkeys(("read", "memory_get"), pb.TOOL_KIND_READ),
    **dict.fromkeys(("write", "edit", "apply_patch"), pb.TOOL_KIND_EDIT),
    **dict.fromkeys(("exec", "process"), pb.TOOL_KIND_EXECUTE),
    **dict.fromkeys(("ls", "find", "grep", "memory_search", "tool_search", "web_search"), pb.TOOL_KIND_SEARCH),
    **dict.fromkeys(("web_fetch", "browser"), pb.TOOL_KIND_FETCH),
    **dict.fromkeys(("sessions_spawn", "sessions_send", "subagents", "sessions_yield"), pb.TOOL_KIND_SUBAGENT),
    "update_plan": pb.TOOL_KIND_TODO,
}
_ABOUT: Final = ("path", "command", "query", "url", "task", "message", "action", "id")
_PATCH_FILES: Final = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")
_DENIED: Final = "Exec denied"


class Calls:
    """The calls of one attempt."""

    def __init__(self, cwd: str) -> None:
        self.open: dict[str, tuple[str, Fields]] = {}
        """Name and input, by ID."""
        self.denied: set[str] = set()
        self._cwd = cwd

    def begin(self, data: Fields) -> Iterator[pb.AgentEvent]:
        """Handle the start of a call."""
        call_id, name, tool_input = read.text(data, "toolCallId"), read.text(data, "name"), read.inner(data, "args")
        self.open[call_id] = (name, tool_input)
        yield pb.AgentEvent(tool_call=tool_call(call_id, name, tool_input))

    def end(self, data: Fields, *, was_stopped: bool) -> Iterator[pb.AgentEvent]:
        """Handle the result of a call."""
        call_id = read.text(data, "toolCallId")
        name, tool_input = self.open.pop(call_id, (read.text(data, "name"), {}))
        result = tool_result(call_id, data, was_denied=call_id in self.denied, was_stopped=was_stopped)
        yield pb.AgentEvent(tool_result=result)
        change = file_change(call_id, name, data, self._cwd, tool_input)
        if change is not None:
            yield pb.AgentEvent(file_change=change)


def kind_of(name: str) -> pb.ToolKind.ValueType:
    """Return the kind of a tool."""
    return _KINDS.get(name, pb.TOOL_KIND_OTHER)


def tool_call(call_id: str, name: str, tool_input: Fields) -> pb.ToolCall:
    """Return a call that runs, with its input."""
    return pb.ToolCall(
        id=call_id,
        name=name,
        kind=kind_of(name),
        title=title(name, tool_input),
        input_json=compact(tool_input),
        status=pb.TOOL_STATUS_RUNNING,
    )


def title(name: str, tool_input: Fields) -> str:
    """Return one line that says what a call does."""
    about = next((read.text(tool_input, key) for key in _ABOUT if read.text(tool_input, key)), "")
    return one_line(" ".join(f"{name} {about}".split()))


def subject(call_id: str, name: str, tool_input: Fields, cwd: str) -> pb.InputSubject:
    """Return what a permission is about, as policies see it: a command has no paths, whatever files it touches."""
    return pb.InputSubject(
        tool_call_id=call_id,
        tool_name=name,
        tool_kind=kind_of(name),
        command=read.text(tool_input, "command") if name == "exec" else "",
        paths=[posixpath.join(cwd, path) for path in _paths(name, tool_input)],
    )


def _paths(name: str, tool_input: Fields) -> Iterator[str]:
    if read.text(tool_input, "path"):
        yield read.text(tool_input, "path")
    if name == "apply_patch":
        for line in read.text(tool_input, "input").splitlines():
            yield from (line[len(mark) :].strip() for mark in _PATCH_FILES if line.startswith(mark))


def tool_result(call_id: str, data: Fields, *, was_denied: bool, was_stopped: bool) -> pb.ToolResult:
    """Return a call's result."""
    result = read.inner(data, "result")
    details = read.inner(result, "details")
    content = "\n".join(read.text(part, "text") for part in read.objects(result, "content") if "text" in part)
    is_error = data.get("isError")
    tool_result = pb.ToolResult(
        tool_call_id=call_id,
        status=_status(data, details, content, was_denied=was_denied, was_stopped=was_stopped),
        content=content,
        is_error=is_error if isinstance(is_error, bool) else None,
        exit_code=_exit_code(details),
        output_json=compact(details) if details else "",
    )
    duration = read.count(details, "durationMs")
    if duration is not None:
        tool_result.duration.FromMilliseconds(duration)
    return tool_result


def _exit_code(details: Fields) -> int | None:
    code = read.count(details, "exitCode")
    return code if code is not None and code <= 255 else None


def _status(
    data: Fields, details: Fields, content: str, *, was_denied: bool, was_stopped: bool
) -> pb.ToolStatus.ValueType:
    is_error = data.get("isError") is True
    if is_error and (was_denied or content.startswith(_DENIED)):
        return pb.TOOL_STATUS_DENIED
    if is_error and was_stopped:
        return pb.TOOL_STATUS_CANCELLED
    if details.get("timedOut") is True:
        return pb.TOOL_STATUS_TIMED_OUT
    return pb.TOOL_STATUS_FAILED if is_error or _exit_code(details) else pb.TOOL_STATUS_COMPLETED


def file_change(call_id: str, name: str, data: Fields, cwd: str, tool_input: Fields) -> pb.FileChange | None:
    """Return the change that a call made; None if it made or reported none."""
    details = read.inner(read.inner(data, "result"), "details")
    path = read.text(tool_input, "path")
    if kind_of(name) != pb.TOOL_KIND_EDIT or data.get("isError") is True or not path:
        return None
    if details.get("changed") is False:
        return None
    created = details.get("created") is True
    return pb.FileChange(
        path=posixpath.normpath(posixpath.join(cwd, path)),
        operation=pb.FILE_OPERATION_CREATE if created else pb.FILE_OPERATION_MODIFY,
        diff=read.text(details, "patch"),
        provenance=pb.PROVENANCE_NATIVE,
        tool_call_id=call_id,
    )
