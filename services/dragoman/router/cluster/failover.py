"""Failover: the recovery of runs whose router is gone.

When the lease of a killed router expires, the first router that checks claims its runs. Where the adapter's process
still runs and knows the run, the stream resumes with the next event. Otherwise the run is LOST, behind a gap that
covers every event that the dead router may have published.
"""

import asyncio
from typing import Final

import structlog
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import REATTACH_S
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.context import RouterContext
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.supervisor import ProcessSupervisor
from dragoman.router.model.assignment import Dispatched, Unassigned
from dragoman.router.model.ports import Processes
from dragoman.router.model.run_record import adapter_lost, not_started, router_failed
from dragoman.router.model.stored import StoredRun
from dragoman.router.runs.actor import Run
from dragoman.router.runs.inputs import LeaseLost, Lost
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.runs.state import progress_of
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.leases import RELEASED
from dragoman.router.storage.run_log import RunLog

LOOK_S: Final = 3.0
"""The interval between two checks for runs without a router."""
_LEAVE_S: Final = 1.0
"""How long a run that is left waits until its published events are written; the adapter can replay the others."""
_BETWEEN: Final = "failed the last attempt, and the router stopped before it started another"
_UNKNOWN: Final = "is not known to this router, and the router that owned the run is gone"
_GONE: Final = "is gone, and so is the router that owned the run"

_log = structlog.get_logger("dragoman.router")


class Failover:
    """Takes over runs for one router.

    Args:
        runs: the runs of this router.
        run_log: the run log.
        adapters: the adapters.
        scene: what the parts of the router share.
        look_s: see ``LOOK_S``.
        stays: whether this router is there for more than one command. One that is not takes a run only when it is
            asked about it, and only where that run's adapter was launched, so that it can be seen whether it is gone.
    """

    def __init__(
        self,
        runs: RunRegistry,
        run_log: RunLog,
        adapters: AdapterPool,
        scene: RouterContext,
        *,
        look_s: float = LOOK_S,
        stays: bool = True,
    ) -> None:
        self._runs = runs
        self._run_log = run_log
        self._adapters = adapters
        self._scene = scene
        self._look_s = look_s
        self._stays = stays
        self._taking = asyncio.Lock()
        self._is_leaving = False

    async def begin(self) -> None:
        """Look for runs without a router now, and again and again in the background, if this router stays."""
        if not self._stays:
            return
        await self._try_to_look()
        self._scene.tasks.start(self._watch(), "failover")

    async def take(self, stored: StoredRun) -> Run | StoredRun:
        """Recover a run that a client asks for, if no router owns it any more; see ``is_unowned``.

        Returns:
            The run; what is stored of it if another router owns it, or it is over.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        if self._may_take(stored):
            # To its end, even if the client goes away meanwhile: by then this router may own the run.
            await asyncio.shield(self._take_one(stored))
            stored = await self._run_log.find(stored.run_id) or stored
        return self._runs.find(stored.run_id) or stored

    async def _take_one(self, stored: StoredRun) -> None:
        async with self._taking:  # of several who ask at once the first does it
            if self._runs.find(stored.run_id) is None and self._may_take(stored):
                taken = await self._run_log.ownership.take(stored)
                if taken is not None and not self._is_leaving:
                    await self._take_over(taken)

    async def leave(self) -> None:
        """Leave what was taken over for the next router, if this one was there for one command only."""
        self._is_leaving = True
        if self._stays:
            return
        for run in self._runs.live():
            if progress_of(run.state).is_inherited:
                await run.ledger.flushed(_LEAVE_S)
                run.send(LeaseLost())
        for backend in self._adapters.backends:
            if isinstance(backend, ProcessSupervisor):
                backend.leave_adopted()

    def _may_take(self, stored: StoredRun) -> bool:
        if self._is_leaving or not is_unowned(stored, self._run_log.owner, self._scene.processes):
            return False
        return self._stays or self._can_see(stored)

    def _can_see(self, stored: StoredRun) -> bool:
        if not isinstance(self._adapters.present(stored.adapter), ProcessSupervisor):
            return False
        return not isinstance(stored.assignment, Dispatched) or stored.assignment.is_launched

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self._look()
        except StoreError as error:
            self._run_log.ownership.record_failure()
            _log.warning("failover check failed, will retry", why=str(error))

    async def _look(self) -> None:
        run_log = self._run_log
        if self._is_leaving:
            return  # what it took it would only end
        for owner in await run_log.store.leases.owners():
            if self._scene.processes.is_gone(owner):  # then its lease need not be waited for
                await run_log.store.leases.release(owner)
        async with self._taking:
            for stored in await run_log.ownership.claim():
                try:
                    await self._take_over(stored)
                except Exception:  # noqa: BLE001 - one run must not keep the others from being looked after
                    _log.exception("run not recovered", run_id=stored.run_id)

    async def _take_over(self, stored: StoredRun) -> None:
        own = self._runs.find(stored.run_id)
        if own is not None and own.is_ending:
            own.ledger.changed()  # this router owns it again and has published its end, which stays the only one
            return
        _log.info("run recovered", run_id=stored.run_id, adapter=stored.adapter, logged=stored.logged)
        at = stored.assignment
        if not isinstance(at, Dispatched):
            if own is not None:
                own.send(LeaseLost())
            is_new, adapter = isinstance(at, Unassigned), stored.adapter
            self._run_log.end(stored, not_started(adapter) if is_new else adapter_lost(adapter, _BETWEEN))
            return
        backend = self._adapters.present(stored.adapter) or self._adapters.at_address(at.address)
        if backend is None:
            await self._adapters.tried()
            backend = self._adapters.present(stored.adapter)
        if backend is None:
            self._run_log.end(stored, adapter_lost(stored.adapter, _UNKNOWN))
            return
        run = self._runs.take_over(stored, at, backend)
        run.start(self._take(run, at, backend), "recover")

    async def _take(self, run: Run, at: Dispatched, backend: AdapterBackend) -> None:
        try:
            await self._find_again(run, at, backend)
        except Exception:
            # Logged by who started this task; but nothing may leave a run without an end.
            run.send(Lost(router_failed()))
            raise

    async def _find_again(self, run: Run, at: Dispatched, backend: AdapterBackend) -> None:
        instance = await self._instance(backend, at)
        if run.is_ending:
            return
        if instance is None:
            run.send(Lost(adapter_lost(run.record.adapter, _GONE)))
            return
        run.assign(instance)
        self._runs.follow(run)

    async def _instance(self, backend: AdapterBackend, at: Dispatched) -> AdapterInstance | None:
        """Return the process that has the run; ``None`` if it is gone."""
        address, instance_id = at.address, at.instance_id
        if isinstance(backend, ProcessSupervisor):
            instance = await backend.adopt(address)
            return instance if instance is not None and instance.instance_id == instance_id else None
        loop = asyncio.get_running_loop()
        until = loop.time() + min(REATTACH_S, self._scene.timing.reattach_s)
        while loop.time() < until:
            try:
                async with backend.use() as instance:
                    return instance if instance.instance_id == instance_id else None
            except DragomanError:
                await asyncio.sleep(1.0)
        return None


def is_unowned(stored: StoredRun, owner: str, processes: Processes) -> bool:
    """Return whether no router owns a live run any more: its last one is surely gone, or has released it.

    Args:
        stored: the run.
        owner: the name of this router.
        processes: the processes of this machine.
    """
    if stored.finished_at is not None or stored.owner == owner:
        return False
    return stored.lease_until < RELEASED or processes.is_gone(stored.owner)
