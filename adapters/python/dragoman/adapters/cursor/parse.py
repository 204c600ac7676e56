"""Cursor's stream-json output, understood. Pure: lines in, events out; nothing in a line may raise.

Written from cursor.com/docs/cli/reference/output-format; no program could be tried. With partial output the words of
a message come in pieces and then once more as a whole. Newer versions mark pieces by ``timestamp_ms`` without
``model_call_id``; older ones mark nothing, and what repeats all pieces so far is the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from dragoman.sdk import (
    FailureInfo,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    compact,
    outputs_of,
    parse_json_object,
)
from dragoman.sdk.fields import Fields, count, inner, objects, text
from dragoman.v1 import event_pb2 as pb

_KINDS: Final[Mapping[str, pb.ToolKind.ValueType]] = {
    **dict.fromkeys(("read", "ls"), pb.TOOL_KIND_READ),
    **dict.fromkeys(("write", "edit", "applyPatch", "editNotebook"), pb.TOOL_KIND_EDIT),
    **dict.fromkeys(("glob", "grep", "semSearch", "webSearch"), pb.TOOL_KIND_SEARCH),
    "delete": pb.TOOL_KIND_DELETE,
    "shell": pb.TOOL_KIND_EXECUTE,
    "webFetch": pb.TOOL_KIND_FETCH,
    "mcp": pb.TOOL_KIND_MCP,
    "task": pb.TOOL_KIND_SUBAGENT,
    **dict.fromkeys(("updateTodos", "readTodos"), pb.TOOL_KIND_TODO),
}
_ENDS: Final[Mapping[str, pb.ToolStatus.ValueType]] = {
    "success": pb.TOOL_STATUS_COMPLETED,
    "rejected": pb.TOOL_STATUS_DENIED,
    "permissionDenied": pb.TOOL_STATUS_DENIED,
    "timeout": pb.TOOL_STATUS_TIMED_OUT,
}
_TOKENS: Final = {
    "inputTokens": "input",
    "outputTokens": "output",
    "cacheReadTokens": "cache_read",
    "cacheWriteTokens": "cache_write",
}
_TITLE_KEYS: Final = ("path", "command", "pattern", "url")
_SUFFIX: Final = "ToolCall"


class CursorParser:
    """Understands the output of one attempt."""

    def __init__(self) -> None:
        self.report = Report()
        self._items = 0
        self._said: dict[str, str] = {}
        """What the open items have said: of "text" and of "thinking"."""
        self._calls: set[str] = set()
        self._handlers: dict[str, Callable[[Fields], Iterable[Output]]] = {
            "system": self._system,
            "user": lambda _: (),
            "assistant": self._assistant,
            "thinking": self._thinking,
            "tool_call": self._tool_call,
            "result": self._result,
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = (parse_json_object(line.data) if stream == "stdout" else None) or {}
        handler = self._handlers.get(text(frame, "type"))
        return outputs_of(self.report, stream, line, partial(handler, frame) if handler else None)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        return [*self._close("thinking"), *self._close("text")]

    def _system(self, frame: Fields) -> Iterator[Output]:
        self.report.session_id = text(frame, "session_id") or self.report.session_id
        self.report.model = text(frame, "model") or self.report.model
        session = pb.Session(native_id=self.report.session_id, model=self.report.model)
        session.mode = text(frame, "permissionMode")
        yield pb.AgentEvent(session=session)

    def _assistant(self, frame: Fields) -> Iterator[Output]:
        words = "".join(text(block, "text") for block in objects(inner(frame, "message"), "content"))
        yield from self._close("thinking")
        is_piece = "timestamp_ms" in frame and not text(frame, "model_call_id")
        if not is_piece and words and words == self._said.get("text"):
            yield from self._close("text")
        elif words:
            yield self._piece("text", words)

    def _thinking(self, frame: Fields) -> Iterator[Output]:
        if text(frame, "text"):
            yield from self._close("text")
            yield self._piece("thinking", text(frame, "text"))
        if text(frame, "subtype") == "completed":
            yield from self._close("thinking")

    def _piece(self, kind: str, words: str) -> pb.AgentEvent:
        if kind not in self._said:
            self._items += 1
        self._said[kind] = self._said.get(kind, "") + words
        event = pb.AgentEvent()
        piece = event.text if kind == "text" else event.thinking
        piece.item_id, piece.delta = f"{kind}-{self._items}", words
        return event

    def _close(self, kind: str) -> Iterator[pb.AgentEvent]:
        said = self._said.pop(kind, None)
        if said is None:
            return
        event = pb.AgentEvent()
        (event.text if kind == "text" else event.thinking).item_id = f"{kind}-{self._items}"
        yield event
        if kind == "text":
            self.report.summary = said

    def _tool_call(self, frame: Fields) -> Iterator[Output]:
        call_id, (name, call) = text(frame, "call_id"), _tool(inner(frame, "tool_call"))
        if not call_id:
            return
        yield from self.finish()
        arguments, result = inner(call, "args"), inner(call, "result")
        if call_id not in self._calls:
            self._calls.add(call_id)
            about = next((text(arguments, key) for key in _TITLE_KEYS if key in arguments), "")
            made = pb.ToolCall(id=call_id, name=name, kind=_KINDS.get(name, pb.TOOL_KIND_OTHER))
            made.title = f"{name} {about}".strip().split("\n", 1)[0][:120]
            made.input_json = compact(arguments) if arguments else text(call, "arguments")
            made.status = pb.TOOL_STATUS_RUNNING
            yield pb.AgentEvent(tool_call=made)
        if text(frame, "subtype") == "completed":
            yield pb.AgentEvent(tool_result=_tool_result(call_id, result))

    def _result(self, frame: Fields) -> Iterator[Output]:
        if self.report.terminal is not None:
            return
        yield from self.finish()
        report, said = self.report, text(frame, "result")
        report.session_id = report.session_id or text(frame, "session_id")
        report.summary = report.summary or said
        report.raw_json = compact(frame)
        report.usage = _usage(inner(frame, "usage"), report.model)
        subtype = text(frame, "subtype")
        if frame.get("is_error") is True or subtype != "success":
            failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, said or "Cursor failed and does not say why.")
            report.terminal = Terminal(succeeded=False, subtype=subtype, failure=failure)
        else:
            report.terminal = Terminal(succeeded=True, subtype=subtype)


def _tool(call: Fields) -> tuple[str, Fields]:
    """Return a tool's name and what is said of the call: it is the key that ends in ``ToolCall``, or a function."""
    for key in call:
        if key.endswith(_SUFFIX):
            return key.removesuffix(_SUFFIX) or "tool", inner(call, key)
    function = inner(call, "function")
    return text(function, "name") or "tool", function


