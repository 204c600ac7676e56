"""The requests to Copilot that open a session and send the prompt, each after the answer to the one before. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from dragoman.adapters.copilot.classify import failure_of_text, interrupted
from dragoman.adapters.copilot.frames import notice
from dragoman.adapters.copilot.plan import attached, begin
from dragoman.adapters.copilot.session import SessionFrames
from dragoman.sdk import CloseInput, FailureInfo, Job, Output, Report, Terminal, Write, jsonrpc
from dragoman.sdk.fields import JsonValue, text
from dragoman.v1 import event_pb2 as pb


class Conversation:
    """The requests of one attempt.

    Args:
        job: the attempt.
        options: what its session is created or resumed with.
        session: learns the session's ID and Copilot's version.
        report: the attempt's.
    """

    def __init__(self, job: Job, options: Mapping[str, JsonValue], session: SessionFrames, report: Report) -> None:
        self.peer, _ = begin()
        self._job = job
        self._options = options
        self._session = session
        self._report = report
        self.is_sent = False
        """The prompt is sent; before, there is nothing to interrupt."""

    def request(self, method: str, params: Mapping[str, object], tag: str) -> Write:
        """Return a request; ``tag`` says what it is for."""
        session = {"sessionId": self._report.session_id} if self._report.session_id else {}
        return Write(jsonrpc.with_length(self.peer.request(method, {**session, **params}, tag)))

    def interrupt(self) -> Iterable[Output]:
        """Ask Copilot to stop what it does."""
        if self._report.terminal is not None:
            return
        if self.is_sent:
            yield self.request("session.abort", {"reason": "user_initiated"}, "abort")
            return
        self._report.terminal = interrupted()
        yield CloseInput()

    def answered(self, response: jsonrpc.Response[str]) -> Iterator[Output]:
        """Handle the answer to a request."""
        if self._report.terminal is not None:
            return
        if response.error is not None:
            yield from self._refused(response.tag, response.error)
        elif response.tag == "connect":
            yield from self._session.connected(text(response.fields, "version"))
            yield self._open()
        elif response.tag == "fork":
            yield self._resume(text(response.fields, "sessionId"))
        elif response.tag == "open":
            self._report.session_id = text(response.fields, "sessionId")
            self._session.now.native_id = self._report.session_id
            self.is_sent = True
            yield self.request("session.send", {"prompt": self._job.prompt, **attached(self._job.images)}, "send")

    def _open(self) -> Output:
        session = self._job.session
        if session.disposition == pb.SESSION_DISPOSITION_FORK:
            return self.request("sessions.fork", {"sessionId": session.native_id}, "fork")
        if session.resumes:
            return self._resume(session.native_id)
        return self.request("session.create", {**self._options, "sessionId": self._job.new_session_id}, "open")

    def _resume(self, native_id: str) -> Output:
        return self.request("session.resume", {**self._options, "sessionId": native_id}, "open")

    def _refused(self, tag: str, error: jsonrpc.RpcError) -> Iterator[Output]:
        if tag in {"answer", "abort"}:
            yield notice(pb.SEVERITY_WARNING, f"{tag}_refused", error.message)
            return
        failure = failure_of_text(error.message, resumed=self._job.session.resumes)
        message = f"Copilot refused the request ({tag}): {error.message[:500]}"
        failure = failure or FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, f"copilot_{tag}", (error.message,))
        self._report.terminal = Terminal(succeeded=False, subtype=f"{tag}_refused", failure=failure)
