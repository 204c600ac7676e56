"""An agent's questions: decided by policy, or put to the caller, and the answers in the agent's own form."""

from collections.abc import Callable

from dragoman.sdk._inputs import Resolution
from dragoman.sdk._job import Job
from dragoman.sdk._parser import Answer, Ask
from dragoman.sdk._permissions import decide
from dragoman.sdk._run import Run
from dragoman.v1 import event_pb2 as pb

_ALLOWING = (pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_ALLOW_ALWAYS)


class Questions:
    """The questions of one attempt.

    Args:
        run: the run.
        job: the attempt's.
        write: writes to the agent's standard input.
        on_change: called when a question was opened or has ended.
    """

    def __init__(self, run: Run, job: Job, write: Callable[[bytes], None], on_change: Callable[[], None]) -> None:
        self._run = run
        self._job = job
        self._write = write
        self._on_change = on_change

    def ask(self, ask: Ask, *, is_ending: bool) -> None:
        """Take a question.

        Args:
            ask: the question.
            is_ending: whether the attempt is being stopped or has said its last word; nobody is asked then.
        """
        decision = self._decide(ask.request, is_ending=is_ending)
        if decision == pb.PERMISSION_DECISION_ASK:
            # Now, not in a task: what the agent says next may already withdraw it.
            answered = self._run.inputs.open(ask.request)
            answered.add_done_callback(lambda done: self._answered(ask, done.result()))
            self._on_change()
            return
        allowed = decision == pb.PERMISSION_DECISION_ALLOW
        if not allowed:
            self._tell_denied(ask.request)
        option = next((item for item in ask.request.options if (item.kind in _ALLOWING) == allowed), None)
        message = "" if allowed else "Not allowed by this run's permission policy."
        self._write(ask.encode(Answer(allowed=allowed, option=option, message=message)))

    def _decide(self, request: pb.InputRequest, *, is_ending: bool) -> pb.PermissionDecision.ValueType:
        if request.kind == pb.INPUT_KIND_PERMISSION:
            decision = decide(self._job.permissions, request.subject, cwd=self._job.settings.cwd)
        else:
            decision = pb.PERMISSION_DECISION_ASK if self._job.interactive else pb.PERMISSION_DECISION_DENY
        # A question asked twice under one id cannot be told apart from the first.
        if decision == pb.PERMISSION_DECISION_ASK and (is_ending or self._run.inputs.knows(request.id)):
            return pb.PERMISSION_DECISION_DENY
        return decision

    def _tell_denied(self, request: pb.InputRequest) -> None:
        if request.kind == pb.INPUT_KIND_PERMISSION:
            what = request.subject.tool_name or request.title
            hint = "Allow it with a rule in permissions, or run with permissions.interactive and answer."
            self._run.notice(pb.SEVERITY_WARNING, "permission_denied", f"{what} was denied by policy.", hint)
        else:
            hint = "Run with permissions.interactive and answer."
            self._run.notice(pb.SEVERITY_WARNING, "question_declined", "The agent asked; nobody is there.", hint)

    def _answered(self, ask: Ask, resolution: Resolution) -> None:
        self._on_change()
        if resolution.how == pb.INPUT_RESOLUTION_DROPPED:
            return
        answer, option = resolution.answer, resolution.option(ask.request)
        self._write(
            ask.encode(
                Answer(
                    allowed=option is not None and option.kind in _ALLOWING,
                    option=option,
                    updated_input_json=answer.updated_input_json,
                    text=answer.text,
                    value_json=answer.value_json,
                    message=answer.message,
                )
            )
        )