def _tool_result(call_id: str, result: Fields) -> pb.ToolResult:
    how = next((key for key in result if isinstance(result[key], dict)), "")
    said = inner(result, how)
    exit_code = count(said, "exitCode")
    status = _ENDS.get(how, pb.TOOL_STATUS_FAILED)
    if status == pb.TOOL_STATUS_COMPLETED and exit_code:
        status = pb.TOOL_STATUS_FAILED
    streams = "".join(filter(None, (text(said, "stdout"), text(said, "stderr"))))
    content = text(said, "content") or streams.removesuffix("\n") or text(said, "error") or text(said, "reason")
    made = pb.ToolResult(tool_call_id=call_id, status=status, content=content, is_error=how != "success")
    made.output_json = compact(result) if result else ""
    if exit_code is not None and exit_code < 2**31:
        made.exit_code = exit_code
    return made


def _usage(usage: Fields, model: str) -> pb.Usage | None:
    """Return what the run used; None if it does not say, as older versions do not."""
    counts = {name: count(usage, key) for key, name in _TOKENS.items()}
    if all(value is None for value in counts.values()):
        return None
    made = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    for name, value in counts.items():
        if value is not None:
            setattr(made.tokens, name, value)
    if model:
        made.models.add(model=model).tokens.CopyFrom(made.tokens)
    return made
