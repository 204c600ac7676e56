"""The budget of one run, kept where its events are written: it warns, asks, and stops the agent at a cap."""

import asyncio
from functools import partial
from typing import Any, Final, Protocol

from dragoman.protocol.budgets import (
    BUDGET_CONTINUE,
    BUDGET_STOP,
    BudgetMeter,
    Decision,
    at_end_message,
    budget_failure,
    decision_notice,
    unreported_message,
)
from dragoman.protocol.limits import DEFAULT_GRACE_S
from dragoman.sdk._run.inputs import Inputs, Resolution
from dragoman.sdk._run.sent_inputs import OUT_OF_BUDGET, SentInputs
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_OPTIONS: Final = (
    (BUDGET_CONTINUE, pb.INPUT_OPTION_KIND_ALLOW_ONCE, "Go on, with twice the cap"),
    (BUDGET_STOP, pb.INPUT_OPTION_KIND_REJECT_ONCE, "Stop; the session is kept"),
)


class BudgetedRun(Protocol):
    """What the keeper of a budget needs of its run; ``Run`` says what each member means."""

    request: adapter_pb2.ExecuteRequest
    accepted: Any
    counters: pb.RunCounters
    inputs: Inputs
    sent: SentInputs
    attempting: asyncio.Event
    cancellation: Any

    def notice(self, severity: pb.Severity.ValueType, code: str, message: str, hint: str = "") -> None:
        """Write a notice."""

    def cancel(self, grace_s: float, reason: str = "") -> None:
        """Stop the agent."""


class BudgetKeeper:
    """Keeps the budget of one run.

    Args:
        run: the run.
    """

    def __init__(self, run: BudgetedRun) -> None:
        self._run = run
        self._budget = run.request.limits.budget
        self._meter = BudgetMeter(self._budget, asks=run.request.permissions.interactive)
        self._stopped: Decision | None = None

    def observe(self, event: pb.AgentEvent) -> None:
        """Count an event that was written, and do what is due."""
        for decision in self._meter.take(event):
            self._act(decision)
        if event.HasField("started"):
            message = at_end_message(self._budget, event.started.capabilities)
            if message:
                self._run.notice(pb.SEVERITY_INFO, "budget_at_end", message)

    @property
    def is_exceeded(self) -> bool:
        """Whether a cap was exceeded, or the run is stopped near one."""
        return self._stopped is not None or self._meter.exceeded is not None

    def turn_ended(self, usage: pb.Usage | None, *, another: bool) -> bool:
        """Note that a turn has ended.

        Args:
            usage: what it used in all; None if that is unknown.
            another: whether an input waits for another turn of the attempt.

        Returns:
            Whether another turn may begin.
        """
        decisions = []
        if usage is not None and usage.scope == pb.USAGE_SCOPE_RUN:
            of_turn = pb.Usage()
            of_turn.CopyFrom(usage)
            of_turn.scope, of_turn.semantics = pb.USAGE_SCOPE_TURN, pb.USAGE_SEMANTICS_CUMULATIVE
            decisions = self._meter.take(pb.AgentEvent(usage=of_turn))
        self._meter.turn_ended()
        if another:
            decisions += self._meter.turn_begins()
        for decision in decisions:
            if decision.kind != "exceeded":  # nothing runs that could be stopped
                self._act(decision)
        return not self.is_exceeded

    def conclude(self, result: pb.Result) -> None:
        """Count what the end of the run says of its usage, and write into the result that a cap ended it, in place.

        A run that has succeeded meanwhile, or was cancelled before, stays what it is.
        """
        run, notices = self._run, []
        for decision in self._meter.state(result.usage, run.counters):
            if decision.kind != "exceeded":
                notices.append(decision_notice(decision))
        message = unreported_message(self._meter.unreported)
        if message:
            notices.append(("budget_unknown", message))
        if self._stopped is not None and result.outcome == pb.OUTCOME_CANCELLED:
            result.outcome = pb.OUTCOME_FAILED
            result.failure.CopyFrom(budget_failure(self._stopped))
        elif self._meter.exceeded is not None:
            notices.append(decision_notice(self._meter.exceeded))
        if run.attempting.is_set():  # notices have no place outside of attempts
            for notice in notices:
                run.notice(pb.SEVERITY_WARNING, *notice)

    def _act(self, decision: Decision) -> None:
        if decision.kind == "exceeded":
            self._stop(decision)
        elif decision.kind == "ask" and not self._run.cancellation.is_requested:
            self._ask(decision)
        else:
            self._run.notice(pb.SEVERITY_WARNING, *decision_notice(decision))

    def _stop(self, decision: Decision) -> None:
        run = self._run
        if self._stopped is None and not run.cancellation.is_requested:
            self._stopped = decision
            grace_s = getattr(run.accepted, "grace_s", DEFAULT_GRACE_S)
            run.sent.close(OUT_OF_BUDGET)  # else the cancellation would be their reason
            run.cancel(grace_s, f"limits.budget.{decision.cap} is exceeded")

    def _ask(self, decision: Decision) -> None:
        request = pb.InputRequest(
            id=f"budget-{decision.cap}",
            kind=pb.INPUT_KIND_BUDGET,
            title=f"The run has used {decision.used} of {decision.limit}. Go on beyond that?",
            description=f"The agent works on meanwhile, and is stopped at limits.budget.{decision.cap}.",
        )
        for option, kind, label in _OPTIONS:
            request.options.add(id=option, kind=kind, label=label)
        if self._run.inputs.knows(request.id):  # an agent's own request has this name
            self._run.notice(pb.SEVERITY_WARNING, *decision_notice(decision))
            return
        self._run.inputs.open(request).add_done_callback(partial(self._answered, decision))

    def _answered(self, decision: Decision, answered: "asyncio.Future[Resolution]") -> None:
        if answered.cancelled() or answered.result().how == pb.INPUT_RESOLUTION_DROPPED:
            return
        if BUDGET_CONTINUE in answered.result().answer.option_ids:
            self._meter.raise_cap(decision.cap)
        else:
            self._stop(decision)
