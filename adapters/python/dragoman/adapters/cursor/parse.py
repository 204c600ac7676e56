"""Cursor's stream-json output, understood. Pure: lines in, events out; nothing in a line may raise.

Written from cursor.com/docs/cli/reference/output-format; no program could be tried. With partial output the words of
a message come in pieces and then once more as a whole. Newer versions mark pieces by ``timestamp_ms`` without
``model_call_id``; older ones mark nothing, and what repeats all pieces so far is the whole.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dragoman.sdk import FailureInfo, Output, Terminal
from dragoman.sdk.fields import Fields, compact, count, inner, objects, text
from dragoman.sdk.parsing import FileTool, JsonLinesParser, ToolCalls, run_usage, token_counts
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
_FILES: Final = {"write": FileTool(content="fileText"), "edit": FileTool(), "delete": FileTool(deletes=True)}
_TITLE_KEYS: Final = ("path", "command", "pattern", "url")
_SUFFIX: Final = "ToolCall"


class CursorParser(JsonLinesParser):
    """Understands the output of one attempt.

    Args:
        roots: the workspace, its working directory first.
    """

    def __init__(self, roots: Sequence[str] = ()) -> None:
        super().__init__(
            {
                "system": self._system,
                "assistant": self._assistant,
                "thinking": self._thinking,
                "tool_call": self._tool_call,
                "result": self._result,
            },
            silent=("user",),
        )
        self._calls = ToolCalls(_KINDS, _FILES, roots)
        self._begun: set[str] = set()

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        self.report.summary = self.report.summary or self.texts.last_text
        return super().finish()

    def _system(self, frame: Fields) -> Iterable[Output]:
        self.report.session_id = text(frame, "session_id") or self.report.session_id
        self.report.model = text(frame, "model") or self.report.model
        session = pb.Session(native_id=self.report.session_id, model=self.report.model)
        session.mode = text(frame, "permissionMode")
        return [pb.AgentEvent(session=session)]

    def _assistant(self, frame: Fields) -> Iterable[Output]:
        words = "".join(text(block, "text") for block in objects(inner(frame, "message"), "content"))
        is_piece = "timestamp_ms" in frame and not text(frame, "model_call_id")
        is_repeated = bool(words) and not is_piece and words == self.texts.current_text
        return self.texts.pause() if is_repeated else self.texts.piece(words)

    def _thinking(self, frame: Fields) -> Iterator[Output]:
        yield from self.texts.piece(text(frame, "text"), "thinking")
        if text(frame, "subtype") == "completed":
            yield from self.texts.pause()

    def _tool_call(self, frame: Fields) -> Iterator[Output]:
        call_id, (name, call) = text(frame, "call_id"), _tool(inner(frame, "tool_call"))
        if not call_id:
            return
        yield from self.texts.pause()
        arguments = inner(call, "args")
        if call_id not in self._begun:
            self._begun.add(call_id)
            about = next((text(arguments, key) for key in _TITLE_KEYS if key in arguments), "")
            title = f"{name} {about}".strip().split("\n", 1)[0][:120]
            input_json = compact(arguments) if arguments else text(call, "arguments")
            yield from self._calls.running(call_id, name, arguments, title=title, input_json=input_json)
        if text(frame, "subtype") == "completed":
            yield from self._calls.ended(_tool_result(call_id, inner(call, "result")))

    def _result(self, frame: Fields) -> Iterator[Output]:
        if self.report.terminal is not None:
            return
        yield from self.texts.pause()
        report, answer = self.report, text(frame, "result")
        report.session_id = report.session_id or text(frame, "session_id")
        report.summary = self.texts.last_text or answer
        report.raw_json = compact(frame)
        tokens = token_counts(inner(frame, "usage"), _TOKENS)  # none: older versions do not count
        report.usage = run_usage(tokens, report.model) if tokens is not None else None
        subtype = text(frame, "subtype")
        if frame.get("is_error") is True or subtype != "success":
            failure = FailureInfo(pb.FAILURE_KIND_NO_RESULT, answer or "Cursor failed and does not say why.")
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
    details = inner(result, how)
    exit_code = count(details, "exitCode")
    status = _ENDS.get(how, pb.TOOL_STATUS_FAILED)
    if status == pb.TOOL_STATUS_COMPLETED and exit_code:
        status = pb.TOOL_STATUS_FAILED
    streams = "".join(filter(None, (text(details, "stdout"), text(details, "stderr"))))
    content = (
        text(details, "content") or streams.removesuffix("\n") or text(details, "error") or text(details, "reason")
    )
    tool_result = pb.ToolResult(tool_call_id=call_id, status=status, content=content, is_error=how != "success")
    tool_result.output_json = compact(result) if result else ""
    if exit_code is not None and exit_code < 2**31:
        tool_result.exit_code = exit_code
    return tool_result
