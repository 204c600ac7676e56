"""The parser of Gemini CLI's JSON lines. Pure: lines in, events out; nothing in a line may raise."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from dragoman.adapters.gemini_cli.classify import failure_of_error, failure_of_stream, retry_cause
from dragoman.adapters.gemini_cli.tools import KINDS, WITHHELD, tool_title
from dragoman.sdk import FailureInfo, Line, Output, Stream, Terminal
from dragoman.sdk.fields import Fields, count, inner, text
from dragoman.sdk.parsing import FileTool, JsonLinesParser, NotUpdated, ToolCalls, Update, notice_event, run_usage
from dragoman.v1 import event_pb2 as pb

PROVIDER: Final = "google"

_RETRY: Final = re.compile(r"^Attempt (\d{1,4}) failed\b")
_GAVE_UP: Final = "Max attempts reached"
_DELAY: Final = re.compile(r"Retrying after (\d{1,9})ms")
_FILES: Final = {
    "write_file": FileTool("file_path", content="content"),
    "replace": FileTool("file_path", replaces=("old_string", "new_string")),
}
_LOOP: Final = re.compile(r"\bloop\b", re.IGNORECASE)


class StreamParser(JsonLinesParser):
    """Reads one attempt.

    Args:
        roots: the workspace, its working directory first.
        withholds: whether tools that need a permission are not offered to the model.
        names_frames: whether events name the frame that they come from.
        servers: the names of the run's MCP servers.
    """

    def __init__(
        self,
        roots: Sequence[str] = (),
        *,
        withholds: bool = False,
        names_frames: bool = False,
        servers: Collection[str] = (),
    ) -> None:
        super().__init__(
            {
                "init": self._init,
                "message": self._message,
                "tool_use": self._tool_use,
                "tool_result": self._tool_result,
                "error": self._reported_error,
                "result": self._result,
            },
            names_frames=names_frames,
        )
        self.report.provider = PROVIDER
        self._calls = ToolCalls(KINDS, _FILES, roots, servers)
        self._withholds = withholds
        self._announced_attempt: int | None = None
        self._announcement = ""
        self._raw = ""
        self._error = ""
        self._loops = ""

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
        self._raw = line.data.decode("utf-8", "replace")
        retrying = self._retrying(self._raw) if stream == "stderr" else []
        return [*retrying, *super().line(stream, line)]

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        self.report.summary = self.texts.last_text
        return super().finish()

    def update(self, update: Update) -> Iterable[Output]:
        """Reject a change: Gemini CLI reads nothing while it prints JSON lines."""
        return [NotUpdated(update.update_id, "it takes changes only over ACP; set config.transport to acp")]

    def _retrying(self, words: str) -> list[pb.AgentEvent]:
        """Read a line of standard error, where several lines report that the model is called again."""
        begins = _RETRY.match(words)
        if begins:
            self._announced_attempt, self._announcement = int(begins[1]), ""
        if self._announced_attempt is None:
            return []
        self._announcement = f"{self._announcement}\n{words}"[-2000:]
        if _GAVE_UP in words:
            self._announced_attempt = None
        if self._announced_attempt is None or "Retrying" not in words:
            return []
        attempt, delay, self._announced_attempt = self._announced_attempt, _DELAY.search(words), None
        delay_ms = int(delay[1]) if delay else None
        return self.retries.begin(attempt=attempt, delay_ms=delay_ms, cause=retry_cause(self._announcement))

    def _init(self, frame: Fields) -> Iterable[Output]:
        self.report.session_id, self.report.model = text(frame, "session_id"), text(frame, "model")
        return [pb.AgentEvent(session=pb.Session(native_id=self.report.session_id, model=self.report.model))]

    def _message(self, frame: Fields) -> Iterator[Output]:
        words = text(frame, "content")
        if text(frame, "role") == "assistant" and words:  # else it is the prompt, repeated
            yield from self.retries.end()
            yield from self.texts.piece(words)

    def _tool_use(self, frame: Fields) -> Iterator[Output]:
        yield from self.retries.end()
        yield from self.texts.pause()
        name, parameters = text(frame, "tool_name"), inner(frame, "parameters")
        yield from self._calls.running(text(frame, "tool_id"), name, parameters, title=tool_title(name, parameters))

    def _tool_result(self, frame: Fields) -> Iterator[Output]:
        call_id, error = text(frame, "tool_id"), inner(frame, "error")
        name, failed = self._calls.name(call_id), text(frame, "status") == "error"
        denied = failed and self._withholds and text(error, "type") == "tool_not_registered" and name in WITHHELD
        status = pb.TOOL_STATUS_FAILED if failed else pb.TOOL_STATUS_COMPLETED
        content = (text(error, "message") if failed else "") or text(frame, "output")
        result = pb.ToolResult(tool_call_id=call_id, status=status, content=content, is_error=failed)
        if denied:
            result.status = pb.TOOL_STATUS_DENIED
        yield from self._calls.ended(result)
        if denied:
            notice = notice_event("permission_denied", f"{name} was withheld.")
            notice.origin = pb.EVENT_ORIGIN_ADAPTER
            yield notice

    def _reported_error(self, frame: Fields) -> Iterable[Output]:
        words = text(frame, "message")
        is_error = text(frame, "severity") != "warning"
        if is_error:
            self._error = words
        elif _LOOP.search(words):
            self._loops = words
        severity = pb.SEVERITY_ERROR if is_error else pb.SEVERITY_WARNING
        return [notice_event("gemini_error", words or "Gemini CLI reports an error.", severity)]

    def _result(self, frame: Fields) -> Iterator[Output]:
        self.report.raw_json = self._raw
        if self.report.terminal is not None:
            return
        yield from self.texts.pause()
        self.report.summary = self.texts.last_text
        self.report.usage = usage_of(inner(frame, "stats"))
        failure = self._failure(frame)
        self.report.terminal = Terminal(succeeded=failure is None, subtype=text(frame, "status"), failure=failure)

    def _failure(self, frame: Fields) -> FailureInfo | None:
        error = inner(frame, "error")
        if text(frame, "status") == "success":
            if self._loops:
                message = f"Gemini CLI stopped its model, as it repeated itself: {self._loops}"
                return FailureInfo(pb.FAILURE_KIND_NO_RESULT, message, "gemini_loop_detected", (self._loops,))
            used = count(inner(frame, "stats"), "total_tokens")
            if used == 0 and not self.texts.last_text:
                return failure_of_stream("The model did not answer.")
            return None
        if text(error, "type") == "FatalTurnLimitedError":
            message = f"Gemini CLI: {text(error, 'message')} Raise config.maxTurnsPerRun."
            return FailureInfo(pb.FAILURE_KIND_MAX_TURNS, message, "gemini_max_turns", (text(error, "message"),))
        message = text(error, "message")
        return failure_of_error(message) if message else failure_of_stream(self._error)


def usage_of(stats: Fields) -> pb.Usage | None:
    """Return what a run used, by model too; None if nothing was counted."""
    total = _tokens(stats)
    if total is None:
        return None
    usage = run_usage(total)
    models = inner(stats, "models")
    for name in models:
        tokens = _tokens(inner(models, name))
        if tokens is not None:
            usage.models.add(model=name).tokens.CopyFrom(tokens)
    return usage


def _tokens(stats: Fields) -> pb.TokenCounts | None:
    """Return counts; tokens of the total that are neither input nor answer are thoughts. None if all are zero."""
    names = ("input", "cached", "input_tokens", "output_tokens", "total_tokens")
    fresh, cached, taken, answer, total = (count(stats, name) for name in names)
    if not total or taken is None or answer is None:
        return None
    thoughts = max(0, total - taken - answer)
    tokens = pb.TokenCounts(cache_read=cached, output=answer + thoughts, reasoning=thoughts)
    tokens.input = fresh if fresh is not None else taken
    return tokens
