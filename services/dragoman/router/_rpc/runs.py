"""All runs of this router: accepted, found, ended, forgotten."""

import asyncio
import functools
import itertools
import json
from collections.abc import Iterator
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.holding import Holders
from dragoman.protocol.identity import new_run_id
from dragoman.protocol.limits import RETAIN_FINISHED_S, ROUTER_ORPHAN_AFTER_S
from dragoman.router._domain.requests import orphan_after_s, safe_labels
from dragoman.router._domain.run_states import RunState, Step
from dragoman.router._domain.runs import Retention, RunRecord
from dragoman.router._domain.sessions import strip
from dragoman.router._domain.stored import StoredRun
from dragoman.router._rpc.admitting import Admitting
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.journey import Journey
from dragoman.router._rpc.keeping import Keeping
from dragoman.router._rpc.link import first_of
from dragoman.router._rpc.pump import Pump, call_off
from dragoman.router._rpc.run import Run
from dragoman.router._rpc.scene import Scene
from dragoman.router._rpc.sessions import Found, Sessions
from dragoman.router._rpc.steering import end_orphan
from dragoman.router._store.logged import LoggedRun
from dragoman.v1 import adapter_pb2

_REMEMBERED_S: Final = RETAIN_FINISHED_S / 10
"""The age up to which an adapter is sure to know a run still that it ever got; far less than it keeps one."""
_NOT_BEGUN: Final = "had not got the run yet when the router that had accepted it ended, nor was it asked for again"


