"""An agent's questions: decided by policy, or put to the caller, and the answers in the agent's own form."""

import contextlib
from collections.abc import Callable

from dragoman.protocol.order import OrderError
from dragoman.sdk._output.parser import Answer, Ask
from dragoman.sdk._request.job import Job
from dragoman.sdk._run.inputs import Resolution
from dragoman.sdk._run.permissions import decide
from dragoman.sdk._run.run import Run
from dragoman.v1 import event_pb2 as pb

_ALLOWING = (pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_ALLOW_ALWAYS)
_REFUSING = (
    *(pb.INPUT_OPTION_KIND_REJECT_ONCE, pb.INPUT_OPTION_KIND_REJECT_ALWAYS),
    pb.INPUT_OPTION_KIND_UNSPECIFIED,
)


class Questions:
    """The questions of one attempt.

    Args:
        run: the run.
        job: the attempt's.
        write: writes to the agent's standard input.
        on_change: called when a question was opened or has ended.
        on_failure: called with an exception of the adapter's own code that kept an answer from the agent.
    """

    def __init__(
        self,
        run: Run,
        job: Job,
        write: Callable[[bytes], None],
        on_change: Callable[[], None],
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self._run = run
        self._job = job
        self._write = write
        self._on_change = on_change
        self._on_failure = on_failure

    def ask(self, ask: Ask, *, is_ending: bool) -> None:
        """Handle a question.

        Args:
            ask: the question.
            is_ending: whether the attempt is being stopped or has reported its end; no question is asked then.
        """
        ask.request.id = self._run.turns.own_id(ask.request.id)
        decision = self._decide(ask, is_ending=is_ending)
        if decision == pb.PERMISSION_DECISION_ASK:
            # Now, not in a task: what the agent says next may already withdraw it.
            self._emit_call(ask, pb.TOOL_STATUS_AWAITING_PERMISSION)
            answered = self._run.inputs.open(ask.request, ask.lineage)
            answered.add_done_callback(lambda done: self._answered(ask, done.result()))
            self._on_change()
            return
        allowed = decision == pb.PERMISSION_DECISION_ALLOW
        if not allowed:
            self._emit_denied(ask.request)
        self._reply(ask, _policy_answer(ask.request, allowed=allowed))

    def _decide(self, ask: Ask, *, is_ending: bool) -> pb.PermissionDecision.ValueType:
        request = ask.request
        if request.kind == pb.INPUT_KIND_PERMISSION:
            decision = decide(self._job.permissions, request.subject, cwd=self._job.settings.cwd)
        else:
            decision = pb.PERMISSION_DECISION_ASK if self._job.interactive else pb.PERMISSION_DECISION_DENY
        # A question asked twice under one id cannot be distinguished from the first.
        if decision == pb.PERMISSION_DECISION_ASK and (is_ending or self._run.inputs.knows(request.id)):
            return pb.PERMISSION_DECISION_DENY
        return decision

    def _emit_denied(self, request: pb.InputRequest) -> None:
        if request.kind == pb.INPUT_KIND_PERMISSION:
            what = request.subject.tool_name or request.title
            hint = "Allow it with a rule in permissions, or run with permissions.interactive and answer."
            self._run.notice(pb.SEVERITY_WARNING, "permission_denied", f"{what} was denied by policy.", hint)
        else:
            hint = "Run with permissions.interactive and answer."
            self._run.notice(
                pb.SEVERITY_WARNING,
                "question_declined",
                "The agent asked a question, and the run is unattended.",
                hint,
            )

    def _answered(self, ask: Ask, resolution: Resolution) -> None:
        self._on_change()
        if resolution.how == pb.INPUT_RESOLUTION_DROPPED:
            return
        answer = _answer_of(ask.request, resolution)
        if answer.allowed:
            self._emit_call(ask, pb.TOOL_STATUS_RUNNING, answer.updated_input_json)
        self._reply(ask, answer)

    def _reply(self, ask: Ask, answer: Answer) -> None:
        try:
            self._write(ask.encode(answer))
        except Exception as error:
            if self._on_failure is None:
                raise
            self._on_failure(error)  # without an answer the agent waits

    def _emit_call(self, ask: Ask, status: pb.ToolStatus.ValueType, input_json: str = "") -> None:
        """Emit that a tool call waits for its permission, or continues with it; only the run loop knows both."""
        subject = ask.request.subject
        if ask.request.kind != pb.INPUT_KIND_PERMISSION or not subject.tool_call_id:
            return
        call = pb.ToolCall(id=subject.tool_call_id, name=subject.tool_name, kind=subject.tool_kind)
        call.status, call.input_json = status, input_json
        event = pb.AgentEvent(tool_call=call, origin=pb.EVENT_ORIGIN_ADAPTER)
        if ask.lineage is not None:
            event.lineage.CopyFrom(ask.lineage)
        with contextlib.suppress(OrderError):  # the attempt may be over by now
            self._run.emit(event)


def _policy_answer(request: pb.InputRequest, *, allowed: bool) -> Answer:
    if request.kind != pb.INPUT_KIND_PERMISSION:
        return Answer(allowed=False)  # policy knows no answers, only refusals
    # Once before always, in whatever order the agent lists them: policy decides about each anew.
    by_kind = {item.kind: item for item in reversed(request.options)}
    kinds = _ALLOWING if allowed else _REFUSING
    option = next((by_kind[kind] for kind in kinds if kind in by_kind), None)
    message = "" if allowed else "Not allowed by this run's permission policy."
    return Answer(allowed=allowed, option=option, chosen=(option,) if option else (), message=message)


def _answer_of(request: pb.InputRequest, resolution: Resolution) -> Answer:
    answer, option = resolution.answer, resolution.option(request)
    if request.kind == pb.INPUT_KIND_PERMISSION:
        allowed = option is not None and option.kind in _ALLOWING
    else:
        allowed = bool(answer.option_ids or answer.text or answer.value_json)
    return Answer(
        allowed=allowed,
        option=option,
        chosen=tuple(item for item in request.options if item.id in answer.option_ids),
        updated_input_json=answer.updated_input_json,
        text=answer.text,
        value_json=answer.value_json,
        message=answer.message,
    )
