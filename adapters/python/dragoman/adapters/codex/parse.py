"""One attempt's side of the conversation with Codex's app server: what it says, and what it is told next. Pure.

The order is initialize, skills if there are any, thread/start (or resume, or fork), new instructions for an old
thread, turn/start; the turn's end is the run's. What is not understood becomes a ``log`` event: never lost, never
fatal.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from dragoman.adapters.codex.approvals import Approvals
from dragoman.adapters.codex.classify import failure_of, failure_of_words, lost_session
from dragoman.adapters.codex.plan import (
    DIGEST_KEY,
    INITIALIZE,
    SKILLS_DIR,
    TOTALS_KEY,
    digest,
    hello,
    instructions,
    kept,
    thread_params,
    turn_params,
)
from dragoman.adapters.codex.thread import ThreadEvents, notice
from dragoman.adapters.codex.tools import Calls
from dragoman.adapters.codex.usage import RunTotals, dump, load, used_up_until
from dragoman.sdk import (
    CloseInput,
    FailureInfo,
    Job,
    Line,
    Output,
    Report,
    Stream,
    Terminal,
    Write,
    compact,
    log_event,
    outputs_of,
    unknown_session,
)
from dragoman.sdk.fields import Fields, inner, objects, text
from dragoman.sdk.jsonrpc import Notification, Peer, Request, Response, RpcError, Stray
from dragoman.v1 import event_pb2 as pb

TESTED_VERSION: Final = "0.169.0"
_THREAD: Final = "thread"
_TURN: Final = "turn/start"


class AppServerParser:
    """Understands one attempt of the app server, and says what it is told.

    Args:
        job: the attempt's.
        version: the adapter's, as in the plan.
    """

    def __init__(self, job: Job, version: str) -> None:
        self.report = Report()
        self._job = job
        self._peer = Peer[str](says_version=False)
        hello(self._peer, version)  # the plan has sent it
        calls = Calls()
        before = load(kept(job, TOTALS_KEY)) if job.session.resumes else None
        self._thread = ThreadEvents(job.settings.cwd, calls, RunTotals(before))
        self._approvals = Approvals(self._peer, str(job.attempt), self._thread.lineage, calls)
        self._instructions = instructions(job)
        self._skills: list[str] = []
        self._stopping = False
        self._steps: dict[str, Callable[[Fields], Iterable[Output]]] = {
            INITIALIZE: self._initialized,
            "skills/extraRoots/set": lambda _: [self._ask("skills/list", {"cwds": [job.settings.cwd]})],
            "skills/list": self._listed,
            _THREAD: self._opened,
            "thread/inject_items": lambda _: self._begin(),
            _TURN: self._began,
        }

    # What the run loop calls.

    def line(self, stream: Stream, line: Line) -> Iterable[Output]:
        """Take a line."""
        message = self._peer.read(line.data) if stream == "stdout" else None
        if message is None or isinstance(message, Stray):
            return [log_event(stream, line)]
        names = self._job.request.include_native
        native = message.method if names and isinstance(message, Notification | Request) else ""
        return outputs_of(self.report, stream, line, partial(self._message, message), native)

    def finish(self) -> Iterable[Output]:
        """Take the end of all output."""
        if self.report.terminal is not None:
            return []
        self._sum_up()
        return list(self._thread.end())

    def interrupt(self) -> Iterable[Output]:
        """Ask Codex to stop the turn; before there is one, close its input, which ends it."""
        self._stopping = True
        if self._thread.turn:
            return [self._interrupt()]
        return [] if _TURN in self._peer.pending else [CloseInput()]

    # Messages.

    def _message(self, message: Request | Notification | Response[str]) -> list[Output] | None:
        if isinstance(message, Request):
            return [self._approvals.take(message)]
        if isinstance(message, Notification):
            return self._notified(message.method, message.params)
        if message.tag not in self._steps:
            return []  # of an interruption: the turn's end says more
        if message.error is not None:
            return self._refused(message.tag, message.error)
        return list(self._steps[message.tag](message.fields))

    def _notified(self, method: str, params: Fields) -> list[Output] | None:
        if method == "turn/completed":
            if self._thread.lineage(params) is not None:
                return list(self._thread.agent_ended(params))
            return list(self._ended(params))
        if method == "serverRequest/resolved":
            return self._approvals.resolved(params.get("requestId"))
        if method == "turn/started" and self._thread.lineage(params) is None and _TURN in self._peer.pending:
            self._thread.turn = text(inner(params, "turn"), "id")  # told before the answer to our request
            return []
        events = self._thread.take(method, params)
        return None if events is None else list(events)

    # Step by step.

    def _ask(self, method: str, params: dict[str, object], tag: str = "") -> Output:
        return Write(self._peer.request(method, params, tag or method))

    def _initialized(self, result: Fields) -> Iterable[Output]:
        del result
        yield Write(self._peer.notify("initialized"))
        if self._job.skills_dir is not None:
            yield self._ask("skills/extraRoots/set", {"extraRoots": [str(self._job.skills_dir / SKILLS_DIR)]})
        else:
            yield self._open()

    def _listed(self, result: Fields) -> Iterable[Output]:
        found = [skill for entry in objects(result, "data") for skill in objects(entry, "skills")]
        self._skills = [text(skill, "name") for skill in found if skill.get("enabled") is not False]
        yield self._open()

    def _open(self) -> Output:
        session = self._job.session
        params: dict[str, object] = dict(thread_params(self._job))
        if not session.resumes:
            return self._ask("thread/start", params, _THREAD)
        method = "thread/fork" if session.disposition == pb.SESSION_DISPOSITION_FORK else "thread/resume"
        return self._ask(method, {"threadId": session.native_id, "excludeTurns": True, **params}, _THREAD)

    def _opened(self, result: Fields) -> Iterable[Output]:
        thread = inner(result, "thread")
        self._thread.thread = self.report.session_id = text(thread, "id")
        if not self._thread.thread:
            message = "Codex began a thread without saying its id."
            yield from self._fail(FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, message, code="codex_no_thread_id"))
            return
        self.report.model, self.report.provider = text(result, "model"), text(result, "modelProvider")
        mode = result.get("approvalPolicy")
        session = self._thread.session
        session.native_id, session.model, session.title = self._thread.thread, self.report.model, text(thread, "name")
        session.mode = mode if isinstance(mode, str) else compact(mode)
        session.agent_version = text(thread, "cliVersion")
        session.skills.extend(self._skills)
        told = pb.Session()
        told.CopyFrom(session)
        yield pb.AgentEvent(session=told)
        yield from self._version_notice()
        yield from self._instruct()

    def _version_notice(self) -> Iterable[Output]:
        version = self._job.version
        if version and version != TESTED_VERSION:
            message = f"Codex {version} is not the version this adapter is tested with ({TESTED_VERSION})."
            yield notice(pb.SEVERITY_WARNING, "version_untested", message)

    def _instruct(self) -> Iterable[Output]:
        """Tell an old thread the instructions of this run, if it was given others: Codex leaves it as it was."""
        now = digest(self._instructions)
        before = kept(self._job, DIGEST_KEY) if self._job.session.resumes else now
        self.report.session_params[DIGEST_KEY] = now
        if not now or now == before:
            return self._begin()
        content = [{"type": "input_text", "text": self._instructions}]
        items = [{"type": "message", "role": "developer", "content": content}]
        return [self._ask("thread/inject_items", {"threadId": self._thread.thread, "items": items})]

    def _begin(self) -> list[Output]:
        if self._stopping:
            return []
        return [self._ask(_TURN, dict(turn_params(self._job, self._thread.thread)))]

    def _began(self, result: Fields) -> Iterable[Output]:
        self._thread.turn = text(inner(result, "turn"), "id")
        if self._stopping:
            yield self._interrupt()

    def _interrupt(self) -> Output:
        return self._ask("turn/interrupt", {"threadId": self._thread.thread, "turnId": self._thread.turn})

    # The end.

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
            message = "The turn ended without an answer; Codex does not tell whether the model declined."
            yield notice(pb.SEVERITY_WARNING, "codex_no_answer", message)
        yield CloseInput()

    def _sum_up(self) -> None:
        report = self.report
        report.summary = self._thread.last_words
        report.model = self._thread.session.model or report.model
        report.usage = self._thread.totals.usage(report.model, self._thread.limits)
        report.structured_output_json = structured(self._job, report.summary)
        total = self._thread.totals.total(self._thread.thread)
        if total:
            report.session_params[TOTALS_KEY] = dump(total)

    def _refused(self, tag: str, error: RpcError) -> list[Output]:
        if tag.startswith("skills/"):
            message = f"Codex did not take the skills: {error.message}"
            return [notice(pb.SEVERITY_WARNING, "codex_skills_refused", message), self._open()]
        if tag == "thread/inject_items":
            message = f"The thread keeps its former instructions: {error.message}"
            return [notice(pb.SEVERITY_WARNING, "codex_instructions_refused", message), *self._begin()]
        if tag == _THREAD and self._job.session.resumes and unknown_session(error.message):
            return self._fail(lost_session(error.message))
        failure = failure_of_words(error.message, resumed=False) or FailureInfo(
            pb.FAILURE_KIND_INVALID_CONFIG,
            f"Codex refuses to begin: {error.message}",
            code="codex_refused",
            errors=(error.message,),
        )
        return self._fail(failure)

    def _fail(self, failure: FailureInfo) -> list[Output]:
        self.report.terminal = Terminal(succeeded=False, subtype=failure.code, failure=failure)
        return [CloseInput()]


def structured(job: Job, words: str) -> str:
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