class Runs:
    """The runs that this router knows.

    Args:
        scene: what the router's parts share.
        retention: what is kept of runs that are over, in memory.
        keeping: keeps all runs for longer.
        admitting: decides where and when they run.
    """

    def __init__(self, scene: Scene, retention: Retention, keeping: Keeping, admitting: Admitting) -> None:
        self._scene = scene
        self._admitting = admitting
        self._retention = retention
        self.keeping = keeping
        self._runs: dict[str, Run] = {}
        self.sessions = Sessions(keeping, scene.clock, self._find_record)
        self._numbers = itertools.count(1)
        keeping.is_in_memory = self._runs.__contains__

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def find(self, run_id: str) -> Run | None:
        """Return a run by its id."""
        return self._runs.get(run_id)

    def live(self) -> list[Run]:
        """Return the runs that are not over."""
        return [run for run in self._runs.values() if not run.over.is_set()]

    def same(self, request: adapter_pb2.ExecuteRequest) -> Run | None:
        """Return the run that this very request started before; ``None`` if its id is new.

        Raises:
            DragomanError: RUN_ID_REUSED: another request did.
        """
        run = self._runs.get(request.run_id) if request.run_id else None
        if run is not None and run.record.digest != self.keeping.digests.digest(request):
            raise taken(request.run_id)
        return run

    def refuse_switch(self, request: adapter_pb2.ExecuteRequest, host: Host) -> None:
        """Refuse to have two adapters at one task of one agent: they would work in one place on the same thing.

        Raises:
            DragomanError: SESSION_BUSY: another adapter's run, that is followed here, goes on with the task.
        """
        self._refuse_beside((request.agent.company_id, request.agent.id, request.task_key), host)

    def _refuse_beside(self, task: tuple[str, str, str], host: Host, but: Run | None = None) -> None:
        for run in self.live() if task[-1] else ():
            record = run.record
            # For a move: whose attempt has failed, too, or no adapter has, is not at work.
            is_idle = but is not None and (run.is_between or run.is_at_no_adapter)
            is_other = run is not but and run.host is not host and not is_idle
            if is_other and (record.company_id, record.agent_id, record.task_key) == task:
                raise _busy(run.run_id, record.adapter)

    async def _refuse_move(self, run: Run, host: Host) -> None:
        """Do the same for a run that is about to go on at another adapter.

        Raises:
            DragomanError: SESSION_BUSY.
        """
        record = run.record
        await self._refuse_switch_elsewhere(record, host.record.type)
        self._refuse_beside((record.company_id, record.agent_id, record.task_key), host, but=run)

    async def _refuse_switch_elsewhere(self, record: RunRecord, adapter: str) -> None:
        """Do the same for runs of other routers, once this run is written down: of two, at least one sees the other.

        Raises:
            DragomanError: SESSION_BUSY.
        """
        if record.task_key and (other := await self._elsewhere(record, adapter)) is not None:
            raise _busy(other.run_id, other.adapter)

    async def _elsewhere(self, record: RunRecord, adapter: str) -> StoredRun | None:
        """Return another adapter's run of the same task that another router follows."""
        try:
            found = await self.keeping.at_task(record.company_id, record.agent_id, record.task_key)
        except DragomanError:
            return None  # a log that fails keeps no run from starting
        others = (run for run in found if run.adapter != adapter and run.owner != self.keeping.owner)
        return next(others, None)

    async def recall(self, request: adapter_pb2.ExecuteRequest) -> StoredRun | None:
        """Return what is kept of the run that this very request started, here before or elsewhere.

        ``None`` if its id is new, or known by now.

        Raises:
            DragomanError: RUN_ID_REUSED, or RUN_LOG_UNAVAILABLE.
        """
        if not request.run_id:
            return None
        stored = await self.keeping.find(request.run_id)
        if stored is None or request.run_id in self._runs:
            return None
        if stored.digest != self.keeping.digests.digest(request):
            raise taken(request.run_id)
        return stored

    def _find_record(self, run_id: str) -> RunRecord | None:
        run = self._runs.get(run_id)
        return run.record if run is not None else None

    def execute(self, request: adapter_pb2.ExecuteRequest, host: Host, session: Found) -> Run:
        """Accept a run, and start it at its adapter with this session. ``request`` gets its id."""
        request.run_id = request.run_id or new_run_id()
        record = self._record(request.run_id, host)
        record.digest = self.keeping.digests.digest(request)
        record.agent_id, record.company_id = request.agent.id, request.agent.company_id
        record.task_key, record.labels = request.task_key, safe_labels(request)
        run = Run(record, host, self._scene, self._over)
        run.holders = Holders(orphan_after_s(request), lambda: end_orphan(run, self._scene))
        self._runs[run.run_id] = run
        self._keep(run, orphan_after_s(request))
        self._set_out(run, request, host, session)
        return run

    def begin_again(self, run: Run, request: adapter_pb2.ExecuteRequest, host: Host, session: Found) -> None:
        """Start a run that was taken over before any adapter had it, now that its request has come again."""
        run.awaits_request = run.catches_up = False
        run.record.reserved = 0  # as far as is written, nothing was told of it
        run.host, run.hosts, run.record.adapter = host, [host], host.record.type
        run.step(Step.ASKED)
        self._set_out(run, request, host, session)
        run.replayed.set()

    def _set_out(self, run: Run, request: adapter_pb2.ExecuteRequest, host: Host, session: Found) -> None:
        journey = self._admitting.journey(run, request)
        journey.refuse_switch = lambda to: self._refuse_move(run, to)
        run.session = self.sessions.follow(run.record, session, run.remark)
        strip(request)
        # The caller's own wish is applied here; towards the adapter this router is the one that may get lost.
        request.adapter = host.record.type
        request.orphan_after.FromSeconds(int(ROUTER_ORPHAN_AFTER_S))
        run.work = self._scene.tasks.start(self._go(run, journey, request, session), f"run {run.run_id}")
        run.beat()

    async def _go(self, run: Run, journey: Journey, request: adapter_pb2.ExecuteRequest, session: Found) -> None:
        """Write down that there is a run, before anybody hears of it; then bring it to its end."""
        try:
            if not await run.recorded():
                run.give_up()
                return
            await self._refuse_switch_elsewhere(run.record, run.record.adapter)
            run.log.info("run accepted")
            run.kept.set()
            await journey.go(Pump(run, self._scene, hold=True), request, lambda: self._prepare(run, request, session))
        except DragomanError as error:
            run.refuse(error)
        except Exception:
            # Logged by who started this task; but nothing may leave a run without an end.
            run.fail()
            raise

    async def _prepare(self, run: Run, request: adapter_pb2.ExecuteRequest, session: Found) -> None:
        """Write into a request which session its adapter goes on with, now that the run is about to get there.

        Raises:
            DragomanError: the adapter's, should it have to be asked what it can do.
        """
        found = await self.sessions.look_up(session, request, run.host)
        if found.remark:
            run.remark("session_unavailable", found.remark)
        if run.session is not None:
            run.session.go_on_with(found)
        found.tell(request)

    def adopt(self, run_id: str, host: Host, *, hold: bool) -> Run:
        """Take up a run that an adapter may know and this router does not."""
        run = Run(self._record(run_id, host), host, self._scene, self._over)
        run.catches_up = True
        run.kept.set()
        pump = Pump(run, self._scene, hold=hold)
        # Who started it said for how long it may be without a holder, and the adapter knows; so no longer holding
        # it there is all there is to do.
        run.holders = Holders(0.0, lambda: pump.set_hold(False))
        run.held = lambda: pump.set_hold(True)
        self._runs[run.run_id] = run
        run.work = self._scene.tasks.start(pump.attach(), f"run {run_id}")
        run.log.info("run asked for")
        return run

    def take_over(self, stored: StoredRun, host: Host) -> Run:
        """Go on with a run that a router followed which is gone; perhaps this one, before its lease ran out."""
        if (own := self._runs.get(stored.run_id)) is not None:
            own.given_up = lambda _given: None  # its place is taken by the same run, and its adapter stays here
            own.give_up()
        summary = stored.state.run
        record = self._record(stored.run_id, host)
        record.adapter = stored.adapter  # what is at a configured address may not have said yet what it is
        record.accepted_at, record.digest = stored.accepted_at, stored.digest
        record.agent_id, record.company_id = summary.agent_id, summary.company_id
        record.task_key, record.labels = summary.task_key, dict(summary.labels)
        record.phase, record.instance_id = summary.phase, summary.instance_id
        record.go_on(stored.logged, attempt=summary.attempt, reserved=stored.reserved - 1)  # that one is the claim's
        run = Run(record, host, self._scene, self._over, first_sequence=stored.logged + 1)
        run.holders = Holders(stored.orphan_after, lambda: end_orphan(run, self._scene))
        if summary.HasField("session_key"):
            run.session = self.sessions.follow_on(record, summary.session_key, run.remark)
        self._keep(run, stored.orphan_after, stored)
        run.state = RunState.ADRIFT
        run.catches_up = True
        run.kept.set()
        place = json.loads(stored.place)
        run.awaits_request = not place.keys() & {"address", "between"}
        age_s = self._scene.clock.time() - stored.accepted_at
        run.is_doubtful = "address" in place and not stored.logged and age_s < _REMEMBERED_S
        # Whoever held it may come back, as after a stream that the server ended.
        run.holders.acquire()
        run.holders.release(by_server=True)
        self._runs[run.run_id] = run
        if run.awaits_request:
            run.write()  # its request may come to another router, which is to pass it on to this one
        return run

    def follow(self, run: Run) -> None:
        """Follow a run that was taken over at the process that it is pinned to."""
        run.work = self._scene.tasks.start(self._follow(run), f"run {run.run_id}")

    async def _follow(self, run: Run) -> None:
        await self._admitting.keep(run, Pump(run, self._scene, hold=True).follow_on())
        if run.awaits_request:
            await self.wait_for_request(run)

    async def wait_for_request(self, run: Run) -> None:
        """Give a run that no adapter had yet the time in which who asked for it is expected to ask again."""
        again, over = asyncio.ensure_future(run.replayed.wait()), asyncio.ensure_future(run.over.wait())
        await first_of(again, over, timeout_s=self._scene.timing.reattach_s)
        if run.awaits_request and not run.is_ending:
            run.lose(_NOT_BEGUN)

    def _keep(self, run: Run, orphan_after: float, stored: StoredRun | None = None) -> None:
        tell = functools.partial(run.remark, each_time=True)
        logged = self.keeping.follow(run.record, lambda: _place(run), orphan_after, tell, run.give_up, stored=stored)
        run.keep(self.keeping.writer, logged)
        # From now on it is found through the log, at the router that has it.
        run.given_up = lambda given: self._given_up(given, logged)

    def _given_up(self, run: Run, logged: LoggedRun) -> None:
        self._forget(run.run_id, run.record.number)
        if run.endpoint is not None and logged.is_begun:
            run.host.lose(run.endpoint)
        elif run.endpoint is not None:
            # Both routers accepted it, as this one could not ask the log; so there are perhaps two agents at it.
            self._scene.tasks.start(self._leave_to_other(run, run.endpoint), f"leave {run.run_id}")

    async def _leave_to_other(self, run: Run, endpoint: Endpoint) -> None:
        """End the run at its adapter, unless the other router's run is the same there."""
        try:
            stored = await self.keeping.find(run.run_id)
        except DragomanError:
            return  # nobody holds it at its adapter any more, which ends it too, later
        its_instance = json.loads(stored.place).get("instance_id") if stored is not None else None
        if its_instance not in {None, endpoint.instance_id}:
            await call_off(run, endpoint)

    def _record(self, run_id: str, host: Host) -> RunRecord:
        return RunRecord(
            run_id=run_id,
            adapter=host.record.type,
            number=next(self._numbers),
            accepted_at=self._scene.clock.time(),
        )

    def _over(self, run: Run) -> None:
        if run.refusal is not None:
            self._forget(run.run_id, run.record.number)
            self._scene.tasks.start(self.keeping.forget(run.run_id), f"forget {run.run_id}")
            return
        finished = [(one.record, one.fanout.kept_bytes) for one in self._runs.values() if one.over.is_set()]
        for run_id in self._retention.to_forget(finished, self._scene.clock.time()):
            self._runs.pop(run_id, None)
        # By id and number: a timer that held the run would keep what was forgotten for want of room.
        loop = asyncio.get_running_loop()
        loop.call_later(self._retention.seconds, self._forget, run.run_id, run.record.number)

    def _forget(self, run_id: str, number: int) -> None:
        run = self._runs.get(run_id)
        if run is not None and run.record.number == number:
            del self._runs[run_id]


def taken(run_id: str) -> DragomanError:
    """Return the error for an id that another request has."""
    return DragomanError(
        Reason.RUN_ID_REUSED,
        f"run {run_id!r} exists with another request; choose another id",
        {"run_id": run_id},
    )


def _busy(run_id: str, adapter: str) -> DragomanError:
    return DragomanError(
        Reason.SESSION_BUSY,
        f"run {run_id!r} of {adapter!r} works on this task; wait for it, or cancel it",
        {"run_id": run_id, "adapter": adapter},
    )


def _place(run: Run) -> dict[str, str]:
    """Return where a run's adapter is, for a router that has to find it again."""
    endpoint = run.endpoint
    if run.is_turning:
        return {"between": "attempts"}
    if endpoint is None:
        # For an adapter at an address, whose name the next router may not know yet.
        address = run.host.record.spec.address
        return {"wants": address} if address else {}
    # Only where routers launch it here can it be seen from outside that it is gone.
    launched = {"launched": "here"} if run.host.record.spec.launch is not None else {}
    return {"address": endpoint.link.address, "instance_id": endpoint.instance_id, **launched}
