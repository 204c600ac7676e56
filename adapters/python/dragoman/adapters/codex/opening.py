"""The requests that open a thread and a turn. Pure.

The order is initialize, skills if there are any, thread/start (or resume, or fork), new instructions for an old
thread, turn/start.
"""

from collections.abc import Callable, Iterable
from typing import Final

from dragoman.adapters.codex.classify import failure_of_text, lost_session
from dragoman.adapters.codex.plan import (
    DIGEST_KEY,
    INITIALIZE,
    SKILLS_DIR,
    digest,
    session_param,
    thread_params,
    turn_params,
)
from dragoman.adapters.codex.thread import ThreadEvents
from dragoman.sdk import CloseInput, FailureInfo, Job, Output, Report, Terminal, Write
from dragoman.sdk.failures import unknown_session
from dragoman.sdk.fields import Fields, compact, inner, objects, text
from dragoman.sdk.jsonrpc import Peer, Response, RpcError
from dragoman.sdk.parsing import notice_event, version_notice
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

TESTED_VERSION: Final = agent_spec(__package__).tested_version
TURN: Final = "turn/start"
_THREAD: Final = "thread"


class Opening:
    """Opens the thread and the turn of one attempt: each answer leads to the next request.

    Args:
        job: the attempt's.
        peer: makes the requests.
        thread: learns the IDs of the thread and the turn.
        report: the attempt's.
    """

    def __init__(self, job: Job, peer: Peer[str], thread: ThreadEvents, report: Report) -> None:
        self._job = job
        self._peer = peer
        self._thread = thread
        self._report = report
        self._skills: list[str] = []
        self._is_stopping = False
        self._steps: dict[str, Callable[[Fields], Iterable[Output]]] = {
            INITIALIZE: self._initialized,
            "skills/extraRoots/set": lambda _: [self._ask("skills/list", {"cwds": [job.settings.cwd]})],
            "skills/list": self._listed,
            _THREAD: self._opened,
            "thread/inject_items": lambda _: self._begin(),
            TURN: self._began,
        }

    def answered(self, answer: Response[str]) -> Iterable[Output]:
        """Handle the answer to a request."""
        step = self._steps.get(answer.tag)
        if step is None:
            return []  # to an interruption: the turn's end is reported separately
        return step(answer.fields) if answer.error is None else self._refused(answer.tag, answer.error)

    def interrupt(self) -> list[Output]:
        """Ask Codex to stop the turn; before there is one, close its input, which ends it."""
        self._is_stopping = True
        if self._thread.turn:
            return [self._interrupt()]
        return [] if TURN in self._peer.pending else [CloseInput()]

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
        self._thread.thread = self._report.session_id = text(thread, "id")
        if not self._thread.thread:
            message = "Codex began a thread without an ID."
            yield from self._fail(FailureInfo(pb.FAILURE_KIND_UNPARSEABLE_OUTPUT, message, code="codex_no_thread_id"))
            return
        self._report.model, self._report.provider = text(result, "model"), text(result, "modelProvider")
        mode = result.get("approvalPolicy")
        session = self._thread.session.now
        session.native_id, session.model, session.title = (
            self._thread.thread,
            self._report.model,
            text(thread, "name"),
        )
        session.mode = mode if isinstance(mode, str) else compact(mode)
        session.agent_version = text(thread, "cliVersion")
        session.skills.extend(self._skills)
        yield from self._thread.session.news()
        if self._job.version:
            yield from version_notice("Codex", self._job.version, TESTED_VERSION)
        yield from self._instruct()

    def _instruct(self) -> Iterable[Output]:
        """Give an old thread the instructions of this run, if they have changed: Codex keeps the former ones."""
        now = digest(self._job.standing_text)
        before = session_param(self._job, DIGEST_KEY) if self._job.session.resumes else now
        self._report.session_params[DIGEST_KEY] = now
        if not now or now == before:
            return self._begin()
        content = [{"type": "input_text", "text": self._job.standing_text}]
        items = [{"type": "message", "role": "developer", "content": content}]
        return [self._ask("thread/inject_items", {"threadId": self._thread.thread, "items": items})]

    def _begin(self) -> list[Output]:
        if self._is_stopping:
            return []
        return [self._ask(TURN, dict(turn_params(self._job, self._thread.thread)))]

    def _began(self, result: Fields) -> Iterable[Output]:
        self._thread.turn = text(inner(result, "turn"), "id")
        if self._is_stopping:
            yield self._interrupt()

    def _interrupt(self) -> Output:
        return self._ask("turn/interrupt", {"threadId": self._thread.thread, "turnId": self._thread.turn})

    def _refused(self, tag: str, error: RpcError) -> list[Output]:
        if tag.startswith("skills/"):
            message = f"Codex did not take the skills: {error.message}"
            return [notice_event("codex_skills_refused", message), self._open()]
        if tag == "thread/inject_items":
            message = f"The thread keeps its former instructions: {error.message}"
            return [notice_event("codex_instructions_refused", message), *self._begin()]
        if tag == _THREAD and self._job.session.resumes and unknown_session(error.message):
            return self._fail(lost_session(error.message))
        failure = failure_of_text(error.message, resumed=False) or FailureInfo(
            pb.FAILURE_KIND_INVALID_CONFIG,
            f"Codex refuses to begin: {error.message}",
            code="codex_refused",
            errors=(error.message,),
        )
        return self._fail(failure)

    def _fail(self, failure: FailureInfo) -> list[Output]:
        self._report.terminal = Terminal(succeeded=False, subtype=failure.code, failure=failure)
        return [CloseInput()]
