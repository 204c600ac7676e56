"""What a command prints. Pure.

Plain text: each line is a ``log`` event. JSON lines (``config.output`` = ``jsonl``): objects of the types below;
anything else is a ``log`` event too.
"""

from collections.abc import Iterable, Iterator

from dragoman.sdk import FailureInfo, Line, Output, Report, Stream, Terminal, log_event
from dragoman.sdk.fields import Fields, as_string_list, compact, number, text
from dragoman.sdk.parsing import Handler, JsonLinesParser, cost_in_dollars, run_usage, token_counts
from dragoman.v1 import event_pb2 as pb

_SUMMARY_LINES = 5
_SUMMARY_CHARACTERS = 400  # of one line
_LONGEST_ANSWER = 256 * 1024  # characters of an answer that make the summary
_TOKENS = {"inputTokens": "input", "outputTokens": "output", "cachedTokens": "cache_read"}


class TextParser:
    """Lines are lines. The last ones are the summary."""

    def __init__(self) -> None:
        self.report = Report(has_output=True)
        self._last: list[str] = []

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
        event = log_event(stream, line)
        if line.data and stream == "stdout" and event.log.text.strip():
            self._last = [*self._last[1 - _SUMMARY_LINES :], _shortened(event.log.text, _SUMMARY_CHARACTERS)]
        return [event]

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        self.report.summary = "\n".join(self._last)
        return []


class ObjectParser(JsonLinesParser):
    """One JSON object a line."""

    def __init__(self) -> None:
        super().__init__(
            {
                "init": self._init,
                "assistant": self._assistant,
                "thinking": lambda frame: self.texts.complete(text(frame, "text"), "thinking"),
                "user": lambda frame: [_message(pb.MESSAGE_ROLE_USER, frame)],
                "system": lambda frame: [_message(pb.MESSAGE_ROLE_SYSTEM, frame)],
                "tool_call": lambda frame: [_tool_call(frame)],
                "tool_result": lambda frame: [_tool_result(frame)],
                "result": self._result,
            },
            other=lambda _: None,  # JSON of any kind is what is due here
        )

    def read(self, handler: Handler, frame: Fields) -> Iterator[Output]:
        """Read an object; what is no piece of an answer ends it."""
        if text(frame, "type") != "assistant" or frame.get("delta") is not True:
            yield from self.texts.pause()
        yield from handler(frame) or ()

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        self.report.summary = self.report.summary or self._answer()
        return super().finish()

    def _answer(self) -> str:
        return _shortened(self.texts.last_text, _LONGEST_ANSWER)

    def _init(self, frame: Fields) -> Iterable[Output]:
        self.report.model = text(frame, "model")
        return [pb.AgentEvent(session=pb.Session(native_id=text(frame, "sessionId"), model=self.report.model))]

    def _assistant(self, frame: Fields) -> Iterable[Output]:
        words = text(frame, "text")
        return self.texts.piece(words) if frame.get("delta") is True else self.texts.complete(words)

    def _result(self, frame: Fields) -> Iterable[Output]:
        report = self.report
        report.summary = text(frame, "text") or self._answer()
        report.raw_json = compact(frame)
        tokens, cost = token_counts(frame, _TOKENS), number(frame, "costUsd")
        if tokens is not None or cost is not None:
            report.usage = run_usage(tokens)
        if report.usage is not None and cost is not None:
            report.usage.cost.CopyFrom(cost_in_dollars(cost))
        failure = None
        if frame.get("isError") is True:
            message = report.summary or "The command reports an error in its result."
            errors = tuple(as_string_list(frame.get("errors")))
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="reported", errors=errors)
        report.terminal = Terminal(failure is None, text(frame, "subtype"), failure)
        return ()


def _message(role: pb.MessageRole.ValueType, frame: Fields) -> pb.AgentEvent:
    return pb.AgentEvent(message=pb.Message(role=role, text=text(frame, "text")))


def _tool_call(frame: Fields) -> pb.AgentEvent:
    call = pb.ToolCall(id=text(frame, "id"), name=text(frame, "name"), kind=pb.TOOL_KIND_OTHER)
    call.input_json, call.status = compact(frame.get("input", {})), pb.TOOL_STATUS_RUNNING
    return pb.AgentEvent(tool_call=call)


def _tool_result(frame: Fields) -> pb.AgentEvent:
    content, is_error = frame.get("content", ""), frame.get("isError")
    result = pb.ToolResult(
        tool_call_id=text(frame, "toolUseId"),
        content=content if isinstance(content, str) else compact(content),
        status=pb.TOOL_STATUS_FAILED if is_error is True else pb.TOOL_STATUS_COMPLETED,
        is_error=is_error if isinstance(is_error, bool) else None,
    )
    return pb.AgentEvent(tool_result=result)


def _shortened(words: str, most: int) -> str:
    """Shorten a text between words: half a secret would not be recognised."""
    if len(words) <= most:
        return words
    kept, _, _ = words[: most + 1].rpartition(" ")
    return f"{kept} ...".lstrip()
