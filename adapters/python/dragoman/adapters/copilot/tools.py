"""Copilot's tools: kinds, calls, results and permission requests. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dragoman.sdk import Answer, Ask
from dragoman.sdk.fields import Fields, JsonValue, compact, count, inner, objects, text
from dragoman.sdk.parsing import host_of, one_line
from dragoman.v1 import event_pb2 as pb

_KINDS: Final[Mapping[str, pb.ToolKind.ValueType]] = {
    **dict.fromkeys(("view", "read_bash", "list_bash", "read_agent", "list_agents"), pb.TOOL_KIND_READ),
    **dict.fromkeys(("create", "edit", "apply_patch", "str_replace_editor"), pb.TOOL_KIND_EDIT),
    **dict.fromkeys(("grep", "glob", "rg", "web_search"), pb.TOOL_KIND_SEARCH),
    **dict.fromkeys(("bash", "write_bash", "stop_bash", "powershell"), pb.TOOL_KIND_EXECUTE),
    **dict.fromkeys(("task", "write_agent"), pb.TOOL_KIND_SUBAGENT),
    **dict.fromkeys(("sql", "update_todo"), pb.TOOL_KIND_TODO),
    "web_fetch": pb.TOOL_KIND_FETCH,
    "skill": pb.TOOL_KIND_SKILL,
    "ask_user": pb.TOOL_KIND_ASK_USER,
}
_ASKED_KINDS: Final[Mapping[str, pb.ToolKind.ValueType]] = {
    "write": pb.TOOL_KIND_EDIT,
    "shell": pb.TOOL_KIND_EXECUTE,
    "read": pb.TOOL_KIND_READ,
    "mcp": pb.TOOL_KIND_MCP,
    "url": pb.TOOL_KIND_FETCH,
}
_OPERATIONS: Final[Mapping[str, pb.FileOperation.ValueType]] = {
    "create": pb.FILE_OPERATION_CREATE,
    "edit": pb.FILE_OPERATION_MODIFY,
    "delete": pb.FILE_OPERATION_DELETE,
}
_SHELL_END: Final = re.compile(r"\n?<(?:shellId: [^<>\n]{1,64}|command) completed with exit code -?\d{1,10}>\s*\Z")
"""What Copilot puts behind the output of a command; the exit code has a field of its own."""


class Calls:
    """The calls of one attempt."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """The tools of calls that have not ended."""

    def name(self, call_id: str) -> str:
        """Return the tool of a call that has not ended; empty if there is no such call."""
        return self._names.get(call_id, "")

    def pending(self, data: Fields, name: str) -> Iterator[pb.AgentEvent]:
        """Handle the start of a call that the model still writes."""
        call_id = text(data, "toolCallId")
        if call_id and call_id not in self._names:
            self._names[call_id] = name
            call = pb.ToolCall(id=call_id, name=name, kind=tool_kind(name, ""), status=pb.TOOL_STATUS_PENDING)
            yield pb.AgentEvent(tool_call=call)

    def begin(self, data: Fields) -> Iterator[pb.AgentEvent]:
        """Handle ``tool.execution_start``."""
        call_id, name, arguments = text(data, "toolCallId"), text(data, "toolName"), inner(data, "arguments")
        if not call_id:
            return
        self._names[call_id] = name
        server = text(data, "mcpServerName")
        call = pb.ToolCall(
            id=call_id,
            name=name,
            kind=tool_kind(name, server),
            title=tool_title(name, arguments),
            input_json=compact(arguments) if arguments else text(data, "arguments"),
            status=pb.TOOL_STATUS_RUNNING,
            mcp_server=server,
        )
        yield pb.AgentEvent(tool_call=call)

    def output(self, data: Fields) -> Iterator[pb.AgentEvent]:
        """Handle ``tool.shell_output``."""
        call_id, words = text(data, "toolCallId"), text(data, "text")
        stream = pb.OUTPUT_STREAM_STDERR if text(data, "stream") == "stderr" else pb.OUTPUT_STREAM_STDOUT
        if call_id in self._names and words:
            output = pb.ToolOutput(tool_call_id=call_id, stream=stream, text=words)
            yield pb.AgentEvent(tool_output=output)

    def end(self, data: Fields, *, is_cancelled: bool) -> Iterator[pb.AgentEvent]:
        """Handle ``tool.execution_complete``."""
        if self._names.pop(text(data, "toolCallId"), None) is None:
            return
        result = tool_result(data, is_cancelled=is_cancelled)
        yield pb.AgentEvent(tool_result=result)
        if result.status == pb.TOOL_STATUS_COMPLETED:
            for change in file_changes(data):
                yield pb.AgentEvent(file_change=change)

    def cancel(self) -> Iterator[pb.AgentEvent]:
        """End the calls that Copilot has stopped: it does not report their ends."""
        for call_id in list(self._names):
            yield from self.end({"toolCallId": call_id}, is_cancelled=True)


def tool_kind(name: str, server: str) -> pb.ToolKind.ValueType:
    """Return the kind of a tool."""
    return pb.TOOL_KIND_MCP if server else _KINDS.get(name, pb.TOOL_KIND_OTHER)


def tool_title(name: str, arguments: Fields) -> str:
    """Return one line that says what a call does."""
    about = next(
        (
            text(arguments, key)
            for key in ("path", "command", "pattern", "url", "description", "skill")
            if text(arguments, key)
        ),
        "",
    )
    return one_line(f"{name} {about}".strip())


def tool_result(data: Fields, *, is_cancelled: bool) -> pb.ToolResult:
    """Return how a call ended. A command with an exit code has failed, though Copilot counts it as done."""
    error, exit_code = inner(data, "error"), count(inner(data, "shellExecution"), "exitCode")
    succeeded = data.get("success") is True
    status = pb.TOOL_STATUS_COMPLETED if succeeded and not exit_code else pb.TOOL_STATUS_FAILED
    if text(error, "code") in {"denied", "rejected"}:
        status = pb.TOOL_STATUS_DENIED
    elif is_cancelled:
        status = pb.TOOL_STATUS_CANCELLED
    result = pb.ToolResult(
        tool_call_id=text(data, "toolCallId"),
        status=status,
        content=_SHELL_END.sub("", text(inner(data, "result"), "content")) if succeeded else text(error, "message"),
        is_error=not succeeded,
    )
    if exit_code is not None and exit_code < 2**31:
        result.exit_code = exit_code
    return result


def file_changes(data: Fields) -> list[pb.FileChange]:
    """Return the files that a call changed, as Copilot reports them."""
    found = objects(data, "fileEdits")
    # There is one text for all of them; with several files it does not say whose lines are whose.
    diff = text(inner(data, "result"), "detailedContent").lstrip("\n") if len(found) == 1 else ""
    return [
        pb.FileChange(
            path=text(edit, "path"),
            operation=_OPERATIONS.get(text(edit, "kind"), pb.FILE_OPERATION_UNSPECIFIED),
            diff=diff,
            provenance=pb.PROVENANCE_NATIVE,
            tool_call_id=text(data, "toolCallId"),
        )
        for edit in found
        if text(edit, "path")
    ]


def subject(request: Fields, prompt: Fields, tool_name: str) -> pb.InputSubject:
    """Return what a permission is about, as policies see it.

    Args:
        request: ``permissionRequest``, the action.
        prompt: ``promptRequest``, the question, which differs for a path beyond the workspace.
        tool_name: the tool's name, as the model called it.
    """
    kind = text(request, "kind")
    path = text(request, "fileName") or text(request, "path")
    return pb.InputSubject(
        tool_call_id=text(request, "toolCallId"),
        tool_name=tool_name or text(request, "toolName"),
        tool_kind=_ASKED_KINDS.get(kind, pb.TOOL_KIND_OTHER),
        # Files that a command may touch are guesses: a rule that allows paths must not allow commands.
        command=text(request, "fullCommandText"),
        paths=[path] if path and kind in {"read", "write"} else [],
        host=host_of(text(request, "url")),
        reason="It is outside of the directories of this session." if text(prompt, "kind") == "path" else "",
    )


def permission(request_id: str, about: pb.InputSubject, request: Fields, answer: Callable[[Answer], bytes]) -> Ask:
    """Return the question whether a tool may be used."""
    asked = pb.InputRequest(
        id=request_id,
        kind=pb.INPUT_KIND_PERMISSION,
        title=one_line(text(request, "intention") or text(request, "toolTitle") or about.tool_name),
        description="\n".join(filter(None, (about.reason, text(request, "warning"), text(request, "diff").strip()))),
        subject=about,
    )
    asked.options.add(id="allow_once", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE, label="Allow once")
    approval = _session_approval(request)
    if approval:
        asked.options.add(
            id="allow_always",
            kind=pb.INPUT_OPTION_KIND_ALLOW_ALWAYS,
            label=f"Allow {approval['kind']} for this session",
            native_json=compact(approval),
        )
    asked.options.add(id="reject_once", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE, label="Reject")
    return Ask(asked, answer)


def decision(answer: Answer, request: Fields) -> dict[str, JsonValue]:
    """Return an answer in Copilot's form."""
    if not answer.allowed:
        return {"kind": "reject", "feedback": answer.message or "The user does not allow this."}
    if answer.option is not None and answer.option.kind == pb.INPUT_OPTION_KIND_ALLOW_ALWAYS:
        return {"kind": "approve-for-session", "approval": _session_approval(request)}
    return {"kind": "approve-once"}


def _session_approval(request: Fields) -> dict[str, JsonValue]:
    """Return what may be approved for the whole session; empty if Copilot does not offer it."""
    if request.get("canOfferSessionApproval") is not True:
        return {}
    if text(request, "kind") == "write":
        return {"kind": "write"}
    names: list[JsonValue] = [text(item, "identifier") for item in objects(request, "commands")]
    return {"kind": "commands", "commandIdentifiers": names} if names else {}
