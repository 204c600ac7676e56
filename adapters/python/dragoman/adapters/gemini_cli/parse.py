"""Gemini CLI's JSON lines, understood. Pure: lines in, events out; nothing in a line may raise."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from dragoman.adapters.gemini_cli.classify import failure_of_error, failure_of_stream, retry_cause
from dragoman.adapters.gemini_cli.tools import WITHHELD, tool_kind, tool_title
from dragoman.sdk import (
    FailureInfo,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    compact,
    fields,
    log_event,
    outputs_of,
    parse_json_object,
)
from dragoman.sdk.fields import Fields
from dragoman.v1 import event_pb2 as pb

PROVIDER: Final = "google"

_RETRY: Final = re.compile(r"^Attempt (\d{1,4}) failed\b")
_GAVE_UP: Final = "Max attempts reached"
_DELAY: Final = re.compile(r"Retrying after (\d{1,9})ms")
_LOOP: Final = re.compile(r"\bloop\b", re.IGNORECASE)


class Retries:
    """What Gemini CLI says on standard error of asking its model again; it says nothing of it elsewhere."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._words = ""
        self._is_retrying = False

    def line(self, words: str) -> list[Output]:
        """Take a line of standard error, and tell the retry that it ends the announcement of."""
        begins = _RETRY.match(words)
        if begins:
            self._attempt, self._words = int(begins[1]), ""
        if self._attempt is None:
            return []
        self._words = f"{self._words}\n{words}"[-2000:]
        if _GAVE_UP in words:
            self._attempt = None
            return []
        if "Retrying" not in words:
            return []
        state = pb.State(
            phase=pb.RUN_PHASE_RETRYING, retry_attempt=self._attempt, retry_cause=retry_cause(self._words)
        )
        delay = _DELAY.search(words)
        if delay:
            state.retry_delay.FromMilliseconds(int(delay[1]))
        self._attempt, self._is_retrying = None, True
        return [pb.AgentEvent(state=state)]

    def over(self) -> list[Output]:
        """Tell that the model has answered after all."""
        if not self._is_retrying:
            return []
        self._is_retrying = False
        return [pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))]


