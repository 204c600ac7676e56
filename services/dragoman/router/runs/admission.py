"""What admits a run to an adapter: a slot there, and the circuit breaker of its login."""

import functools
from collections.abc import Awaitable, Callable, Mapping

from dragoman.protocol.errors import DragomanError
from dragoman.protocol.logs import Logger
from dragoman.protocol.signals import Signal
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.model.ports import Clock, RequestPolicy
from dragoman.router.model.tasks import Changes, Held, first_of, nothing
from dragoman.router.policy.circuit_breaker import CRASHES, BreakerKey, CircuitBreakers, Rejection, breaker_open
from dragoman.router.policy.concurrency import MAX_QUEUED, ConcurrencyLimiter, full, longest_wait_s
from dragoman.router.policy.fallback import candidates, others_may_succeed
from dragoman.router.policy.login import breaker_key
from dragoman.router.policy.next_step import Rules
from dragoman.router.runs.actor import Run
from dragoman.router.runs.course import Course
from dragoman.router.runs.inputs import StatusReported
from dragoman.router.runs.state import Deciding, is_ending
from dragoman.router.storage.run_log import RunLog
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

_UNASKED = adapter_pb2.ExecuteRequest()
"""A request that says nothing of fallback and admission, as of most runs; one for all, as each takes a kilobyte."""

_log = Logger("dragoman.router")


class AdmissionPolicy(Struct, frozen=True):
    """What the router's configuration says of it; see ``RouterConfig``."""

    max_runs: Mapping[str, int] = field(default_factory=dict)
    upstream_retries: int = 2
    breaker_crashes: int = CRASHES


