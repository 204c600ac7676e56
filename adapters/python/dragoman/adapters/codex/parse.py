"""The parser of Codex's app server, which is also its client. Pure: lines in, events and requests out.

The end of the main thread's turn is the run's. An unknown message becomes a ``log`` event.
"""

import json
from collections.abc import Iterable
from functools import partial
from typing import Final

from dragoman.adapters.codex.approvals import Approvals
from dragoman.adapters.codex.changes import Changes
from dragoman.adapters.codex.classify import failure_of
from dragoman.adapters.codex.inputs import Inputs
from dragoman.adapters.codex.opening import TURN, Opening
from dragoman.adapters.codex.plan import TOTALS_KEY, hello, session_param
from dragoman.adapters.codex.thread import ThreadEvents
from dragoman.adapters.codex.tools import Calls
from dragoman.adapters.codex.usage import RunTotals, dump, load, used_up_until
from dragoman.sdk import CloseInput, FailureInfo, Job, Line, Output, Report, Stream, Terminal, log_event, outputs_of
from dragoman.sdk.fields import Fields, compact, inner, text
from dragoman.sdk.jsonrpc import Notification, Peer, Request, Response, Stray
from dragoman.sdk.parsing import Steering, Update, notice_event
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

_REPEATED: Final = b"Codex could not find bubblewrap on PATH"
"""A message on standard error that is also a ``configWarning``, which becomes a notice."""


class AppServerParser:
    """Reads one attempt of the app server, and writes its requests.

    Args:
        job: the attempt's.
        version: the adapter's, as in the plan.
    """

    def __init__(self, job: Job, version: str) -> None:
        self.report = Report()
        self._job = job
        self._peer = Peer[str](says_version=False)
        hello(self._peer, version)  # the plan has sent it
        calls = Calls(job.settings.cwd)
        before = load(session_param(job, TOTALS_KEY)) if job.session.resumes else None
        self._thread = ThreadEvents(calls, RunTotals(before))
        self._approvals = Approvals(self._peer, str(job.attempt), self._thread.lineage, calls)
        self._opening = Opening(job, self._peer, self._thread, self.report)
        self._inputs = Inputs(self._peer, job.run_id)
        self._changes = Changes(self._peer, self._thread)

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Read a line."""
        message = self._peer.read(line.data) if stream == "stdout" else None
        if stream == "stderr" and _REPEATED in line.data:
            return []
        if message is None or isinstance(message, Stray):
            return [log_event(stream, line)]
        names = self._job.request.include_native
        native = message.method if names and isinstance(message, Notification | Request) else ""
        return outputs_of(self.report, stream, line, partial(self._message, message), native)

    def finish(self) -> Iterable[Output]:
        """Handle the end of all output."""
        if self.report.terminal is not None:
            return []
        self._sum_up()
        return list(self._thread.end())

    def interrupt(self) -> Iterable[Output]:
        """Ask Codex to stop the turn; before there is one, close its input, which ends it."""
        return self._opening.interrupt()

    def steer(self, steering: Steering) -> Iterable[Output] | None:
        """Give Codex an input once its turn runs."""
        give = self._inputs.give
        return [give(steering, self._thread.thread, self._thread.turn)] if self._is_running else None

    def update(self, update: Update) -> Iterable[Output] | None:
        """Give Codex another model once its turn runs."""
        return [self._changes.make(update)] if self._is_running else None

    @property
    def _is_running(self) -> bool:
        return bool(self._thread.turn) and self.report.terminal is None

    def _message(self, message: Request | Notification | Response[str]) -> Iterable[Output] | None:
        if isinstance(message, Request):
            return [self._approvals.take(message)]
        if isinstance(message, Notification):
            return self._notified(message.method, message.params)
        outputs = self._inputs.answered(message)
        if outputs is None:
            outputs = self._changes.answered(message)
        return self._opening.answered(message) if outputs is None else outputs

    def _notified(self, method: str, params: Fields) -> Iterable[Output] | None:
        is_main = self._thread.lineage(params) is None
        if method == "turn/completed":
            return self._ended(params) if is_main else self._thread.agent_ended(params)
        if method == "serverRequest/resolved":
            return self._approvals.resolved(params.get("requestId"))
        if method == "turn/started" and is_main and TURN in self._peer.pending:
            self._thread.turn = text(inner(params, "turn"), "id")  # it comes before the answer to turn/start
            return []
        events = self._thread.take(method, params)
        return events if events is None or not is_main else [*self._inputs.noted(params), *events]

    def _ended(self, params: Fields) -> Iterable[Output]:
        if self.report.terminal is not None:
            return
        turn = inner(params, "turn")
        status = text(turn, "status")
        yield from self._thread.end()
        self._sum_up()
        self.report.raw_json = compact(params)
        self.report.terminal = _terminal(status, inner(turn, "error"), self._thread.limits)
        if self.report.terminal.succeeded and not self.report.summary:
            message = "The turn ended without an answer; Codex does not say whether the model declined."
            yield notice_event("codex_no_answer", message)
        yield CloseInput()

    def _sum_up(self) -> None:
        report = self.report
        report.summary = self._thread.last_message
        report.model = self._thread.session.now.model or report.model
        report.usage = self._thread.totals.usage(report.model, self._thread.limits)
        report.structured_output_json = _structured(self._job, report.summary)
        total = self._thread.totals.total(self._thread.thread)
        if total:
            report.session_params[TOTALS_KEY] = dump(total)


def _structured(job: Job, words: str) -> str:
    """Return the answer, if a schema was given for it and it is JSON; else nothing."""
    if "outputSchema" not in job.config:
        return ""
    try:
        json.loads(words)
    except ValueError:
        return ""
    return words


def _terminal(status: str, error: Fields, limits: Iterable[pb.RateLimit]) -> Terminal:
    if status == "completed":
        return Terminal(succeeded=True, subtype=status)
    if status == "interrupted":
        message = "Codex was interrupted, and not by this run."
        failure = FailureInfo(pb.FAILURE_KIND_PROCESS_CRASHED, message, code="codex_interrupted")
        return Terminal(succeeded=False, subtype=status, failure=failure, interrupted=True)
    failure = failure_of(error)
    if failure.kind == pb.FAILURE_KIND_QUOTA_EXCEEDED:  # numbers are surer than the words about them
        failure = replace(failure, retry_not_before=used_up_until(limits) or failure.retry_not_before)
    return Terminal(succeeded=False, subtype=status, failure=failure)
