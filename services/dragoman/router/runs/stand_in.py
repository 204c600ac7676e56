"""What the router does for an attempt at an adapter that does not declare a duty: ``dragoman.protocol.duties``."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from dragoman.protocol.budgets import (
    BudgetMeter,
    at_end_message,
    budget_failure,
    decision_notice,
    unreported_message,
)
from dragoman.protocol.clocks import FAILURE_BY_CLOCK, Clock, ClockLimits, Clocks
from dragoman.protocol.duties import ALL_DUTIES
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.failures import is_retryable
from dragoman.protocol.outgoing import redacted_error
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.protocol.work import note_work
from dragoman.router.policy.duties import default_answer, refuse_unsupported, rewritten
from dragoman.router.policy.event_redaction import EventRedactor
from dragoman.router.policy.output_limit import OutputLimit
from dragoman.router.runs.actor import Run
from dragoman.router.runs.cancellation import end_at_adapter
from dragoman.router.runs.sending import send
from dragoman.router.runs.state import progress_of
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

_ALL: Final = frozenset(ALL_DUTIES)
_WITHOUT_BUDGET: Final = _ALL - {adapter_pb2.DUTY_BUDGETS}
"""What there is to do for a run without a budget."""
_MOST_MISSING: Final = 50
"""Values missing in a template that are reported."""
_SUCCEEDED: Final = pb.OUTCOME_SUCCEEDED
_ASKS: Final = {pb.FEATURE_PERMISSION_REQUESTS, pb.FEATURE_INPUT_REQUESTS}


def refuse(run: Run, request: adapter_pb2.ExecuteRequest) -> None:
    """Refuse what the run's adapter cannot honour and would not refuse itself.

    Raises:
        DragomanError: NOT_SUPPORTED, CAPABILITY_MISSING or INVALID_REQUEST.
    """
    description = run.backend.record.description
    if description is not None:
        refuse_unsupported(request, description)


async def stand_in(
    run: Run, request: adapter_pb2.ExecuteRequest
) -> tuple[adapter_pb2.ExecuteRequest, "StandIn | None"]:
    """Return what the run's adapter gets, and who does the rest; ``None`` if it does all itself.

    Raises:
        DragomanError: INVALID_REQUEST of a template or a limit.
    """
    run.grace = None
    description = run.backend.record.description
    if description is None or (_ALL if request.limits.budget.ByteSize() else _WITHOUT_BUDGET) <= set(
        description.duties
    ):
        return request, None
    # Beside the loop: a request may have 16 MiB.
    following, missing = await asyncio.to_thread(rewritten, request, frozenset(description.duties))
    for path in missing[:_MOST_MISSING]:
        message = f"The template's {{{{{path}}}}} is not set; it was replaced by nothing."
        run.notices.warn("template_value_missing", message)
    redactor = None
    if adapter_pb2.DUTY_REDACTION not in description.duties:
        redactor = await asyncio.to_thread(lambda: Redactor(request_secrets(request)))
    return following, StandIn(run, request, description, redactor)


class StandIn:
    """Bounds one attempt, and answers its questions where no client does.

    Args:
        run: the run.
        request: as it was before it was rewritten for the adapter.
        description: the adapter's.
        redactor: knows the request's secrets; ``None`` if the adapter redacts its events.
    """

    def __init__(
        self,
        run: Run,
        request: adapter_pb2.ExecuteRequest,
        description: adapter_pb2.DescribeResponse,
        redactor: Redactor | None,
    ) -> None:
        self._redactor = redactor
        self._redacted = EventRedactor(redactor) if redactor is not None else None
        limits = request.limits if adapter_pb2.DUTY_LIMITS not in description.duties else pb.Limits()
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._limits = ClockLimits(
            start_up_s=_seconds(limits.start_up),
            idle_s=_seconds(limits.idle),
            wall_s=_seconds(limits.wall),
            tool_call_s=_seconds(limits.tool_call),
        )
        self._clocks = Clocks(self._limits, self._loop.time())
        self._changed = asyncio.Event()
        self._ending: pb.Result | None = None
        """How the attempt ends, as it exceeded a limit or its budget."""
        budget = request.limits.budget if adapter_pb2.DUTY_BUDGETS not in description.duties else pb.Budget()
        self._meter = BudgetMeter(budget) if budget.ByteSize() else None
        if message := at_end_message(budget, description.capabilities):
            run.notices.warn("budget_at_end", message)
        self._output = OutputLimit(limits.output_bytes) if limits.output_bytes else None
        if limits.HasField("grace"):
            run.grace = limits.grace
        self._answers = adapter_pb2.DUTY_UNATTENDED not in description.duties
        self._is_attended = request.permissions.interactive
        self._answer_after_s = _seconds(request.permissions.request_timeout)
        self._timers: dict[str, asyncio.TimerHandle | None] = {}
        """The input requests without an answer; the timer of one that expires."""
        self._resolutions: dict[str, pb.InputResolution.ValueType] = {}
        """Why input requests were answered here."""
        may_ask = any(item.feature in _ASKS for item in description.capabilities.items)
        has_secrets = redactor is not None and bool(request_secrets(request))
        has_limits = bool(limits.ByteSize()) or self._meter is not None
        self.is_needed = has_secrets or has_limits or (self._answers and may_ask)
        """Whether the attempt must not go on without it, as another router would have it."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the limits of time while the block runs; the adapter's error gets redacted as its events do."""
        self._clocks.accepted_at = self._loop.time()
        watch = self._run.tasks.start(self._watch(), f"watch {self._run.run_id}")
        try:
            yield
        except DragomanError as error:
            if self._redactor is None:
                raise
            raise redacted_error(error, self._redactor) from error
        finally:
            watch.cancel()
            for timer in self._timers.values():
                if timer is not None:
                    timer.cancel()

    def restart(self) -> None:
        """Take note that the adapter's stream begins anew."""
        if self._redacted is not None:
            self._redacted.restart()

    def take(self, event: pb.AgentEvent, data: bytes) -> list[tuple[pb.AgentEvent, bytes]]:
        """Take note of an event, and return what callers get now: it, the one before too, or nothing yet."""
        if event.sequence and event.sequence <= self._run.record.last_sequence:
            return [(event, data)]  # known from a stream before
        is_changed, ready = bool(event.sequence) and self._note(event), [event]
        if self._redacted is not None:
            is_changed, ready = True, self._redacted.take(event)
        if self._output is not None:
            for one in ready:
                is_changed = self._cut(self._output, one) or is_changed
        return [(one, one.SerializeToString() if is_changed else data) for one in ready]

    def _note(self, event: pb.AgentEvent) -> bool:
        kind, now = event.WhichOneof("body"), self._loop.time()
        if kind == "started":
            self._clocks.spawned(now)
        elif event.origin == pb.EVENT_ORIGIN_AGENT:
            self._clocks.activity(now)
        if self._clocks.observe(event, now) or kind in {"started", "input_request", "input_resolved"}:
            self._changed.set()
        if kind == "input_request":
            return self._ask(event.input_request)
        if kind == "input_resolved":
            return self._resolve(event.input_resolved)
        if self._meter is not None:
            self._count(self._meter, event)
        if kind == "result" and self._ending is not None and event.result.outcome != _SUCCEEDED:
            failure = event.result.failure
            begun = failure.work_begun if failure.HasField("work_begun") else None
            event.result.outcome = self._ending.outcome
            failure.CopyFrom(self._ending.failure)
            note_work(failure, begun)
            return True
        return False

    def _count(self, meter: BudgetMeter, event: pb.AgentEvent) -> None:
        is_over, notices = event.HasField("result"), self._run.notices
        for decision in meter.take(event):
            if decision.kind != "exceeded":
                notices.warn(*decision_notice(decision))
            elif self._ending is None and not is_over and not progress_of(self._run.state).is_cancelling:
                self._ending = pb.Result(outcome=pb.OUTCOME_FAILED, failure=budget_failure(decision))
                self._changed.set()
        if is_over and meter.exceeded is not None and (self._ending is None or event.result.outcome == _SUCCEEDED):
            notices.warn(*decision_notice(meter.exceeded))
        if is_over and (message := unreported_message(meter.unreported)):
            notices.warn("budget_unknown", message)

    def _cut(self, output: OutputLimit, event: pb.AgentEvent) -> bool:
        was_exceeded = output.is_exceeded
        output.cut(event, event.WhichOneof("body"))
        if output.is_exceeded and not was_exceeded:
            self._run.notices.warn("output_cut", "The run's output exceeds limits.output_bytes; more is discarded.")
        return output.is_exceeded

    def _ask(self, asked: pb.InputRequest) -> bool:
        self._timers[asked.id] = None
        self._clocks.waiting(self._loop.time(), is_waiting=True)
        if not self._answers:
            return False
        answer = default_answer(asked)
        if not self._is_attended:
            self._answer(asked.id, answer, pb.INPUT_RESOLUTION_POLICY)
            what = f"{asked.subject.tool_name or asked.title or asked.id}"
            what = self._redactor.text(what) if self._redactor is not None else what
            text = f"{what} was declined, as the run is unattended."
            is_permission = asked.kind == pb.INPUT_KIND_PERMISSION
            self._run.notices.warn("permission_denied" if is_permission else "question_declined", text)
        elif self._answer_after_s is not None:
            self._timers[asked.id] = self._loop.call_later(
                self._answer_after_s, self._answer, asked.id, answer, pb.INPUT_RESOLUTION_EXPIRED
            )
        return False

    def _answer(self, request_id: str, answer: pb.InputAnswer, why: pb.InputResolution.ValueType) -> None:
        self._resolutions[request_id] = why
        self._run.tasks.start(self._respond(request_id, answer), f"answer {self._run.run_id}")

    async def _respond(self, request_id: str, answer: pb.InputAnswer) -> None:
        run = self._run
        request = adapter_pb2.RespondRequest(run_id=run.run_id, request_id=request_id, answer=answer)
        request.responder = "router"
        try:
            await send(run, request, request.SerializeToString())
        except DragomanError as error:
            run.log.info("input request not answered", code=error.code.name)

    def _resolve(self, resolved: pb.InputResolved) -> bool:
        timer = self._timers.pop(resolved.id, None)
        if timer is not None:
            timer.cancel()
        if not self._timers:
            self._clocks.waiting(self._loop.time(), is_waiting=False)
        why = self._resolutions.pop(resolved.id, None)
        if why is None or resolved.resolution != pb.INPUT_RESOLUTION_ANSWERED or resolved.responder != "router":
            return False
        resolved.resolution = why
        resolved.ClearField("responder")
        return True

    async def _watch(self) -> None:
        while self._ending is None:
            self._changed.clear()
            due, now = self._clocks.next(), self._loop.time()
            if due is not None and due[0] <= now:
                if progress_of(self._run.state).is_cancelling:
                    return  # it ends anyway
                self._ending = _timed_out(due[1])
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due[0] if due is not None else None):
                        await self._changed.wait()
        await end_at_adapter(self._run, self._ending)


def _seconds(duration: duration_pb2.Duration) -> float | None:
    return duration.ToNanoseconds() / 1e9 or None


def _timed_out(clock: Clock) -> pb.Result:
    kind = FAILURE_BY_CLOCK[clock]
    message = f"The run exceeded limits.{clock}. Raise the limit if the task needs more time."
    failure = pb.Failure(kind=kind, code=f"{clock}_limit", message=message, retryable=is_retryable(kind))
    return pb.Result(outcome=pb.OUTCOME_TIMED_OUT, failure=failure)
