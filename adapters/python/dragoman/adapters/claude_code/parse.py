"""Claude Code's stream-json output, understood. Pure: lines in, events out; nothing in a line may raise.

A line is a JSON object whose ``type`` says what it is. What is not understood becomes a ``log`` event: never lost,
never fatal.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.classify import Wrong, failure_of_result, read_error
from dragoman.adapters.claude_code.fields import Fields, count, inner, moment, objects, text
from dragoman.adapters.claude_code.stream import CALLS, MessageStream
from dragoman.adapters.claude_code.system import SystemFrames
from dragoman.adapters.claude_code.todo import TodoList
from dragoman.adapters.claude_code.tools import (
    exit_code,
    file_change,
    result_status,
    result_text,
    tool_call,
)
from dragoman.adapters.claude_code.usage import PROVIDER, RunTotals, context_used, rate_limits, session_usage
from dragoman.sdk import (
    Answer,
    Ask,
    CloseInput,
    FailureInfo,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    Withdraw,
    Write,
    as_string,
    compact,
    log_event,
    outputs_of,
    parse_json_object,
)
from dragoman.v1 import event_pb2 as pb

_NO_KEY: Final = frozenset({"", "none", "oauth"})
"""What ``apiKeySource`` says where no API key pays."""
_SILENT: Final = frozenset({"control_response", "keep_alive", "tool_progress", "command_lifecycle"})
_INTERRUPTION: Final = "[Request interrupted by user"


class ClaudeParser:
    """Understands the output of one attempt.

    Args:
        resumes: whether the attempt goes on with a session, which may then turn out to be gone.
        names_frames: whether events are to say which frame they come from, as frames are passed on.
    """

    def __init__(self, *, resumes: bool = False, names_frames: bool = False) -> None:
        self.report = Report()
        self._resumes = resumes
        self._names_frames = names_frames
        self._stream = MessageStream()
        self._system = SystemFrames()
        self._totals = RunTotals()
        self._todo = TodoList()
        self._wrong = Wrong()
        self._calls: dict[str, tuple[str, Fields]] = {}
        self._limits: list[pb.RateLimit] = []
        self._uses_overage = False
        self._held: Terminal | None = None
        self._handlers: dict[str, Callable[[Fields], Iterable[Output]]] = {
            "stream_event": self._stream_event,
            "assistant": self._assistant,
            "user": self._user,
            "rate_limit_event": self._rate_limit,
            "control_request": self._control_request,
            "control_cancel_request": self._control_cancel,
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        frame = parse_json_object(line.data) if stream == "stdout" else None
        if frame is None:
            return [log_event(stream, line)]
        native = _name(frame) if self._names_frames else ""
        return outputs_of(self.report, stream, line, partial(self._frame, frame, line), native)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        if self.report.terminal is None:
            self.report.terminal = self._held
        return []

    def _frame(self, frame: Fields, line: Line) -> list[Output] | None:
        kind = text(frame, "type")
        handler = self._handlers.get(kind)
        if handler is not None:
            return list(handler(frame))
        if kind == "system":
            events = self._system.take(frame)
            if events is None:
                return None
            told: list[Output] = list(events)
            self._note_session()
            return self._placed(frame, told)
        if kind == "result":
            return list(self._result(frame, line.data.decode("utf-8", "replace")))
        return [] if kind in _SILENT else None

    def _note_session(self) -> None:
        session = self._system.session
        self.report.session_id = session.native_id or self.report.session_id
        self.report.model = session.model or self.report.model

    def _placed(self, frame: Fields, outputs: list[Output]) -> list[Output]:
        """Put events where they happened, if that was in a nested agent."""
        lineage = self._system.lineage(frame)
        if lineage is not None:
            for output in outputs:
                if isinstance(output, pb.AgentEvent):
                    output.lineage.CopyFrom(lineage)
        return outputs

    # What the model says and does.

    def _stream_event(self, frame: Fields) -> Iterable[Output]:
        events: list[Output] = list(self._stream.take(frame))
        if self._system.is_retrying:
            events[:0] = self._system.resume()
        for event in events:
            if isinstance(event, pb.AgentEvent) and event.WhichOneof("body") == "usage":
                self._add_context(frame, event.usage)
        return self._placed(frame, events)

    def _add_context(self, frame: Fields, usage: pb.Usage) -> None:
        used = context_used(usage.tokens)
        if used is not None:
            usage.context_used = used
        if self._totals.context_size is not None and not text(frame, "parent_tool_use_id"):
            usage.context_size = self._totals.context_size

    def _assistant(self, frame: Fields) -> Iterable[Output]:
        if text(frame, "error") or frame.get("is_api_error_message") is True:
            return self._api_error(frame)
        self._wrong = Wrong(resets_at=self._wrong.resets_at)
        outputs: list[Output] = list(self._system.resume())
        is_main = not text(frame, "parent_tool_use_id")
        for block in self._stream.whole(frame):
            outputs += block.events
            kind = text(block.content, "type")
            if kind in CALLS:
                outputs += self._call(block.content)
            elif kind.endswith("_tool_result"):
                outputs += self._call_result(block.content, {}, {})
            elif kind == "text" and is_main:
                self.report.summary = text(block.content, "text") or self.report.summary
        return self._placed(frame, outputs)

    def _api_error(self, frame: Fields) -> Iterable[Output]:
        self._wrong = read_error(frame, self._wrong)
        words = "\n".join(text(item, "text") for item in objects(inner(frame, "message"), "content")).strip()
        notice = pb.Notice(
            severity=pb.SEVERITY_ERROR,
            code=f"claude_{self._wrong.api_error or self._wrong.error or 'api_error'}",
            message=words or "The model's service reports an error.",
        )
        return self._placed(frame, [pb.AgentEvent(notice=notice)])

    def _call(self, block: Fields) -> Iterator[Output]:
        call_id, name, tool_input = text(block, "id"), text(block, "name"), inner(block, "input")
        if call_id:
            self._calls[call_id] = (name, tool_input)
            call = tool_call(call_id, name, tool_input, self._system.cwd, pb.TOOL_STATUS_RUNNING)
            yield pb.AgentEvent(tool_call=call)

    def _user(self, frame: Fields) -> Iterable[Output]:
        body = inner(frame, "message")
        content = body.get("content")
        if isinstance(content, str):
            return self._placed(frame, [_message(content, frame)])
        blocks = objects(body, "content")
        results = [block for block in blocks if text(block, "type").endswith("tool_result")]
        metas = {text(meta, "id"): meta for meta in objects(frame, "tool_result_meta")}
        # There is one structured result a frame; with several blocks nobody can tell whose it is.
        structured = inner(frame, "tool_use_result") if len(results) == 1 else {}
        outputs: list[Output] = []
        for block in blocks:
            if block in results:
                outputs += self._call_result(block, structured, metas.get(text(block, "tool_use_id"), {}))
            elif text(block, "text"):
                outputs.append(_message(text(block, "text"), frame))
        return self._placed(frame, outputs)

    def _call_result(self, block: Fields, structured: Fields, meta: Fields) -> Iterator[Output]:
        call_id = text(block, "tool_use_id")
        name, tool_input = self._calls.pop(call_id, ("", {}))
        content = result_text(block)
        status = result_status(block, content, meta, was_denied=call_id in self._system.denied)
        is_error = block.get("is_error")
        result = pb.ToolResult(
            tool_call_id=call_id,
            status=status,
            content=content,
            is_error=is_error if isinstance(is_error, bool) else None,
            exit_code=exit_code(name, content),
            output_json=compact(structured) if structured else "",
        )
        yield pb.AgentEvent(tool_result=result)
        if status != pb.TOOL_STATUS_COMPLETED:
            return
        change = file_change(name, call_id, tool_input, structured, content)
        if change is not None:
            yield pb.AgentEvent(file_change=change)
        plan = self._todo.after(name, tool_input, structured)
        if plan is not None:
            yield pb.AgentEvent(plan=plan)

    def _rate_limit(self, frame: Fields) -> Iterable[Output]:
        info = inner(frame, "rate_limit_info")
        self._limits = rate_limits(info)
        self._uses_overage = info.get("isUsingOverage") is True
        if text(info, "status") == "rejected":
            self._wrong = Wrong(resets_at=moment(info, "resetsAt"))
        # A call without tokens adds nothing to what is counted.
        usage = pb.Usage(scope=pb.USAGE_SCOPE_CALL, semantics=pb.USAGE_SEMANTICS_DELTA, rate_limits=self._limits)
        yield pb.AgentEvent(usage=usage)

    # Questions.

    def _control_request(self, frame: Fields) -> Iterable[Output]:
        request_id, request = text(frame, "request_id"), inner(frame, "request")
        if text(request, "subtype") != "can_use_tool" or not request_id:
            return [Write(control.refusal(request_id, text(request, "subtype")))]
        ask: Ask | None = None
        if text(request, "tool_name") == "AskUserQuestion":
            ask = control.question(request_id, request, self._heard_question(request))
        if ask is None:
            ask = control.permission(request_id, request, self._system.cwd, self._heard(request))
        lineage = self._system.lineage(request)
        return [ask if lineage is None else Ask(ask.request, ask.encode, lineage)]

    def _heard(self, request: Fields) -> control.Told:
        def told(answer: Answer) -> None:
            call_id = text(request, "tool_use_id")
            changed = parse_json_object(answer.updated_input_json.encode()) if answer.updated_input_json else None
            if answer.allowed and changed is not None and call_id in self._calls:
                self._calls[call_id] = (self._calls[call_id][0], changed)

        return told

    def _heard_question(self, request: Fields) -> control.Told:
        def told(answer: Answer) -> None:
            asked = objects(inner(request, "input"), "questions")
            if not answer.allowed and asked:
                choices = [text(option, "label") for option in objects(asked[0], "options")]
                self.report.question = pb.Question(prompt=text(asked[0], "question"), choices=choices)
            else:
                self.report.question = None

        return told

    def _control_cancel(self, frame: Fields) -> Iterable[Output]:
        return [Withdraw(text(frame, "request_id"))]

    # The end.

    def _result(self, frame: Fields, raw: str) -> Iterator[Output]:
        if self.report.terminal is not None:
            return  # it has ended already
        report = self.report
        self._totals.add(frame, report.model)
        report.session_id = report.session_id or text(frame, "session_id")
        if frame.get("is_error") is not True:  # else it repeats the error; the last words are the agent's own
            report.summary = as_string(frame.get("result"), report.summary)
        report.turns = _sum(report.turns, count(frame, "num_turns"))
        report.raw_json = raw
        if "structured_output" in frame:
            report.structured_output_json = compact(frame["structured_output"])
        report.usage = self._run_usage()
        report.provider = PROVIDER if report.usage is not None and report.usage.models else ""
        session = session_usage(frame)
        if session is not None:
            yield pb.AgentEvent(usage=session)
        self._held = self._terminal(frame)
        if self._system.has_news and self._held.succeeded:
            yield CloseInput()  # it has one more turn, and ends; should it have none, it ends all the same
        elif not self._system.background:
            report.terminal = self._held

    def _run_usage(self) -> pb.Usage | None:
        usage = self._totals.usage(self._billing())
        if usage is None:
            return None
        context = self._stream.context
        used = context_used(context) if context is not None else None
        if used is not None:
            usage.context_used = used
        usage.rate_limits.extend(self._limits)
        return usage

    def _billing(self) -> pb.BillingType.ValueType:
        if self._system.api_key_source not in _NO_KEY:
            return pb.BILLING_TYPE_API
        if not self._limits:
            return pb.BILLING_TYPE_UNSPECIFIED  # limits are told of subscriptions only
        return pb.BILLING_TYPE_SUBSCRIPTION_OVERAGE if self._uses_overage else pb.BILLING_TYPE_SUBSCRIPTION

    def _terminal(self, frame: Fields) -> Terminal:
        subtype = text(frame, "subtype")
        if text(frame, "terminal_reason").startswith("aborted_"):
            message = "Claude Code was interrupted, and not by this run."
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="claude_interrupted")
            return Terminal(succeeded=False, subtype=subtype, failure=failure, interrupted=True)
        refused = text(frame, "stop_reason") == "refusal"
        if subtype == "success" and frame.get("is_error") is not True and not refused:
            return Terminal(succeeded=True, subtype=subtype)
        failure = failure_of_result(frame, self._wrong, resumed=self._resumes)
        return Terminal(succeeded=False, subtype=subtype, failure=failure)


def _name(frame: Fields) -> str:
    return "/".join(part for part in (text(frame, "type"), text(frame, "subtype")) if part)


def _message(words: str, frame: Fields) -> pb.AgentEvent:
    made_up = frame.get("isSynthetic") is True or frame.get("isReplay") is True or words.startswith(_INTERRUPTION)
    return pb.AgentEvent(message=pb.Message(role=pb.MESSAGE_ROLE_USER, text=words, synthetic=made_up))


def _sum(before: int | None, more: int | None) -> int | None:
    total = (before or 0) + (more or 0)
    return None if before is None and more is None else min(total, 2**32 - 1)