class StreamParser:
    """Understands one attempt.

    Args:
        withholds: whether tools that need a permission are not offered to the model.
        names_frames: whether events are to say which frame they come from.
    """

    def __init__(self, *, withholds: bool = False, names_frames: bool = False) -> None:
        self.report = Report(provider=PROVIDER)
        self._withholds = withholds
        self._names_frames = names_frames
        self._retries = Retries()
        self._calls: dict[str, tuple[str, Fields]] = {}
        self._items = 0
        self._words: list[str] = []
        self._error = ""
        self._loops = ""
        self._handlers: dict[str, Callable[[Fields], Iterable[Output]]] = {
            "init": self._init,
            "message": self._message,
            "tool_use": self._tool_use,
            "tool_result": self._tool_result,
            "error": self._told_error,
            "result": self._result,
        }

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        if stream == "stderr":
            return [*self._retries.line(line.data.decode("utf-8", "replace")), log_event(stream, line)]
        frame = parse_json_object(line.data) or {}
        kind = fields.text(frame, "type")
        read = partial(self._handlers[kind], frame) if kind in self._handlers else None
        if kind == "result":
            self.report.raw_json = line.data.decode("utf-8", "replace")
        return outputs_of(self.report, stream, line, read, kind if self._names_frames else "")

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        return self._pause()

    def _init(self, frame: Fields) -> Iterator[Output]:
        self.report.session_id = fields.text(frame, "session_id")
        self.report.model = fields.text(frame, "model")
        session = pb.Session(native_id=self.report.session_id, model=self.report.model)
        yield pb.AgentEvent(session=session)

    def _message(self, frame: Fields) -> Iterator[Output]:
        words = fields.text(frame, "content")
        if fields.text(frame, "role") != "assistant" or not words:
            return  # the prompt, repeated
        yield from self._retries.over()
        if not self._words:
            self._items += 1
        self._words.append(words)
        yield pb.AgentEvent(text=pb.Text(item_id=f"text-{self._items}", delta=words))

    def _pause(self) -> list[Output]:
        """End the item of text, if there is one."""
        if not self._words:
            return []
        self.report.summary, self._words = "".join(self._words), []
        return [pb.AgentEvent(text=pb.Text(item_id=f"text-{self._items}"))]

    def _tool_use(self, frame: Fields) -> Iterator[Output]:
        yield from self._retries.over()
        yield from self._pause()
        call_id, name = fields.text(frame, "tool_id"), fields.text(frame, "tool_name")
        if not call_id:
            return
        parameters = fields.inner(frame, "parameters")
        self._calls[call_id] = (name, parameters)
        yield pb.AgentEvent(
            tool_call=pb.ToolCall(
                id=call_id,
                name=name,
                kind=tool_kind(name),
                title=tool_title(name, parameters),
                input_json=compact(parameters),
                status=pb.TOOL_STATUS_RUNNING,
            )
        )

    def _tool_result(self, frame: Fields) -> Iterator[Output]:
        call_id = fields.text(frame, "tool_id")
        name, parameters = self._calls.pop(call_id, ("", {}))
        error = fields.inner(frame, "error")
        failed = fields.text(frame, "status") == "error"
        denied = self._withholds and fields.text(error, "type") == "tool_not_registered" and name in WITHHELD
        status = pb.TOOL_STATUS_COMPLETED
        if failed:
            status = pb.TOOL_STATUS_DENIED if denied else pb.TOOL_STATUS_FAILED
        content = (fields.text(error, "message") if failed else "") or fields.text(frame, "output")
        result = pb.ToolResult(tool_call_id=call_id, status=status, content=content, is_error=failed)
        yield pb.AgentEvent(tool_result=result)
        if denied:
            notice = pb.Notice(
                severity=pb.SEVERITY_WARNING, code="permission_denied", message=f"{name} was withheld."
            )
            yield pb.AgentEvent(notice=notice, origin=pb.EVENT_ORIGIN_ADAPTER)
        elif not failed and tool_kind(name) == pb.TOOL_KIND_EDIT and fields.text(parameters, "file_path"):
            yield pb.AgentEvent(
                file_change=pb.FileChange(
                    path=fields.text(parameters, "file_path"),
                    operation=pb.FILE_OPERATION_MODIFY if name == "replace" else pb.FILE_OPERATION_UNSPECIFIED,
                    provenance=pb.PROVENANCE_INFERRED,
                    tool_call_id=call_id,
                )
            )

    def _told_error(self, frame: Fields) -> Iterator[Output]:
        words = fields.text(frame, "message")
        is_error = fields.text(frame, "severity") != "warning"
        if is_error:
            self._error = words
        elif _LOOP.search(words):
            self._loops = words
        severity = pb.SEVERITY_ERROR if is_error else pb.SEVERITY_WARNING
        notice = pb.Notice(severity=severity, code="gemini_error", message=words or "Gemini CLI reports an error.")
        yield pb.AgentEvent(notice=notice)

    def _result(self, frame: Fields) -> Iterator[Output]:
        if self.report.terminal is not None:
            return
        yield from self._pause()
        self.report.usage = run_usage(fields.inner(frame, "stats"))
        status = fields.text(frame, "status")
        failure = self._failure(frame)
        self.report.terminal = Terminal(succeeded=failure is None, subtype=status, failure=failure)

    def _failure(self, frame: Fields) -> FailureInfo | None:
        error = fields.inner(frame, "error")
        if fields.text(frame, "status") == "success":
            if self._loops:
                message = f"Gemini CLI stopped its model, as it repeated itself: {self._loops}"
                return FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, "gemini_loop_detected", (self._loops,))
            used = fields.count(fields.inner(frame, "stats"), "total_tokens")
            if used == 0 and not self._items:
                return failure_of_stream("The model was not heard.")
            return None
        if fields.text(error, "type") == "FatalTurnLimitedError":
            message = f"Gemini CLI: {fields.text(error, 'message')} Raise config.maxTurnsPerRun."
            return FailureInfo(
                pb.FAILURE_KIND_MAX_TURNS, message, "gemini_max_turns", (fields.text(error, "message"),)
            )
        said = fields.text(error, "message")
        return failure_of_error(said) if said else failure_of_stream(self._error)


def run_usage(stats: Fields) -> pb.Usage | None:
    """Return what a run used, by model too; None if nothing was counted."""
    total = _tokens(stats)
    if total is None:
        return None
    usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE, tokens=total)
    models = fields.inner(stats, "models")
    for name in models:
        tokens = _tokens(fields.inner(models, name))
        if tokens is not None:
            usage.models.add(model=name).tokens.CopyFrom(tokens)
    return usage


def _tokens(stats: Fields) -> pb.TokenCounts | None:
    """Read counts; what is neither input nor answer of the total is thoughts. All zero: nothing was counted."""
    names = ("input", "cached", "input_tokens", "output_tokens", "total_tokens")
    fresh, cached, given, answer, total = (fields.count(stats, name) for name in names)
    if not total or given is None or answer is None:
        return None
    thoughts = max(0, total - given - answer)
    tokens = pb.TokenCounts(cache_read=cached, output=answer + thoughts, reasoning=thoughts)
    tokens.input = fresh if fresh is not None else given
    return tokens