class AdmissionController:
    """Admits runs to adapters.

    Args:
        changes: wakes who waits for the list of adapters to change.
        run_log: has the key of digests.
        find: returns an adapter by its name, or raises ADAPTER_NOT_FOUND.
    """

    def __init__(
        self,
        clock: Clock,
        changes: Changes,
        run_log: RunLog,
        policy: AdmissionPolicy,
        find: Callable[[str], Awaitable[AdapterBackend]],
        requests: RequestPolicy,
    ) -> None:
        self.clock = clock
        self._changes = changes
        self._run_log = run_log
        self._policy = policy
        self.limiter = ConcurrencyLimiter(policy.max_runs)
        self.breakers = CircuitBreakers(policy.breaker_crashes)
        self.find = find
        self.requests = requests
        self.detections: Callable[[], list[adapter_pb2.Detection]] = list
        """Returns what was found of agents so far."""

    def plan(self, run: Run, request: adapter_pb2.ExecuteRequest) -> None:
        """Plan the attempts of a run; what its request says of fallback and admission is taken out."""
        options = _UNASKED
        if request.HasField("fallback") or request.HasField("admission"):
            options = adapter_pb2.ExecuteRequest(fallback=request.fallback, admission=request.admission)
            request.ClearField("fallback")
            request.ClearField("admission")
        run.course = Course(Rules(options.fallback, self._policy.upstream_retries), options.admission)
        run.suggest = lambda kind: self._candidates(run.record.adapter, kind)

    async def slot(self, run: Run, request: adapter_pb2.ExecuteRequest) -> Held[BreakerKey]:
        """Give a run a slot at the adapter that will get this request, for all attempts there, until the block's end.

        Returns:
            the slot, which has the key of the circuit breaker.

        Raises:
            DragomanError: BREAKER_OPEN, TOO_MANY_RUNS for as long as the caller waits, or there is no adapter.
        """
        if run.backend.record.description is None:
            # How many runs it can have, it says once it was started, which it will be.
            with await run.backend.use():
                pass
        asked = run.course.admission
        key = breaker_key(run.backend.record.type, request, self._run_log.digests.keyed)
        opened = self.breakers.rejection(key, run.run_id, self.clock.time())
        if opened is not None and not asked.ignore_breaker:
            raise _refusal(run, key.adapter, opened)
        wait_s, record = longest_wait_s(asked), run.backend.record
        most = record.description.capabilities.max_concurrent_runs if record.description is not None else 0
        most *= run.backend.process_count
        limit, adapter, granted = self.limiter.limit(record.type, record.names, most), record.type, Signal()
        is_crowded = self.limiter.queued(adapter) >= MAX_QUEUED
        slot = self.limiter.acquire(adapter, limit, granted.set)
        try:
            if not granted.is_set() and wait_s and not is_crowded:
                await self._wait(run, granted, wait_s)
        except BaseException:
            self.limiter.release(slot)
            raise
        if not granted.is_set() and not run.is_ending:
            self.limiter.release(slot)
            raise full(adapter, limit, waited=bool(wait_s))
        return Held(key, functools.partial(self.limiter.release, slot))

    def attempt(self, run: Run, key: BreakerKey) -> Held[None]:
        """Admit a run that has a slot to one attempt, the block; the result is recorded in its breaker.

        Raises:
            DragomanError: BREAKER_OPEN.
        """
        course = run.course
        if not run.is_ending:
            # Asked again, as it may have opened while the run waited for its slot.
            is_forced = course.admission.ignore_breaker
            opened = self.breakers.admit(key, run.run_id, self.clock.time(), is_forced=is_forced)
            if opened is not None:
                raise _refusal(run, key.adapter, opened)
            if self.breakers.is_probe(key, run.run_id):
                self._changes.notify()
        course.on_progress = functools.partial(self._works, key, run)
        return Held(None, functools.partial(self._note, key, run))

    def kept(self, run: Run) -> Held[None]:
        """Count a run that another router admitted until the block's end; it gets a slot beyond the limit, too."""
        slot = self.limiter.acquire(run.record.adapter, None, nothing)
        return Held(None, functools.partial(self.limiter.release, slot))

    async def _wait(self, run: Run, granted: Signal, wait_s: float) -> None:
        await run.ledger.begin()  # from now on the caller has its ID
        reason = f"waiting for a slot of adapter {run.record.adapter!r}"
        run.send(StatusReported(pb.State(phase=pb.RUN_PHASE_QUEUED, reason=reason)))
        run.log.info("run queued", longest_wait_s=wait_s)
        self._changes.notify()
        await first_of(granted.wait(), run.until(is_ending), timeout_s=wait_s)
        if run.record.phase == pb.RUN_PHASE_QUEUED:
            run.record.phase = pb.RUN_PHASE_STARTING
        self._changes.notify()

    def _note(self, key: BreakerKey, run: Run) -> None:
        was_probe, has_changed, now = self.breakers.is_probe(key, run.run_id), False, self.clock.time()
        result = run.state.result.result if isinstance(run.state, Deciding) else run.record.result
        if result is None:
            self.breakers.release(key, run.run_id)
        else:
            has_changed = self.breakers.record_result(key, run.run_id, result, now, did_work=run.course.did_work)
        if has_changed:
            open_ = bool(self.breakers.opened(key.adapter, now))
            _log.warning("circuit breaker changed", adapter=key.adapter, run_id=run.run_id, open=open_)
        if has_changed or was_probe:
            self._changes.notify()

    def _works(self, key: BreakerKey, run: Run) -> None:
        """Note that a run's agent works, and so its login: no other run need wait for the end of this one."""
        run.course.on_progress = nothing
        if self.breakers.record_progress(key, run.run_id):
            _log.info("circuit breaker closed", adapter=key.adapter, run_id=run.run_id, why="probe run made progress")
            self._changes.notify()

    def login_restored(self, adapter: str, since: float) -> None:
        """Take note that the machine's own login is good again, as it was looked at then."""
        if self.breakers.reset(adapter, since):
            _log.info("circuit breaker closed", adapter=adapter, why="login restored")
            self._changes.notify()

    def _candidates(self, failed: str, kind: pb.FailureKind.ValueType) -> list[str]:
        now = self.clock.time()
        found = candidates(self.detections(), failed, kind)
        return [name for name in found if not any(not key.login for key, _ in self.breakers.opened(name, now))]


def _refusal(run: Run, adapter: str, opened: Rejection) -> DragomanError:
    others = (
        run.suggest(opened.cause) if others_may_succeed(opened.cause) and run.course.rules.has_no_fallback else []
    )
    return breaker_open(adapter, opened, others)
