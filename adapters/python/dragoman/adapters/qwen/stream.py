"""What Qwen Code says in its stream of JSON lines, the way without questions. Pure.

Its last line can be cut at 64 KiB, as it exits before the pipe is drained; so the text is taken from what came
before, and a last line of which only the beginning is there still tells how the run ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from dragoman.sdk import (
    Evidence,
    FailureInfo,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    classify_text,
    compact,
    failure_from_hint,
    log_event,
    outputs_of,
    parse_json_object,
    unknown_session,
)
from dragoman.sdk.fields import Fields, count, inner, objects, text
from dragoman.v1 import event_pb2 as pb

_KINDS: Final = {
    "read_file": pb.TOOL_KIND_READ,
    "glob": pb.TOOL_KIND_SEARCH,
    "grep_search": pb.TOOL_KIND_SEARCH,
    "write_file": pb.TOOL_KIND_EDIT,
    "edit": pb.TOOL_KIND_EDIT,
    "notebook_edit": pb.TOOL_KIND_EDIT,
    "run_shell_command": pb.TOOL_KIND_EXECUTE,
    "web_fetch": pb.TOOL_KIND_FETCH,
    "skill": pb.TOOL_KIND_SKILL,
    "agent": pb.TOOL_KIND_SUBAGENT,
}
_CUT_SUCCESS: Final = b'{"type":"result","subtype":"success"'


class QwenStreamParser:
    """Understands one attempt."""

    def __init__(self) -> None:
        self.report = Report()
        self._items = 0
        self._item = ""
        self._has_retried = False

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = parse_json_object(line.data) if stream == "stdout" else None
        if frame is None:
            if stream == "stdout" and not line.complete and line.data.startswith(_CUT_SUCCESS):
                self.report.terminal = Terminal(succeeded=True, subtype="success")
                return []
            return [log_event(stream, line)]
        return outputs_of(self.report, stream, line, partial(self._read, frame))

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        return []

    def _read(self, frame: Fields) -> Sequence[pb.AgentEvent] | None:
        events = self._frame(frame)
        parent = text(frame, "parent_tool_use_id")
        for event in events or () if parent else ():
            event.lineage.parent_tool_call_id = parent
        return events

    def _frame(self, frame: Fields) -> list[pb.AgentEvent] | None:
        kind, message = text(frame, "type"), inner(frame, "message")
        if kind == "system":
            return self._system(frame)
        if kind == "stream_event":
            return list(self._piece(inner(frame, "event")))
        if kind == "assistant":
            return list(self._assistant(message))
        if kind == "user":
            return [_result(part) for part in objects(message, "content") if text(part, "type") == "tool_result"]
        if kind == "result":
            self._end(frame)
            return []
        return None

    def _system(self, frame: Fields) -> list[pb.AgentEvent] | None:
        if text(frame, "subtype") == "retry":
            self._has_retried = True
            return [pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RETRYING))]
        if text(frame, "subtype") != "init":
            return None
        self.report.session_id, self.report.model = text(frame, "session_id"), text(frame, "model")
        session = pb.Session(
            native_id=self.report.session_id, model=self.report.model, mode=text(frame, "permission_mode")
        )
        tools = frame.get("tools")
        session.tools.extend(item for item in (tools if isinstance(tools, list) else ()) if isinstance(item, str))
        return [pb.AgentEvent(session=session)]

    def _piece(self, event: Fields) -> Iterator[pb.AgentEvent]:
        kind, delta = text(event, "type"), inner(event, "delta")
        block = inner(event, "content_block")
        if self._has_retried and kind.startswith("content_block"):
            self._has_retried = False
            yield pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))
        if kind == "content_block_start":
            self._items += 1
            self._item = f"{text(block, 'type')}-{self._items}"
            if text(block, "type") == "tool_use":
                yield _call(block, pb.TOOL_STATUS_PENDING)
        elif text(delta, "type") == "text_delta":
            yield pb.AgentEvent(text=pb.Text(item_id=self._item, delta=text(delta, "text")))
        elif text(delta, "type") == "thinking_delta":
            yield pb.AgentEvent(thinking=pb.Thinking(item_id=self._item, delta=text(delta, "thinking")))
        elif kind == "content_block_stop" and self._item.startswith("text"):
            yield pb.AgentEvent(text=pb.Text(item_id=self._item))

    def _assistant(self, message: Fields) -> Iterator[pb.AgentEvent]:
        for part in objects(message, "content"):
            if text(part, "type") == "tool_use":
                yield _call(part, pb.TOOL_STATUS_RUNNING)
            elif text(part, "type") == "text":
                self.report.summary = text(part, "text")
        tokens = _tokens(inner(message, "usage"))
        if tokens is not None:
            scope, semantics = pb.USAGE_SCOPE_CALL, pb.USAGE_SEMANTICS_DELTA
            yield pb.AgentEvent(usage=pb.Usage(scope=scope, semantics=semantics, tokens=tokens))

    def _end(self, frame: Fields) -> None:
        report, subtype = self.report, text(frame, "subtype")
        report.session_id = text(frame, "session_id") or report.session_id
        report.turns = count(frame, "num_turns")
        tokens = _tokens(inner(frame, "usage"))  # those of calls that nobody sees among them
        if tokens is not None:
            scope, semantics = pb.USAGE_SCOPE_RUN, pb.USAGE_SEMANTICS_CUMULATIVE
            report.usage = pb.Usage(scope=scope, semantics=semantics, tokens=tokens)
        failure = None
        if frame.get("is_error") is not False:
            failure = failure_of_words(text(inner(frame, "error"), "message") or subtype)
        report.terminal = Terminal(succeeded=failure is None, subtype=subtype, failure=failure)


def failure_of_words(said: str) -> FailureInfo:
    """Return what an error means, in its own words."""
    words = said.removeprefix("[API Error: ").removesuffix("]")
    hint = classify_text(words, datetime.now(UTC))
    if hint is None:
        return FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, words, "qwen_error", (said,))
    found = failure_from_hint(hint, code="qwen_error")
    status = found.http_status
    return FailureInfo(found.kind, found.message, "qwen_error", (said,), found.retry_not_before, http_status=status)


def classify_stream(evidence: Evidence) -> FailureInfo | None:
    """Return what a run means that ended before it had a word: a session that is not there."""
    if evidence.report.terminal is None and evidence.resumed and unknown_session(evidence.stderr_tail):
        message = "Qwen Code knows no such session."
        return FailureInfo(pb.FAILURE_KIND_SESSION_LOST, message, "qwen_session", (evidence.stderr_tail.strip(),))
    return None


def _call(block: Fields, status: pb.ToolStatus.ValueType) -> pb.AgentEvent:
    name, inputs = text(block, "name"), inner(block, "input")
    made = pb.ToolCall(id=text(block, "id"), name=name, kind=_KINDS.get(name, pb.TOOL_KIND_OTHER), status=status)
    made.input_json = compact(inputs) if inputs else ""
    return pb.AgentEvent(tool_call=made)


def _result(part: Fields) -> pb.AgentEvent:
    is_error = part.get("is_error") is True
    status = pb.TOOL_STATUS_FAILED if is_error else pb.TOOL_STATUS_COMPLETED
    made = pb.ToolResult(tool_call_id=text(part, "tool_use_id"), status=status, is_error=is_error)
    made.content = text(part, "content") or "\n".join(text(item, "text") for item in objects(part, "content"))
    return pb.AgentEvent(tool_result=made)


def _tokens(usage: Fields) -> pb.TokenCounts | None:
    given, out, cached = (count(usage, f"{name}_tokens") for name in ("input", "output", "cache_read_input"))
    if not given and not out:  # zero is what it says of what it has not counted
        return None
    tokens = pb.TokenCounts(input=max(0, (given or 0) - (cached or 0)), output=out or 0)
    if cached is not None:
        tokens.cache_read = cached
    return tokens
