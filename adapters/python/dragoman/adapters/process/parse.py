"""What a command prints. Pure.

Plain text: each line is a ``log`` event. JSON lines (``config.output`` = ``jsonl``): objects whose ``type`` is one of
the seeds' transcript kinds; anything else is a ``log`` event too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from dragoman.sdk import (
    FailureInfo,
    JsonValue,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    as_int,
    as_number,
    as_string,
    compact,
    log_event,
    outputs_of,
    parse_json_object,
)
from dragoman.v1 import event_pb2 as pb

Fields = Mapping[str, JsonValue]

_SUMMARY_LINES = 5
_SUMMARY_CHARACTERS = 400  # of one line
_LONGEST_ANSWER = 256 * 1024  # characters of an answer that make the summary
_MOST_TOKENS = 2**63


class TextParser:
    """Lines are lines. The last ones are the summary."""

    def __init__(self) -> None:
        self.report = Report(has_output=True)
        self._last: list[str] = []

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        event = log_event(stream, line)
        if stream == "stdout" and event.log.text.strip():
            self._last = [*self._last[1 - _SUMMARY_LINES :], _shortened(event.log.text, _SUMMARY_CHARACTERS)]
        return [event]

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        self.report.summary = "\n".join(self._last)
        return []


class JsonLinesParser:
    """One JSON object a line."""

    def __init__(self) -> None:
        self.report = Report()
        self._items = 0
        self._text_item = ""
        """The answer that is being told in pieces."""
        self._answer: list[str] = []
        self._answer_left = 0
        self._handlers: dict[str, Callable[[Fields], Iterable[Output]]] = {
            "init": self._init,
            "assistant": self._assistant,
            "thinking": self._thinking,
            "user": self._message(pb.MESSAGE_ROLE_USER),
            "system": self._message(pb.MESSAGE_ROLE_SYSTEM),
            "tool_call": self._tool_call,
            "tool_result": self._tool_result,
            "result": self._result,
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        fields = (parse_json_object(line.data) if stream == "stdout" else None) or {}
        handler = self._handlers.get(as_string(fields.get("type"), ""))
        return outputs_of(self.report, stream, line, partial(self._take, handler, fields) if handler else None)

    def _take(self, handler: Callable[[Fields], Iterable[Output]], fields: Fields) -> Iterator[Output]:
        if self._text_item and not (fields.get("type") == "assistant" and fields.get("delta") is True):
            # Said so that what is held back of it comes now, and not after what follows.
            yield pb.AgentEvent(text=pb.Text(item_id=self._text_item))
            self._text_item = ""
        yield from handler(fields)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        self.report.summary = self.report.summary or self._told()
        return []

    def _init(self, fields: Fields) -> Iterable[Output]:
        self.report.model = as_string(fields.get("model"), "")
        session = pb.Session(native_id=as_string(fields.get("sessionId"), ""), model=self.report.model)
        return [pb.AgentEvent(session=session)]

    def _assistant(self, fields: Fields) -> Iterable[Output]:
        text = as_string(fields.get("text"), "")
        is_piece = fields.get("delta") is True
        if not self._text_item:
            self._items += 1
            self._answer, self._answer_left = [], _LONGEST_ANSWER
        if self._answer_left >= 0:
            self._answer.append(text)
            self._answer_left -= len(text)
        item_id = f"text-{self._items}"
        if not is_piece:
            return [pb.AgentEvent(text=pb.Text(item_id=item_id, whole=text))]
        self._text_item = item_id
        return [pb.AgentEvent(text=pb.Text(item_id=item_id, delta=text))]

    def _told(self) -> str:
        return _shortened("".join(self._answer), _LONGEST_ANSWER)

    def _thinking(self, fields: Fields) -> Iterable[Output]:
        self._items += 1
        thinking = pb.Thinking(item_id=f"thinking-{self._items}", whole=as_string(fields.get("text"), ""))
        return [pb.AgentEvent(thinking=thinking)]

    def _message(self, role: pb.MessageRole.ValueType) -> Callable[[Fields], Iterable[Output]]:
        def handle(fields: Fields) -> Iterable[Output]:
            return [pb.AgentEvent(message=pb.Message(role=role, text=as_string(fields.get("text"), "")))]

        return handle

    def _tool_call(self, fields: Fields) -> Iterable[Output]:
        call = pb.ToolCall(
            id=as_string(fields.get("id"), ""),
            name=as_string(fields.get("name"), ""),
            kind=pb.TOOL_KIND_OTHER,
            input_json=compact(fields.get("input", {})),
            status=pb.TOOL_STATUS_RUNNING,
        )
        return [pb.AgentEvent(tool_call=call)]

    def _tool_result(self, fields: Fields) -> Iterable[Output]:
        content = fields.get("content", "")
        result = pb.ToolResult(
            tool_call_id=as_string(fields.get("toolUseId"), ""),
            content=content if isinstance(content, str) else compact(content),
            status=pb.TOOL_STATUS_FAILED if fields.get("isError") is True else pb.TOOL_STATUS_COMPLETED,
        )
        if isinstance(fields.get("isError"), bool):
            result.is_error = fields["isError"] is True
        return [pb.AgentEvent(tool_result=result)]

    def _result(self, fields: Fields) -> Iterable[Output]:
        report = self.report
        report.summary = as_string(fields.get("text"), "") or self._told()
        report.raw_json = compact(dict(fields))
        report.usage = _usage(fields)
        is_error = fields.get("isError") is True
        failure = None
        if is_error:
            message = report.summary or "The command reports an error in its result."
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="reported", errors=_texts(fields))
        report.terminal = Terminal(not is_error, as_string(fields.get("subtype"), ""), failure)
        return []


def _usage(fields: Fields) -> pb.Usage | None:
    usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    for key, name in (("inputTokens", "input"), ("outputTokens", "output"), ("cachedTokens", "cache_read")):
        count = as_int(fields.get(key), -1)
        if 0 <= count < _MOST_TOKENS:
            setattr(usage.tokens, name, count)
    cost = as_number(fields.get("costUsd"), -1.0)
    if cost >= 0:
        usage.cost.CopyFrom(pb.Cost(amount=f"{cost:.12g}", currency="USD", basis=pb.COST_BASIS_REPORTED))
    return usage if usage.HasField("tokens") or usage.HasField("cost") else None


def _shortened(text: str, most: int) -> str:
    """Shorten a text between words: half a secret would be recognised by nobody."""
    if len(text) <= most:
        return text
    kept, _, _ = text[: most + 1].rpartition(" ")
    return f"{kept} ...".lstrip()


def _texts(fields: Fields) -> tuple[str, ...]:
    errors = fields.get("errors")
    return tuple(item for item in errors if isinstance(item, str)) if isinstance(errors, list) else ()
