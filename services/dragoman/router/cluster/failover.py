"""Failover: the recovery of runs whose router is gone.

When the lease of a killed router expires, the first router that checks claims its runs. Where the adapter's process
still runs and knows the run, the stream resumes with the next event. Otherwise the run is LOST, behind a gap that
covers every event that the dead router may have published.

A run of a command ends with the command. If that was killed, the next router, also that of another command, records
that the run is LOST, and looks for no adapter: its guard is ending it.
"""

import asyncio
from typing import Final

from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import REATTACH_S
from dragoman.protocol.logs import Logger
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.supervisor import ProcessSupervisor
from dragoman.router.model.assignment import Dispatched, Unassigned
from dragoman.router.model.errors import log_unavailable
from dragoman.router.model.ports import Processes
from dragoman.router.model.run_record import adapter_lost, not_started
from dragoman.router.model.stored import StoredRun
from dragoman.router.model.tasks import Tasks
from dragoman.router.runs.actor import Run
from dragoman.router.runs.cancellation import request_cancel
from dragoman.router.runs.inputs import Abandoned, LeaseLost
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.leases import RELEASED
from dragoman.router.storage.run_log import RunLog

_LOOK_S: Final = 3.0
"""The interval between two checks for runs without a router."""
COMMAND: Final = "/command"
"""The end of the name of an owner that is the router of one command."""
_BETWEEN: Final = "failed the last attempt, and the router stopped before it started another"
_UNKNOWN: Final = "is not known to this router, and the router that owned the run is gone"
_GONE: Final = "is gone, and so is the router that owned the run"
_BOUND: Final = "leaves limits, secrets or answers to the router, and the router that knew them is gone"
_ENDED: Final = "ended with the command that owned the run"

_log = Logger("dragoman.router")


class Failover:
    """Takes over runs for one router.

    Args:
        reattach_s: how long an adapter at an address may take to answer.
    """

    def __init__(
        self,
        runs: RunRegistry,
        run_log: RunLog,
        adapters: AdapterPool,
        processes: Processes,
        tasks: Tasks,
        reattach_s: float,
    ) -> None:
        self._runs = runs
        self._run_log = run_log
        self._adapters = adapters
        self._processes = processes
        self._tasks = tasks
        self._reattach_s = reattach_s
        self._recovers = not run_log.owner.endswith(COMMAND)
        """The router of a command only ends the runs of killed commands."""
        self._looking = asyncio.Lock()
        self._is_leaving = False

    async def begin(self) -> None:
        """Look for runs without a router now, and again and again in the background if it recovers them."""
        await self._try_to_look()
        if self._recovers:
            self._tasks.start(self._watch(), "failover")

    async def take(self, stored: StoredRun) -> Run | StoredRun:
        """Recover a run that a client asks for, if its last router is surely gone, or has released it.

        Returns:
            The run; what is stored of it if another router owns it, or it is over.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        if self._may_take(stored):
            try:
                # To its end, even if the client goes away meanwhile: by then this router may own the run.
                await asyncio.shield(self._look(stored.run_id))
            except StoreError as error:
                raise log_unavailable(error) from error
            stored = await self._run_log.find(stored.run_id) or stored
        return self._runs.find(stored.run_id) or stored

    def leave(self) -> None:
        """Take no more runs: this router is about to end."""
        self._is_leaving = True

    def _may_take(self, stored: StoredRun) -> bool:
        if self._is_leaving or stored.finished_at is not None or stored.owner == self._run_log.owner:
            return False
        is_unowned = stored.lease_until < RELEASED or self._processes.is_gone(stored.owner)
        return is_unowned and (self._recovers or stored.owner.endswith(COMMAND))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self._look()
        except StoreError as error:
            self._run_log.ownership.health.record_failure()
            _log.warning("failover check failed, will retry", why=str(error))

    async def _look(self, asked: str = "") -> None:
        async with self._looking:
            if self._is_leaving:
                return  # what it took it would only end
            if asked and self._runs.find(asked) is not None:
                return  # another one who asked for this run had it found
            leases = self._run_log.store.leases
            for owner in await leases.owners():
                if self._processes.is_gone(owner) and (self._recovers or owner.endswith(COMMAND)):
                    await leases.release(owner)  # its lease need not be waited for
            for stored, owner in await self._run_log.ownership.claim("%" if self._recovers else f"%{COMMAND}"):
                # One that is suspended, or out of this machine's sight, may continue.
                was_commands = owner.endswith(COMMAND) and self._processes.is_gone(owner)
                try:
                    await self._take_over(stored, was_commands=was_commands)
                except Exception as error:  # noqa: BLE001 - one run must not keep the others from being looked after
                    _log.error("run not recovered", run_id=stored.run_id, failure=error)

    async def _take_over(self, stored: StoredRun, *, was_commands: bool) -> None:
        own = self._runs.find(stored.run_id)
        if own is not None and own.is_ending:
            own.ledger.changed()  # this router owns it again and has published its end, which stays the only one
            return
        _log.info("run recovered", run_id=stored.run_id, adapter=stored.adapter, logged=stored.logged)
        at = stored.assignment
        if was_commands and not isinstance(at, Unassigned):
            self._run_log.end(stored, adapter_lost(stored.adapter, _ENDED))
            return
        if not isinstance(at, Dispatched):
            if own is not None:
                own.send(LeaseLost())
            is_new, adapter = isinstance(at, Unassigned), stored.adapter
            self._run_log.end(stored, not_started(adapter) if is_new else adapter_lost(adapter, _BETWEEN))
            return
        backend = self._adapters.present(stored.adapter) or self._adapters.at_address(at.address)
        if backend is None and at.is_registered:
            backend = self._adapters.restore(at.address)
        if backend is None:
            await self._adapters.tried()
            backend = self._adapters.present(stored.adapter)
        if backend is None:
            self._run_log.end(stored, adapter_lost(stored.adapter, _UNKNOWN))
            return
        run = self._runs.take_over(stored, at, backend)
        run.start(lambda: self._find_again(run, at, backend), "recover")

    async def _find_again(self, run: Run, at: Dispatched, backend: AdapterBackend) -> None:
        instance = await self._instance(backend, at)
        if run.is_ending:
            return
        if instance is None:
            run.send(Abandoned(adapter_lost(run.record.adapter, _GONE)))
            return
        if at.is_bound:
            run.send(Abandoned(adapter_lost(run.record.adapter, _BOUND)))
            await request_cancel(run, instance)
            return
        run.assign(instance)
        await self._runs.follow(run)

    async def _instance(self, backend: AdapterBackend, at: Dispatched) -> AdapterInstance | None:
        """Return the process that has the run; ``None`` if it is gone."""
        address, instance_id = at.address, at.instance_id
        if isinstance(backend, ProcessSupervisor):
            instance = await backend.adopt(address)
            return instance if instance is not None and instance.instance_id == instance_id else None
        loop = asyncio.get_running_loop()
        until = loop.time() + min(REATTACH_S, self._reattach_s)
        while loop.time() < until:
            try:
                with await backend.use(instance_id) as instance:
                    return instance if instance.instance_id == instance_id else None
            except DragomanError:
                await asyncio.sleep(1.0)
        return None
