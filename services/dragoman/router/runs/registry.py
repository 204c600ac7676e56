"""All runs of this router: accepted, found, ended, forgotten."""

import asyncio
import functools
from collections.abc import Callable, Iterator

from dragoman.protocol.caller import current_caller
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import new_run_id
from dragoman.protocol.limits import ROUTER_ORPHAN_AFTER_S
from dragoman.protocol.tracing import Tracing
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.ports import Clock
from dragoman.router.model.requests import orphan_after_s, safe_labels
from dragoman.router.model.retention import RetainedRuns
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import StoredRun
from dragoman.router.model.tasks import Tasks, nothing
from dragoman.router.policy.sessions import SessionRequest, key_of
from dragoman.router.runs.actor import Run, RunHost
from dragoman.router.runs.admission import AdmissionController
from dragoman.router.runs.attempts import AttemptScheduler
from dragoman.router.runs.cancellation import end_orphan
from dragoman.router.runs.exclusion import TaskExclusion
from dragoman.router.runs.inputs import LeaseLost, Refused
from dragoman.router.runs.sessions import Sessions
from dragoman.router.runs.spending import Spending
from dragoman.router.runs.state import (
    INHERITED,
    Finished,
    Recovering,
    Rejected,
    Superseded,
    assignment_of,
    has_adapter,
    is_over,
)
from dragoman.router.runs.upstream import UpstreamStream
from dragoman.router.storage.run_log import RunLog
from dragoman.v1 import adapter_pb2


