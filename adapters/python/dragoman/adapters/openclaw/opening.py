"""The requests that open a session and a turn, each after the answer to the one before. Pure."""

from collections.abc import Iterable
from typing import Final

from dragoman.adapters.openclaw import plan
from dragoman.adapters.openclaw.classify import failure_of
from dragoman.sdk import CloseInput, FailureInfo, Job, Output, Report, Terminal, Write
from dragoman.sdk.fields import Fields, inner, text
from dragoman.v1 import event_pb2 as pb

PLUGIN_METHOD: Final = "dragoman.question"
"""Gateways with the adapter's plugin list it; without the plugin there would be no permission requests."""


class Opening:
    """Opens the session and the turn of one attempt."""

    def __init__(self, job: Job, report: Report) -> None:
        self._job = job
        self._report = report

    def hello(self, frame: Fields) -> Iterable[Output]:
        """Handle the bridge's first line, which lists the gateway's methods."""
        methods = frame.get("methods")
        if isinstance(methods, list) and PLUGIN_METHOD in methods:
            return ()
        message = (
            "The gateway has not loaded the adapter's plugin, so tools would run without permission requests."
            " If openclaw.json has plugins.allow, add `dragoman` to it; plugins.deny must not hold it."
        )
        return self._fail(FailureInfo(pb.FAILURE_KIND_INVALID_CONFIG, message, code="openclaw_plugin_missing"))

    def opened(self, frame: Fields) -> Iterable[Output]:
        """Handle the answer to the request that creates the session or looks it up."""
        resumes = self._job.session.disposition == pb.SESSION_DISPOSITION_RESUME
        if frame.get("ok") is not True:
            message = error_of(frame)
            if self._job.session.resumes and "parent" in message and "not found" in message:
                return self._fail(plan.lost_session(self._job))
            return self._fail(failure_of(message, {}))
        if resumes and not inner(inner(frame, "payload"), "session"):
            return self._fail(plan.lost_session(self._job))
        following = plan.adjusting(self._job) if resumes else plan.turn(self._job)
        questions = [] if self._job.permissions.auto_approve else [Write(plan.next_question(self._job))]
        return [plan.session_event(self._job, self._report), *questions, Write(following)]

    def adjusted(self, frame: Fields) -> Iterable[Output]:
        """Handle the answer to the request that gives a resumed session this run's choices."""
        if frame.get("ok") is not True:
            return self._fail(failure_of(error_of(frame), {}))
        return [Write(plan.turn(self._job))]

    def _fail(self, failure: FailureInfo) -> Iterable[Output]:
        self._report.terminal = Terminal(succeeded=False, failure=failure)
        return [CloseInput()]


def error_of(frame: Fields) -> str:
    """Return the message of an answer that is an error."""
    return text(inner(frame, "error"), "message")
