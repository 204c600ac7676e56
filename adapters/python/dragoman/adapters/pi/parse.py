"""pi's JSON mode, and the frames that its RPC mode has in common with that. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dragoman.sdk import FailureInfo, Output, Terminal, parsing
from dragoman.sdk.failures import ANSWER_CUT
from dragoman.sdk.fields import Fields, count, inner, number, objects, text
from dragoman.sdk.parsing import Handler, JsonLinesParser, ToolCalls, Update, UsageTotals
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

_SPEC: Final = agent_spec(__package__)
_EXIT: Final = re.compile(r"Command exited with code (\d{1,3})\s*\Z")
_TOKENS: Final = {"input": "input", "output": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}
_SILENT: Final = (
    *("turn_start", "turn_end", "auto_retry_end", "tool_execution_update"),
    *("agent_settled", "entry_appended"),  # since it is @earendil-works/pi-coding-agent
    *("queue_update", "session_info_changed", "thinking_level_changed"),
)
_UNCOUNTED: Final = (
    "The model's service counted no tokens for an answer that pi takes for whole. If it counts others, the answer was"
    " cut off; pi 0.73.1 does not distinguish such an answer from a whole one, later versions do."
)


class PiParser(JsonLinesParser):
    """Understands one attempt. In most versions a frame of a message holds all of it so far."""

    def __init__(self, roots: Sequence[str] = (), further: Mapping[str, Handler] = MappingProxyType({})) -> None:
        super().__init__(
            {
                "session": lambda frame: [self.session_event(text(frame, "id"))],
                "message_start": self._message_start,
                "message_update": self._message_update,
                "message_end": self._message_end,
                "tool_execution_start": self._tool_start,
                "tool_execution_end": self._tool_end,
                "auto_retry_start": self._retry_start,
                "agent_end": self._agent_end,
                "agent_start": lambda _: self.retries.end(),
                "compaction_start": compaction,
                "compaction_end": compaction,
                **further,
            },
            silent=_SILENT,
            once=True,
        )
        self.usage = UsageTotals(pb.COST_BASIS_COMPUTED)
        self._calls = ToolCalls(_SPEC.tools, _SPEC.file_tools, roots)
        self._message = 0
        self._answer: list[str] = []
        """Items of the last message's text."""

    def update(self, update: Update) -> Iterable[Output] | None:
        """Reject a change: in JSON mode pi takes a model only when it starts."""
        return [parsing.NotUpdated(update.update_id, "in JSON mode pi takes a model only when it starts")]

    def _message_start(self, frame: Fields) -> Iterable[Output]:
        self._message += text(inner(frame, "message"), "role") == "assistant"
        return ()

    def _message_update(self, frame: Fields) -> Iterable[Output]:
        event = inner(frame, "assistantMessageEvent")
        kind = text(event, "type")
        if "partial" in event:
            return () if kind.startswith("toolcall_delta") else self._new_parts(inner(event, "partial"))
        if kind not in {"text_delta", "thinking_delta"}:
            return ()
        item = f"{self._message}-{count(event, 'contentIndex') or 0}"
        return self.texts.delta(item, text(event, "delta"), kind.removesuffix("_delta"))

    def _new_parts(self, message: Fields) -> Iterator[Output]:
        """Yield the parts of a message that are new since its last frame."""
        for index, part in enumerate(objects(message, "content")):
            kind = text(part, "type")
            if kind == "toolCall":
                yield from self._calls.pending(text(part, "id"), text(part, "name"))
            elif kind in {"text", "thinking"}:
                yield from self.texts.so_far(f"{self._message}-{index}", text(part, kind), kind)

    def _message_end(self, frame: Fields) -> Iterator[Output]:
        message, report = inner(frame, "message"), self.report
        if text(message, "role") != "assistant":
            return
        yield from self._new_parts(message)
        yield from self.texts.end_all()
        parts = objects(message, "content")
        for part in parts:
            self._calls.note(text(part, "id"), text(part, "name"), inner(part, "arguments"))
        self._answer = [
            f"{self._message}-{index}" for index, part in enumerate(parts) if text(part, "type") == "text"
        ]
        report.summary = "".join(text(part, "text") for part in parts)
        report.model, report.provider = text(message, "model"), text(message, "provider")
        reason = text(message, "stopReason")
        kind = pb.FAILURE_KIND_OUTPUT_LIMIT if reason == "length" else pb.FAILURE_KIND_PROCESS_CRASHED
        words = text(message, "errorMessage") or (ANSWER_CUT if reason == "length" else f"pi stopped: {reason}.")
        is_wrong = reason in {"error", "aborted", "length"}
        self.failure = FailureInfo(kind, words, f"pi_{reason}", (words,)) if is_wrong else None
        used = inner(message, "usage")
        if count(used, "totalTokens"):  # else it is not counted, as in a message that failed, rather than zero
            cost = number(inner(used, "cost"), "total")  # zero: pi knows no price
            yield self.call_event(parsing.token_counts(used, _TOKENS), cost, report.model)
        elif reason == "stop":
            yield parsing.notice_event("answer_may_be_cut", _UNCOUNTED)

    def _tool_start(self, frame: Fields) -> Iterable[Output]:
        return self._calls.running(text(frame, "toolCallId"), text(frame, "toolName"), inner(frame, "args"))

    def _tool_end(self, frame: Fields) -> Iterable[Output]:
        content = "\n".join(text(part, "text") for part in objects(inner(frame, "result"), "content"))
        code = _EXIT.search(content) if text(frame, "toolName") == "bash" else None
        is_error, exit_code = frame.get("isError") is True, int(code[1]) if code else None
        return self._calls.result(text(frame, "toolCallId"), content, is_error=is_error, exit_code=exit_code)

    def _retry_start(self, frame: Fields) -> Iterator[Output]:
        self.failure = None
        yield from self.texts.retract(*self._answer)  # the message is begun anew
        attempt, most, delay_ms = (count(frame, key) or 0 for key in ("attempt", "maxAttempts", "delayMs"))
        yield from self.retries.begin(text(frame, "errorMessage"), attempt=attempt or 1, most=most, delay_ms=delay_ms)

    def _agent_end(self, _: Fields) -> Iterable[Output]:
        if self.failure is None and self._message:
            self.report.terminal = Terminal(succeeded=True)
        return ()


def compaction(frame: Fields) -> Iterator[Output]:
    """Handle ``compaction_start`` or ``compaction_end``."""
    result, error, trigger = inner(frame, "result"), text(frame, "errorMessage"), text(frame, "reason")
    if text(frame, "type") == "compaction_start":
        yield parsing.compaction_event(trigger)
        return
    before = count(result, "tokensBefore")
    yield parsing.compaction_event(trigger, text(result, "summary"), finished=True, tokens_before=before)
    if error or not result:
        why = error or ("it was stopped" if frame.get("aborted") is True else "no reason was given")
        yield parsing.notice_event("compaction_failed", f"pi could not compact the conversation: {why}.")