class RunRegistry:
    """The runs that this router knows.

    Args:
        reattach_s: how long a broken stream of an adapter is tried to be followed.
    """

    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        reattach_s: float,
        retained: RetainedRuns,
        run_log: RunLog,
        admission: AdmissionController,
    ) -> None:
        self._reattach_s = reattach_s
        self._admission = admission
        self._retained = retained
        self._expiry: asyncio.TimerHandle | None = None
        self.run_log = run_log
        self._runs: dict[str, Run] = {}
        self.sessions = Sessions(run_log, clock, lambda run_id: run.record if (run := self.find(run_id)) else None)
        self.exclusion = TaskExclusion(self.live, run_log)
        self._spending = Spending(run_log, admission.requests)
        self.host = RunHost(clock, tasks, closed=self._closed, orphaned=end_orphan)
        self.tracing = Tracing()
        """Begins the spans of runs."""
        self.ended: Callable[[Run], None] = nothing
        """Called once a run is over, or another router's."""
        run_log.is_in_memory = self._runs.__contains__

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def find(self, run_id: str) -> Run | None:
        """Return a run by its id."""
        return self._runs.get(run_id)

    def live(self) -> list[Run]:
        """Return the runs that are not over."""
        return [run for run in self._runs.values() if not is_over(run.state)]

    def same(self, request: adapter_pb2.ExecuteRequest) -> Run | None:
        """Return the run that this very request started before; ``None`` if its id is new.

        Raises:
            DragomanError: RUN_ID_REUSED: another request did.
        """
        run = self._runs.get(request.run_id) if request.run_id else None
        if run is not None and run.record.digest != self.run_log.digests.digest(request):
            raise taken(request.run_id)
        return run

    def execute(
        self,
        request: adapter_pb2.ExecuteRequest,
        backend: AdapterBackend,
        session: SessionRequest,
        sent: adapter_pb2.ExecuteRequest,
        agent_name: str,
    ) -> Run:
        """Accept a run, and start it at its adapter with this session.

        Args:
            request: what is run; it gets the run's id.
            backend: the adapter.
            session: what is known of the run's session.
            sent: the request as the caller sent it, by which it is known when it is sent again.
            agent_name: the stored agent that filled it; empty for none.
        """
        request.run_id = sent.run_id = request.run_id or new_run_id()
        record = RunRecord(request.run_id, backend.record.type, self.host.clock.time())
        record.digest = self.run_log.digests.digest(sent)
        record.agent_name = agent_name
        record.started_by = current_caller().name
        record.agent_id, record.company_id = request.agent.id, request.agent.company_id
        record.task_key, record.labels = request.task_key, safe_labels(request)
        record.session_key = key_of(session.store_under) if session.store_under is not None else None
        record.orphan_after_s = orphan_after_s(request)
        run = self._add(Run(record, backend, self.host))
        run.span = self.tracing.begin(run.record.adapter, request)
        run.log = run.log.bind(**run.span.trace.fields)
        self._admission.plan(run, request)
        run.session = self.sessions.follow(record, run.notices.warn)
        # The caller's own limit is applied here; for the adapter this router is the client that may get lost.
        request.adapter = backend.record.type
        request.ClearField("batching")  # how the caller gets the events is not how the router gets them
        request.orphan_after.FromSeconds(int(ROUTER_ORPHAN_AFTER_S))
        attempts = AttemptScheduler(
            run,
            self._admission,
            self.exclusion.refuse_move,
            UpstreamStream(run, self.host.clock, self._reattach_s),
            request,
            lambda first: self.sessions.prepare(session, first, run.backend, run.session, run.notices.warn),
        )
        run.start(functools.partial(self._go, run, attempts), "run")
        run.notices.beat(lambda: not has_adapter(run.state))
        return run

    async def _go(self, run: Run, attempts: AttemptScheduler) -> None:
        """Bring the run to its end; it is stored at the latest when it is assigned to a process."""
        try:
            run.ledger.changed()
            if run.record.task_key:
                await run.ledger.begin()
                await self.exclusion.refuse_elsewhere(run.record, run.record.adapter)
            most = await self._spending.admit(run)
            run.log.info("run accepted")
            await attempts.go(most)
        except DragomanError as error:
            run.send(Refused(error))

    def take_over(self, stored: StoredRun, at: Dispatched, backend: AdapterBackend) -> Run:
        """Go on with a run that a router followed which is gone; perhaps this one, before its lease ran out."""
        if (own := self._runs.get(stored.run_id)) is not None:
            self._drop(stored.run_id)
            own.send(LeaseLost())  # the same run takes its place, and its adapter stays here
        record = RunRecord.of_stored(stored)
        run = Run(record, backend, self.host, Recovering(INHERITED, at))
        run.session = self.sessions.follow(record, run.notices.warn)
        self._add(run, stored)
        # A client that held it may come back, as after a stream that the server ended.
        run.keepalive.acquire()
        run.keepalive.release(by_server=True)
        return run

    async def follow(self, run: Run) -> None:
        """Follow a run that was taken over, to its end, at the process that it is pinned to."""
        with self._admission.kept(run):
            await self._spending.recall(run)
            await UpstreamStream(run, self.host.clock, self._reattach_s).follow_on()

    def _add(self, run: Run, stored: StoredRun | None = None) -> Run:
        remark = functools.partial(run.notices.warn, each_time=True)
        run.ledger = self.run_log.follow(
            run.record, lambda: assignment_of(run.state), remark, lambda: run.send(LeaseLost()), stored
        )
        self._runs[run.run_id] = run
        return run

    def _closed(self, run: Run) -> None:
        self.ended(run)
        if isinstance(run.state, Rejected):
            run.ledger.remove()
        if self._runs.get(run.run_id) is not run:
            return  # this router has recovered its own run
        if isinstance(run.state, Finished) and not run.record.is_free:
            self._retained.add(run.run_id, run.fanout.kept_bytes, self.host.clock.monotonic())
            self._expire()
            return
        self._drop(run.run_id)  # it is found through the log, or its request starts it anew at whichever router
        if isinstance(run.state, Superseded) and run.instance is not None and run.ledger.is_begun:
            run.backend.lose(run.instance)

    def _expire(self) -> None:
        now = self.host.clock.monotonic()
        for run_id in self._retained.expired(now):
            self._drop(run_id)
        if self._expiry is not None:
            self._expiry.cancel()
        if (left_s := self._retained.next_end_s(now)) is not None:
            self._expiry = asyncio.get_running_loop().call_later(left_s, self._expire)

    def _drop(self, run_id: str) -> None:
        self._retained.discard(run_id)
        if (run := self._runs.pop(run_id, None)) is not None:
            run.fanout.release()


def taken(run_id: str) -> DragomanError:
    """Return the error for an id that another request has."""
    return DragomanError(
        Reason.RUN_ID_REUSED,
        f"Run {run_id!r} already exists with a different request; choose another run ID.",
        {"run_id": run_id},
    )
