"""Tool calls: followed through their updates, told as events. Pure."""

from collections.abc import Iterator
from typing import Final

from dragoman.sdk._fields import Fields, inner, objects, text
from dragoman.sdk._json import compact
from dragoman.sdk.acp._call_facts import KINDS, exit_code, file_changes, locations, output_text
from dragoman.sdk.acp._content import block_text
from dragoman.sdk.acp._options import AcpOptions, ToolState
from dragoman.v1 import event_pb2 as pb

_RUNNING: Final = {
    "": pb.TOOL_STATUS_PENDING,
    "pending": pb.TOOL_STATUS_PENDING,
    "in_progress": pb.TOOL_STATUS_RUNNING,
}
_ENDED: Final = frozenset({"completed", "failed"})
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
        self._terminals: dict[str, Fields] = {}
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
        call.paths = locations(update, self._cwd) or call.paths
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

    def note_terminal(self, terminal_id: str, told: Fields) -> None:
        """Note what the agent was told of a terminal that may be part of a call: its output, its exit, or both."""
        ended = told if "exitCode" in told else inner(told, "exitStatus")
        self._terminals[terminal_id] = {**self._terminals.get(terminal_id, {}), **told, **ended}

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
        printed, before = self._content(call), self._printed.get(call.id, "")
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
        content = self._content(call) or output_text(call.raw_output)
        result = pb.ToolResult(
            tool_call_id=call.id,
            status=self._result_status(call),
            content=content,
            is_error=call.status == "failed",
            exit_code=exit_code(call.raw_output, *self._terminals_of(call)),
            output_json=compact(call.raw_output) if call.raw_output else "",
        )
        yield pb.AgentEvent(tool_result=result)
        if call.status == "completed":
            changes = self._options.file_changes(call)
            for change in changes if changes is not None else file_changes(call, self._cwd):
                yield pb.AgentEvent(file_change=change)

    def _content(self, call: ToolState) -> str:
        said = [block_text(inner(item, "content")) for item in call.content if text(item, "type") == "content"]
        return "\n".join([*said, *(text(terminal, "output") for terminal in self._terminals_of(call))])

    def _terminals_of(self, call: ToolState) -> list[Fields]:
        shown = (text(item, "terminalId") for item in call.content if text(item, "type") == "terminal")
        return [self._terminals[terminal_id] for terminal_id in shown if terminal_id in self._terminals]

    def _result_status(self, call: ToolState) -> pb.ToolStatus.ValueType:
        if call.id in self.denied and call.status == "failed":
            return pb.TOOL_STATUS_DENIED
        if call.id in self._cut:
            return pb.TOOL_STATUS_CANCELLED
        return pb.TOOL_STATUS_COMPLETED if call.status == "completed" else pb.TOOL_STATUS_FAILED
