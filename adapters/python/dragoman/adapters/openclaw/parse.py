"""The parser of the gateway's frames. Pure: lines in, events and further requests out; nothing in a line may raise.

A gateway sends the frames of all runs to each of its clients: those of others are ignored. An unknown frame of this
run becomes a ``log`` event.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.classify import failure_of, failure_of_stop, retry_cause
from dragoman.adapters.openclaw.opening import Opening, error_of
from dragoman.adapters.openclaw.questions import Questions
from dragoman.adapters.openclaw.tools import Calls
from dragoman.adapters.openclaw.usage import run_usage
from dragoman.sdk import CloseInput, FailureInfo, Job, Output, Report, Terminal
from dragoman.sdk.fields import Fields, compact, count, inner, objects, text
from dragoman.sdk.parsing import JsonLinesParser, text_event
from dragoman.v1 import event_pb2 as pb

_APPROVALS: Final = ("exec.approval.requested", "exec.approval.resolved")
_SILENT_STREAMS: Final = frozenset({"item", "command_output", "usage", "approval", "patch", "compaction"})
"""Streams whose content others have too."""


class OpenClawParser(JsonLinesParser):
    """Reads one attempt at a gateway."""

    def __init__(self, job: Job) -> None:
        handlers = {"hello": self._hello, "res": self._response, "event": self._event}
        super().__init__(handlers, other=lambda _: None)
        self._calls = Calls(job.settings.cwd)
        self._questions = Questions(job, self._calls)
        self._opening = Opening(job, self.report)
        self._run = plan.run_key(job)
        self._open_item = ""
        self._texts: set[str] = set()
        """Items of text that were begun."""
        self._thoughts = 0
        self._observed: Fields = {}
        self._is_stopped = False
        self._answers: dict[str, Callable[[Fields], Iterable[Output]]] = {
            plan.OPEN: self._opening.opened,
            plan.ADJUST: self._opening.adjusted,
            plan.TURN: self._turned,
            plan.QUESTION: self._questions.fetched,
        }
        self._streams: dict[str, Callable[[Fields], Iterable[Output]]] = {
            "assistant": self._text,
            "thinking": self._thinking,
            "tool": self._tool,
            "lifecycle": self._lifecycle,
            "run_status": self._run_status,
        }

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        return self._close_item()

    def _hello(self, frame: Fields) -> Iterable[Output]:
        return self._opening.hello(frame)

    def _response(self, frame: Fields) -> Iterable[Output]:
        answered = self._answers.get(text(frame, "id"))
        return answered(frame) if answered else ()

    def _event(self, frame: Fields) -> Iterable[Output] | None:
        event, payload = text(frame, "event"), inner(frame, "payload")
        if event in _APPROVALS:
            return self._questions.approval(event, payload)
        if event != "agent" or text(payload, "runId") != self._run:
            return ()  # broadcast to every client
        stream = text(payload, "stream")
        handler = self._streams.get(stream)
        if handler is None:
            return () if stream in _SILENT_STREAMS else None
        return handler(inner(payload, "data"))

    def _turned(self, frame: Fields) -> Iterable[Output]:
        payload = inner(frame, "payload")
        result, status = inner(payload, "result"), text(payload, "status")
        if frame.get("ok") is not True:
            return self._end(_failed(failure_of(error_of(frame), self._observed)))
        if status in {"accepted", "started", "in_flight"}:
            return ()
        if not result:
            message = "The turn was stopped, and not by this run."
            failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="openclaw_stopped")
            return self._end(Terminal(succeeded=False, failure=failure, interrupted=True))
        meta = inner(result, "meta")
        _learn(self.report, result)
        if inner(meta, "error") or status != "ok":
            message = next(_errors_of(result, text(payload, "summary")), "")
            return self._end(_failed(failure_of(message, self._observed)))
        return self._end(_ending_of(meta))

    def _end(self, terminal: Terminal) -> Iterable[Output]:
        self.report.terminal = terminal
        return [*self._close_item(), CloseInput()]

    # The agent's streams.

    def _text(self, data: Fields) -> Iterator[Output]:
        item_id = text(data, "itemId") or "answer"
        delta, whole = text(data, "delta"), text(data, "text")
        replaces = data.get("replace") is True
        if not delta and not (replaces and item_id in self._texts):
            return
        self._texts.add(item_id)
        if delta:
            yield from self.retries.end()
        yield from self._close_item(but=item_id)
        self._open_item = item_id
        yield text_event("text", item_id, whole=whole) if replaces else text_event("text", item_id, delta=delta)

    def _thinking(self, data: Fields) -> Iterator[Output]:
        delta = text(data, "delta")
        if not delta:
            return
        yield from self.retries.end()
        if not self._open_item.startswith("thinking-"):
            yield from self._close_item()
            self._thoughts += 1
            self._open_item = f"thinking-{self._thoughts}"
        yield text_event("thinking", self._open_item, delta=delta)

    def _close_item(self, *, but: str = "") -> Iterator[Output]:
        """End the open item, so that redaction releases all of it."""
        item_id = self._open_item
        if not item_id or item_id == but:
            return
        self._open_item = ""
        yield text_event("thinking" if item_id.startswith("thinking-") else "text", item_id)

    def _tool(self, data: Fields) -> Iterator[Output]:
        if not text(data, "toolCallId"):
            return
        yield from self.retries.end()
        yield from self._close_item()
        if text(data, "phase") == "start":
            yield from self._calls.begin(data)
        elif text(data, "phase") == "result":
            yield from self._calls.end(data, was_stopped=self._is_stopped)

    def _lifecycle(self, data: Fields) -> Iterable[Output]:
        phase = text(data, "phase")
        if phase == "model":
            self.report.model = text(data, "model") or self.report.model
            self.report.provider = text(data, "provider") or self.report.provider
        self._is_stopped = self._is_stopped or data.get("aborted") is True
        self._observed = inner(data, "errorObservation") or self._observed
        return ()

    def _run_status(self, data: Fields) -> Iterable[Output]:
        if text(data, "phase") != "retrying":
            return ()
        reason = text(data, "reason")
        attempt, most, delay_ms = (count(data, key) for key in ("retryAttempt", "maxRetries", "delayMs"))
        message, cause = text(data, "message") or reason, retry_cause(reason)
        return self.retries.begin(message, attempt=attempt, most=most, delay_ms=delay_ms, cause=cause)


def _learn(report: Report, result: Fields) -> None:
    """Note what a run's result has, except for the outcome."""
    meta = inner(result, "meta")
    agent = inner(meta, "agentMeta")
    report.usage = run_usage(agent)
    report.model = text(agent, "model") or report.model
    report.provider = text(agent, "provider") or report.provider
    report.turns = count(agent, "assistantTurns")
    report.raw_json = compact({"payloads": result.get("payloads"), "meta": {**meta, "systemPromptReport": None}})
    report.summary = text(meta, "finalAssistantVisibleText") or "\n\n".join(_visible_texts(result))


def _visible_texts(result: Fields) -> list[str]:
    """Return the messages of a result that are for the user."""
    payloads = (item for item in objects(result, "payloads") if item.get("isError") is not True)
    return [text(item, "text") for item in payloads if text(item, "text")]


def _ending_of(meta: Fields) -> Terminal:
    """Return how a run without an error ended: the reason why its model stopped decides."""
    reason = text(meta, "stopReason")
    failure = failure_of_stop(reason)
    return Terminal(succeeded=failure is None, subtype=reason, failure=failure)


def _errors_of(result: Fields, summary: str = "") -> Iterator[str]:
    """Yield the error messages of a failed result, the most precise first."""
    error = inner(inner(result, "meta"), "error")
    payloads = objects(result, "payloads")
    failed = [text(item, "text") for item in payloads if item.get("isError") is True]
    messages = (text(error, "message"), *failed, summary, text(error, "kind"))
    return (message for message in messages if message)


def _failed(failure: FailureInfo) -> Terminal:
    return Terminal(succeeded=False, failure=failure)
