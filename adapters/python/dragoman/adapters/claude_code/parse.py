"""The parser of Claude Code's stream-json output. Pure: lines in, events out; nothing in a line may raise."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.calls import Calls
from dragoman.adapters.claude_code.changes import Changes
from dragoman.adapters.claude_code.classify import Wrong, read_error, terminal_of_result
from dragoman.adapters.claude_code.inputs import Inputs
from dragoman.adapters.claude_code.stream import CALLS, MessageStream
from dragoman.adapters.claude_code.system import TESTED_VERSION, SystemFrames
from dragoman.adapters.claude_code.usage import PROVIDER, RunTotals, session_usage
from dragoman.sdk import Answer, Ask, CloseInput, Line, Output, Report, Stream, Terminal, Withdraw, Write
from dragoman.sdk.detection import version_of
from dragoman.sdk.fields import Fields, as_string, compact, count, inner, objects, text, unix_moment
from dragoman.sdk.parsing import Handler, JsonLinesParser, Steering, Untaken, Update, call_usage, notice_event
from dragoman.v1 import event_pb2 as pb

_SILENT: Final = frozenset({"keep_alive", "tool_progress"})
_INTERRUPTION: Final = "[Request interrupted by user"


class ClaudeParser(JsonLinesParser):
    """Reads the output of one attempt.

    Args:
        resumes: whether the attempt resumes a session, which may be lost.
        names_frames: whether events name the frame that they come from.
        run_id: the run's.
        version: Claude Code's; empty if it is unknown.
    """

    def __init__(
        self, *, resumes: bool = False, names_frames: bool = False, run_id: str = "", version: str = ""
    ) -> None:
        self._changes = Changes()
        super().__init__(
            {
                "system": self._system_frame,
                "stream_event": self._stream_event,
                "assistant": self._assistant,
                "user": self._user,
                "rate_limit_event": self._rate_limit,
                "control_request": self._control_request,
                "control_cancel_request": lambda frame: [Withdraw(text(frame, "request_id"))],
                "control_response": self._changes.answered,
                "result": self._result,
                "command_lifecycle": self._input_changed,
            },
            silent=_SILENT,
            other=lambda _: None,
            names_frames=names_frames,
        )
        self._resumes = resumes
        self._stream = MessageStream()
        self._system = SystemFrames()
        self._totals = RunTotals()
        self._calls = Calls()
        self._wrong = Wrong()
        self._inputs = Inputs(run_id)
        # Earlier versions do not report what becomes of an input.
        self._takes_inputs = not version or version_of(version) >= version_of(TESTED_VERSION)
        self._deferred: Terminal | None = None
        """The newest result's, while background tasks or an input may bring another."""
        self._raw = b""

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
        self._raw = line.data
        return super().line(stream, line)

    def frame_name(self, frame: Fields) -> str:
        """Return a frame's type and subtype."""
        return "/".join(part for part in (text(frame, "type"), text(frame, "subtype")) if part)

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        if self.report.terminal is None:
            self.report.terminal = self._deferred
        return []

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give Claude Code an input once its turn runs."""
        is_running = bool(self.report.session_id) and self.report.terminal is None
        return [self._inputs.give(steering)] if is_running and self._takes_inputs else None

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give Claude Code a change once its turn runs."""
        is_running = bool(self.report.session_id) and self.report.terminal is None
        return [self._changes.make(update)] if is_running else None

    def read(self, handler: Handler, frame: Fields) -> Iterable[Output] | None:
        """Put the events of a frame where they happened, if that was in a nested agent."""
        found = handler(frame)
        outputs = None if found is None else list(found)
        lineage = self._system.lineage(frame)
        if lineage is not None:
            for output in outputs or ():
                if isinstance(output, pb.AgentEvent):
                    output.lineage.CopyFrom(lineage)
        return outputs

    def _system_frame(self, frame: Fields) -> Iterable[Output] | None:
        events = self._system.take(frame)
        if events is None:
            return None
        outputs = list(events)  # only now has it read the frame
        session = self._system.session.now
        self.report.session_id = session.native_id or self.report.session_id
        self.report.model = session.model or self.report.model
        return outputs

    # The model's messages.

    def _stream_event(self, frame: Fields) -> Iterable[Output]:
        events = list(self._stream.take(frame))
        return [*self._system.retries.end(), *events]

    def _assistant(self, frame: Fields) -> Iterator[Output]:
        if text(frame, "error") or frame.get("is_api_error_message") is True:
            self._wrong = read_error(frame, self._wrong)
            yield _api_error(frame, self._wrong)
            return
        self._wrong = Wrong(resets_at=self._wrong.resets_at)
        yield from self._system.retries.end()
        is_main = not text(frame, "parent_tool_use_id")
        for block in self._stream.whole(frame):
            yield from block.events
            kind = text(block.content, "type")
            if kind in CALLS:
                yield from self._calls.begin(block.content, self._system.cwd)
            elif kind.endswith("_tool_result"):
                yield from self._calls.end(block.content, {}, {}, denied=self._system.denied)
            elif kind == "text" and is_main:
                self.report.summary = text(block.content, "text") or self.report.summary

    def _user(self, frame: Fields) -> Iterator[Output]:
        body = inner(frame, "message")
        content = body.get("content")
        if isinstance(content, str):
            yield _message(content, frame)
            return
        blocks = objects(body, "content")
        results = [block for block in blocks if text(block, "type").endswith("tool_result")]
        metas = {text(meta, "id"): meta for meta in objects(frame, "tool_result_meta")}
        # A frame has one structured result; with several blocks it does not say to which it belongs.
        structured = inner(frame, "tool_use_result") if len(results) == 1 else {}
        for block in blocks:
            if block in results:
                meta = metas.get(text(block, "tool_use_id"), {})
                yield from self._calls.end(block, structured, meta, denied=self._system.denied)
            elif text(block, "text"):
                yield _message(text(block, "text"), frame)

    def _rate_limit(self, frame: Fields) -> Iterable[Output]:
        info = inner(frame, "rate_limit_info")
        if text(info, "status") == "rejected":
            self._wrong = Wrong(resets_at=unix_moment(info, "resetsAt"))
        usage = call_usage()  # without tokens, it adds nothing to the totals
        usage.rate_limits.extend(self._totals.limits(info))
        return [pb.AgentEvent(usage=usage)]

    # Input requests.

    def _control_request(self, frame: Fields) -> Iterable[Output]:
        request_id, request = text(frame, "request_id"), inner(frame, "request")
        if text(request, "subtype") != "can_use_tool" or not request_id:
            return [Write(control.refusal(request_id, text(request, "subtype")))]
        ask: Ask | None = None
        if text(request, "tool_name") == "AskUserQuestion":
            ask = control.question(request_id, request, partial(_note_question, self.report, request))
        if ask is None:
            on_answer = partial(self._calls.note_answer, text(request, "tool_use_id"))
            ask = control.permission(request_id, request, self._system.cwd, on_answer)
        lineage = self._system.lineage(request)
        return [ask if lineage is None else Ask(ask.request, ask.encode, lineage)]

    def _input_changed(self, frame: Fields) -> Iterable[Output]:
        outputs = self._inputs.changed(frame)
        if any(isinstance(output, Untaken) for output in outputs) and not self._inputs.waits:
            self.report.terminal = self.report.terminal or self._deferred  # no turn follows after all
        elif outputs:
            self._deferred = None
        return outputs

    # The end.

    def _result(self, frame: Fields) -> Iterator[Output]:
        if self.report.terminal is not None:
            return  # the run has ended already
        report = self.report
        self._totals.api_key_source = self._system.api_key_source
        self._totals.add(frame, report.model)
        self._stream.context_size = self._totals.context_size
        report.session_id = report.session_id or text(frame, "session_id")
        if frame.get("is_error") is not True:  # an error would replace the agent's last message
            report.summary = as_string(frame.get("result"), report.summary)
        report.turns = _sum(report.turns, count(frame, "num_turns"))
        report.raw_json = self._raw.decode("utf-8", "replace")
        if "structured_output" in frame:
            report.structured_output_json = compact(frame["structured_output"])
        report.usage, report.billing = self._totals.usage(), self._totals.billing()
        if report.usage is not None:
            report.usage.MergeFrom(pb.Usage(context_used=self._stream.context_used))
        report.provider = PROVIDER if report.usage is not None and report.usage.models else ""
        session = session_usage(frame)
        if session is not None:
            yield pb.AgentEvent(usage=session)
        self._deferred = terminal_of_result(frame, self._wrong, resumed=self._resumes)
        if self._system.has_news and self._deferred.succeeded:
            yield CloseInput()  # Claude Code ends after one more turn, or without one
        elif not self._system.background:
            if self._deferred.interrupted or not self._inputs.waits:
                report.terminal = self._deferred
            else:
                report.deferred = self._deferred


def _message(words: str, frame: Fields) -> pb.AgentEvent:
    is_synthetic = (
        frame.get("isSynthetic") is True or frame.get("isReplay") is True or words.startswith(_INTERRUPTION)
    )
    return pb.AgentEvent(message=pb.Message(role=pb.MESSAGE_ROLE_USER, text=words, synthetic=is_synthetic))


def _api_error(frame: Fields, wrong: Wrong) -> Output:
    words = "\n".join(text(item, "text") for item in objects(inner(frame, "message"), "content")).strip()
    code = f"claude_{wrong.api_error or wrong.error or 'api_error'}"
    return notice_event(code, words or "The model's service reports an error.", pb.SEVERITY_ERROR)


def _note_question(report: Report, request: Fields, answer: Answer) -> None:
    report.question = None
    questions = objects(inner(request, "input"), "questions")
    if not answer.allowed and questions:
        choices = [text(option, "label") for option in objects(questions[0], "options")]
        report.question = pb.Question(prompt=text(questions[0], "question"), choices=choices)


def _sum(before: int | None, more: int | None) -> int | None:
    total = (before or 0) + (more or 0)
    return None if before is None and more is None else min(total, 2**32 - 1)
