"""What pi says, line by line. Pure."""

import re
from collections.abc import Iterable
from decimal import Decimal
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
    log_event,
    outputs_of,
    parse_json_object,
)
from dragoman.sdk.fields import Fields, count, inner, number, objects, text
from dragoman.v1 import event_pb2 as pb

KINDS: Final = {
    "read": pb.TOOL_KIND_READ,
    "grep": pb.TOOL_KIND_SEARCH,
    "find": pb.TOOL_KIND_SEARCH,
    "ls": pb.TOOL_KIND_SEARCH,
    "edit": pb.TOOL_KIND_EDIT,
    "write": pb.TOOL_KIND_EDIT,
    "bash": pb.TOOL_KIND_EXECUTE,
}
"""pi's own tools."""
_EXIT: Final = re.compile(r"Command exited with code (\d{1,3})\s*\Z")
_TOKENS: Final = {"input": "input", "output": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}
_SILENT: Final = {"turn_start", "turn_end", "auto_retry_end", "tool_execution_update"}


class PiParser:
    """Understands one attempt. Frames of a message hold all of it so far; only what is new is told."""

    def __init__(self) -> None:
        self.report = Report()
        self._message = 0
        self._told: dict[str, int] = {}
        """Characters already told, by item."""
        self._failure: FailureInfo | None = None
        self._cost = Decimal(0)
        self._texts: list[str] = []
        """Items of the last message's answer."""
        self._retries = False

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = parse_json_object(line.data) if stream == "stdout" else None
        kind = text(frame or {}, "type")
        if frame is None or (kind not in _SILENT and not hasattr(self, f"_on_{kind}")):
            return [log_event(stream, line)]
        read = partial(getattr(self, f"_on_{kind}"), frame) if kind not in _SILENT else tuple
        return outputs_of(self.report, stream, line, read)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output: only now it is sure that pi does not try again."""
        if self.report.terminal is None and self._failure is not None:
            self.report.terminal = Terminal(succeeded=False, subtype="error", failure=self._failure)
        return []

    def _on_session(self, frame: Fields) -> Iterable[Output]:
        self.report.session_id = text(frame, "id")
        return [pb.AgentEvent(session=pb.Session(native_id=self.report.session_id))]

    def _on_message_start(self, frame: Fields) -> Iterable[Output]:
        self._message += text(inner(frame, "message"), "role") == "assistant"
        return []

    def _on_message_update(self, frame: Fields) -> Iterable[Output]:
        event = inner(frame, "assistantMessageEvent")
        return [] if text(event, "type").startswith("toolcall_delta") else self._news(inner(event, "partial"))

    def _news(self, message: Fields) -> Iterable[Output]:
        """Yield what of a message is not told yet."""
        for index, part in enumerate(objects(message, "content")):
            kind = text(part, "type")
            item = text(part, "id") if kind == "toolCall" else f"{self._message}-{index}"
            told, whole = self._told.get(item, 0), text(part, kind)
            self._told[item] = max(told, len(whole))
            if kind == "toolCall" and item and not told:
                self._told[item] = 1
                yield self._call(item, text(part, "name"), pb.TOOL_STATUS_PENDING)
            elif kind == "text" and len(whole) > told:
                yield pb.AgentEvent(text=pb.Text(item_id=item, delta=whole[told:]))
            elif kind == "thinking" and len(whole) > told:
                yield pb.AgentEvent(thinking=pb.Thinking(item_id=item, delta=whole[told:]))

    def _on_message_end(self, frame: Fields) -> Iterable[Output]:
        message, report = inner(frame, "message"), self.report
        if text(message, "role") != "assistant":
            return
        yield from self._news(message)
        parts = objects(message, "content")
        self._texts = [f"{self._message}-{index}" for index, part in enumerate(parts) if text(part, "type") == "text"]
        # What is held back of an item comes before what follows.
        yield from (pb.AgentEvent(text=pb.Text(item_id=item)) for item in self._texts)
        report.summary = "".join(text(part, "text") for part in parts)
        report.model, report.provider = text(message, "model"), text(message, "provider")
        reason, said = text(message, "stopReason"), text(message, "errorMessage")
        is_wrong = reason in {"error", "aborted", "length"}
        kind = pb.FAILURE_KIND_CONTEXT_OVERFLOW if reason == "length" else pb.FAILURE_KIND_PROCESS_CRASHED
        words = said or f"pi stopped: {reason}."
        self._failure = FailureInfo(kind, words, f"pi_{reason}", (words,)) if is_wrong else None
        usage = self._usage(inner(message, "usage"), report.model)
        if usage is not None:
            yield pb.AgentEvent(usage=usage)

    def _usage(self, given: Fields, model: str) -> pb.Usage | None:
        if not count(given, "totalTokens"):  # as in a message that failed: not counted, rather than zero
            return None
        call = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA)
        total = self.report.usage or pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        for theirs, ours in _TOKENS.items():
            if (tokens := count(given, theirs)) is not None:
                setattr(call.tokens, ours, tokens)
                setattr(total.tokens, ours, getattr(total.tokens, ours) + tokens)
        if cost := number(inner(given, "cost"), "total"):  # zero: pi knows no price
            self._cost += Decimal(repr(cost))
            amount = f"{round(self._cost, 10):f}"
            total.cost.CopyFrom(pb.Cost(amount=amount, currency="USD", basis=pb.COST_BASIS_COMPUTED))
        call.models.add(model=model).tokens.CopyFrom(call.tokens)
        self.report.usage = total
        return call

    def _call(self, item: str, name: str, status: pb.ToolStatus.ValueType, inputs: str = "") -> pb.AgentEvent:
        kind = KINDS.get(name, pb.TOOL_KIND_OTHER)
        return pb.AgentEvent(tool_call=pb.ToolCall(id=item, name=name, kind=kind, status=status, input_json=inputs))

    def _on_tool_execution_start(self, frame: Fields) -> Iterable[Output]:
        inputs = compact(frame.get("args"))
        return [self._call(text(frame, "toolCallId"), text(frame, "toolName"), pb.TOOL_STATUS_RUNNING, inputs)]

    def _on_tool_execution_end(self, frame: Fields) -> Iterable[Output]:
        content = "\n".join(text(part, "text") for part in objects(inner(frame, "result"), "content"))
        is_error = frame.get("isError") is True
        status = pb.TOOL_STATUS_FAILED if is_error else pb.TOOL_STATUS_COMPLETED
        made = pb.ToolResult(tool_call_id=text(frame, "toolCallId"), status=status, content=content)
        made.is_error = is_error
        if text(frame, "toolName") == "bash" and (code := _EXIT.search(content)):
            made.exit_code = int(code[1])
        return [pb.AgentEvent(tool_result=made)]

    def _on_auto_retry_start(self, frame: Fields) -> Iterable[Output]:
        self._failure, self._retries = None, True
        # The message is begun anew: what was said of it does not stand.
        yield from (pb.AgentEvent(text=pb.Text(item_id=item, whole="")) for item in self._texts)
        state = pb.State(phase=pb.RUN_PHASE_RETRYING, reason=text(frame, "errorMessage"))
        state.retry_attempt, state.max_retries = count(frame, "attempt") or 1, count(frame, "maxAttempts") or 0
        state.retry_delay.FromMilliseconds(min(count(frame, "delayMs") or 0, 10**9))
        yield pb.AgentEvent(state=state)

    def _on_agent_start(self, frame: Fields) -> Iterable[Output]:
        del frame
        again, self._retries = self._retries, False
        return [pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))] if again else []

    def _on_agent_end(self, frame: Fields) -> Iterable[Output]:
        del frame
        if self._failure is None and self._message:
            self.report.terminal = Terminal(succeeded=True)
        return []
