"""The attempts of one run: at its first adapter, then as the request allows at others, until there is a result.

Each attempt has the run's ID, the next sequences and the next number. A failed attempt ends with ``attempt_ended``;
a notice reports each adapter that rejects the run.
"""

from collections.abc import Awaitable, Callable, Sequence

from dragoman.protocol.budgets import narrowed_budget
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.texts import enum_name
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.policy.circuit_breaker import BreakerKey
from dragoman.router.policy.fallback import (
    fallback_request,
    needs_candidates,
    rejected_result,
    with_remaining_time,
)
from dragoman.router.policy.next_step import Failed, Fallback, Outcome, Rejected, Retry
from dragoman.router.policy.spending import lower, meter
from dragoman.router.runs.actor import Run
from dragoman.router.runs.admission import AdmissionController
from dragoman.router.runs.inputs import Declined, Refused, StatusReported
from dragoman.router.runs.stand_in import StandIn, refuse, stand_in
from dragoman.router.runs.state import Deciding, is_ending, progress_of
from dragoman.router.runs.upstream import UpstreamStream
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_WRITTEN_S = 5.0
"""How long a failed attempt may take to be in the log, so that another one follows."""


class AttemptScheduler:
    """Brings one run from adapter to adapter.

    Args:
        refuse_move: raises what keeps it from going on there, as another adapter works on its task.
        request: what the first adapter gets: one adapter's own settings are no other's.
        prepare: completes that in place, by what is known only once the run has its slot there.
    """

    def __init__(
        self,
        run: Run,
        admission: AdmissionController,
        refuse_move: Callable[[Run, AdapterBackend], Awaitable[None]],
        upstream: UpstreamStream,
        request: adapter_pb2.ExecuteRequest,
        prepare: Callable[[adapter_pb2.ExecuteRequest], Awaitable[None]],
    ) -> None:
        self._run, self._course = run, run.course
        self._admission, self._clock = admission, admission.clock
        self._refuse_move = refuse_move
        self._upstream = upstream
        self._prepare = prepare
        self._first = self._present = request.SerializeToString()
        """What the first adapter gets, and what the present one does: serialized, as both may be large and last."""
        self._own = request.limits.budget.SerializeToString()
        """The caller's budget."""
        self._most: Sequence[pb.Budget] = ()
        """The budgets of the router's operator."""
        self._began = 0.0
        """When its first attempt did, in seconds of a clock that goes evenly."""

    async def go(self, most: Sequence[pb.Budget] = ()) -> None:
        """Start the run at its adapter, and follow it to its end.

        Args:
            most: budgets that all attempts together may use at most.

        Raises:
            DragomanError: no adapter accepts it.
        """
        self._most = most
        self._course.meter = meter(self._own, most)
        outcome = await self._attempts(is_first=True)
        while outcome is not None and not self._run.is_ending and await self._fall_back(outcome):
            outcome = await self._attempts()

    async def _attempts(self, *, is_first: bool = False) -> Outcome | None:
        """Have one adapter try, and retry as often as allowed, in one slot; ``None`` if the run is over then."""
        run, request = self._run, adapter_pb2.ExecuteRequest.FromString(self._present)
        try:
            self._admission.requests.permit(request, run.backend.record.type)
            with await self._admission.slot(run, request) as key:
                await self._complete(request, is_first=is_first)
                del request
                outcome = await self._attempt(key)
                while outcome is not None and isinstance(
                    step := self._course.after(outcome, self._clock.chance()), Retry
                ):
                    outcome = await self._attempt(key) if await self._wait(step, outcome) else None
                return outcome
        except DragomanError as error:
            run.send(Declined())
            return Rejected(error)

    async def _complete(self, request: adapter_pb2.ExecuteRequest, *, is_first: bool) -> None:
        """Complete what an adapter gets, now that the run has its slot there."""
        run = self._run
        if progress_of(run.state).was_queued and not run.is_ending:
            # Another one may have gone elsewhere with the task.
            await self._refuse_move(run, run.backend)
        if unkept := lower(request, self._own, self._most, run.backend.record.description):
            run.notices.warn("budget_unknown", unkept)
        refuse(run, request)
        if is_first and not run.is_ending:
            await self._prepare(request)
        self._present = request.SerializeToString()
        if is_first:
            self._first = self._present

    async def _attempt(self, key: BreakerKey) -> Failed | None:
        self._course.begin()
        with self._admission.attempt(self._run, key):
            if not self._run.is_ending:
                await self._upstream.execute(await self._ask())
        state = self._run.state
        return self._course.failed(state.result.result) if isinstance(state, Deciding) else None

    async def _ask(self) -> StandIn | None:
        """Say what the adapter gets in an attempt that begins now; return who does what it leaves to a router."""
        request = adapter_pb2.ExecuteRequest.FromString(self._present)
        following, helper = await stand_in(self._run, self._in_time(request))
        self._upstream.request = self._present if following is request else following.SerializeToString()
        return helper

    def _in_time(self, request: adapter_pb2.ExecuteRequest) -> adapter_pb2.ExecuteRequest:
        """Return the request for an attempt that begins now, and what is left of the limits of the whole run."""
        now = self._clock.monotonic()
        if self._course.history.failed is None:
            self._began = now
            return request
        following = with_remaining_time(request, now - self._began)
        following.relay.first_sequence = self._run.record.last_sequence + 1
        following.relay.first_attempt = self._run.record.attempt + 1
        if self._course.meter is not None:
            narrowed_budget(following.limits.budget, self._course.meter.used)
        return following

    async def _fall_back(self, outcome: Outcome) -> bool:
        """Bring the run to another adapter; False once it is over."""
        run, before = self._run, self._course.history
        is_first = before.failed is None and before.skipped is None
        if isinstance(outcome, Rejected) and not is_first:
            code, what = ("retry_refused", "retry") if before.retries else ("fallback_refused", "run")
            text = f"Adapter {run.record.adapter!r} rejected the {what}: {outcome.error.message.rstrip('.')}."
            run.notices.record_rejection(code, text)
        found = await self._successor(outcome)
        if run.is_ending:
            return False
        if found is None or progress_of(run.state).is_cancelling:
            await self._end(outcome)
            return False
        name, backend = found
        falling_back = f"falling back to {backend.record.type!r}."
        if isinstance(outcome, Failed):
            kind = enum_name(pb.FailureKind.DESCRIPTOR, outcome.result.failure.kind, "FAILURE_KIND_")
            if not await self._may_go_on(backend.record.type, f"{kind}: {falling_back}"):
                return False
        elif is_first:
            why = f"{outcome.error.message.rstrip('.')}; {falling_back}"
            run.notices.record_rejection("adapter_skipped", why)
        cwd, fallback = self._upstream.intake.cwd, self._course.rules.fallback
        first = adapter_pb2.ExecuteRequest.FromString(self._first)
        self._present = fallback_request(first, name, backend.record.type, cwd, fallback).SerializeToString()
        self._course.history = self._course.history.moved()
        run.move(backend)
        return True

    async def _end(self, outcome: Outcome) -> None:
        """End the run, as no adapter is left that would take it: for its first reason."""
        run, history = self._run, self._course.history
        if isinstance(outcome, Failed):
            await self._upstream.intake.release()
        elif history.failed is not None:
            run.exhaust(history.failed)
        else:
            # One that no adapter took ends as if it never was, unless it was reported as queued.
            error = history.skipped or outcome.error
            result = rejected_result(error) if progress_of(run.state).was_queued else None
            if result is None:
                run.send(Refused(error))
                return
            if needs_candidates(result) and self._course.rules.has_no_fallback:
                result.fallback_candidates.extend(run.suggest(result.failure.kind))
            run.exhaust(result)

    async def _may_go_on(self, next_adapter: str, reason: str) -> bool:
        """End the attempt whose result is withheld, as another one follows; False if that is the run's result.

        Args:
            next_adapter: its type; empty for the same.
            reason: why.
        """
        run = self._run
        is_stored = await run.ledger.flushed(_WRITTEN_S)
        if run.is_ending:
            return False
        if is_stored:
            await run.end_attempt(next_adapter, reason)
        else:
            code = "fallback_refused" if next_adapter else "retry_refused"
            run.notices.record_rejection(code, "The run log is not writable, so no further attempt is started.")
        if isinstance(run.state, Deciding):  # the log fails, or it was cancelled just then
            await self._upstream.intake.release()
        return not run.is_ending

    async def _wait(self, step: Retry, outcome: Failed) -> bool:
        """Wait until the adapter may try again; False if the run is over by then."""
        reason = f"The model API failed before the agent did any work; retrying in {step.delay_s:.1f} s."
        if not await self._may_go_on("", reason):
            return False
        self._course.history = step.history
        state = pb.State(
            phase=pb.RUN_PHASE_RETRYING,
            retry_attempt=step.history.retries,
            reason=reason,
            retry_cause=outcome.result.failure.kind,
        )
        state.retry_delay.FromNanoseconds(int(step.delay_s * 1e9))
        self._run.send(StatusReported(state))
        return not await self._run.until(is_ending, step.delay_s)

    async def _successor(self, outcome: Outcome) -> tuple[str, AdapterBackend] | None:
        """Return the next adapter that is available, with its name in the request; each other one is reported."""
        while not self._run.is_ending and isinstance(
            step := self._course.after(outcome, self._clock.chance()), Fallback
        ):
            self._course.history = step.history
            try:
                backend = await self._admission.find(step.adapter)
                if backend.record.is_rejected:
                    raise backend.refusal()
                await self._refuse_move(self._run, backend)
            except DragomanError as error:
                why = error.message.rstrip(".")
                text = f"Fallback adapter {step.adapter[:64]!r} was skipped: {why}."
                self._run.notices.record_rejection("fallback_refused", text)
            else:
                return step.adapter, backend
        return None
