"""Runs whose router is gone: found by their lease, and followed on where their adapter still lives.

A router that is killed says nothing any more. When its lease runs out, the first router that looks takes its runs.
Where the adapter's process is still there and knows the run, the run goes on with its next event. Where it is not,
the run is LOST, behind a gap that covers whatever the dead router may still have told.
"""

import asyncio
import json
from typing import Final

import structlog
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import REATTACH_S
from dragoman.router._domain.run_states import RunState
from dragoman.router._domain.stored import StoredRun
from dragoman.router._rpc.core import Core
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.launched import LaunchedHost
from dragoman.router._rpc.run import Run
from dragoman.router._store.database import StoreError

LOOK_S: Final = 3.0
"""How often runs without a router are looked for."""
_LEAVE_S: Final = 1.0
"""How long a run that is left waits for what was told of it to be written; its adapter can tell it again."""
_BETWEEN: Final = "had failed, and the router ended before another attempt was begun"
_GONE: Final = "is gone, as is the router that followed the run"

_log = structlog.get_logger("dragoman.router")


class Takeover:
    """Takes over runs for one router.

    Args:
        core: the router.
        look_s: see ``LOOK_S``.
        stays: whether this router is there for more than one command. One that is not takes a run only when it is
            asked about it, and only where that run's adapter was launched, so that it can be seen whether it is gone.
    """

    def __init__(self, core: Core, *, look_s: float = LOOK_S, stays: bool = True) -> None:
        self._core = core
        self._look_s = look_s
        self._stays = stays
        self._taking = asyncio.Lock()
        self._is_leaving = False

    async def begin(self) -> None:
        """Look for runs without a router now, and again and again in the background, if this router stays."""
        if not self._stays:
            return
        await self._try_to_look()
        self._core.scene.tasks.start(self._watch(), "take over")

    async def take(self, stored: StoredRun) -> Run | None:
        """Take over a run that somebody asks for, if no router follows it any more; see ``Core.is_adrift``.

        Returns:
            The run; ``None`` if it is none of this router's.

        Raises:
            DragomanError: RUN_LOG_UNAVAILABLE.
        """
        if self._may_take(stored):
            # To its end, even if who asks goes away meanwhile: by then it may be this router's, and nobody else's.
            await asyncio.shield(self._take_one(stored))
        return self._core.runs.find(stored.run_id)

    async def _take_one(self, stored: StoredRun) -> None:
        async with self._taking:  # of several who ask at once the first does it
            if self._core.runs.find(stored.run_id) is None and self._may_take(stored):
                taken = await self._core.keeping.take(stored)
                if taken is not None and not self._is_leaving:
                    await self._take_over(taken)

    async def leave(self) -> None:
        """Leave what was taken over for the next router, if this one was there for one command only."""
        self._is_leaving = True
        if self._stays:
            return
        for run in self._core.runs.live():
            if run.catches_up:
                await run.written(_LEAVE_S)
                run.give_up()
        for host in self._core.hosts:
            if isinstance(host, LaunchedHost):
                host.leave_adopted()

    def _may_take(self, stored: StoredRun) -> bool:
        if self._is_leaving or not self._core.is_adrift(stored):
            return False
        return self._stays or self._can_see(stored)

    def _can_see(self, stored: StoredRun) -> bool:
        if not isinstance(self._core.present(stored.adapter), LaunchedHost):
            return False
        place = json.loads(stored.place)
        return "launched" in place or not place.keys() & {"address", "wants"}

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self._try_to_look()

    async def _try_to_look(self) -> None:
        try:
            await self._look()
        except StoreError as error:
            self._core.keeping.missed()
            _log.warning("runs without a router not looked for", why=str(error))

    async def _look(self) -> None:
        keeping = self._core.keeping
        if self._core.is_draining:
            return  # what it took it would only end
        for owner in await keeping.store.owners():
            if self._core.scene.processes.is_gone(owner):  # then its lease need not be waited for
                await keeping.store.release(owner)
        async with self._taking:
            for stored in await keeping.claim():
                try:
                    await self._take_over(stored)
                except Exception:  # noqa: BLE001 - one run must not keep the others from being looked after
                    _log.exception("run not taken over", run_id=stored.run_id)

    async def _take_over(self, stored: StoredRun) -> None:
        own = self._core.runs.find(stored.run_id)
        if own is not None and own.is_ending:
            own.write()  # it is this router's again, which told how it ended; nobody may find another end
            return
        _log.info("run taken over", run_id=stored.run_id, adapter=stored.adapter, logged=stored.logged)
        place = json.loads(stored.place)
        address = place.get("address") or place.get("wants", "")
        host = self._core.present(stored.adapter) or (self._core.dialed(address) if address else None)
        if host is None:
            await self._core.tried()
            host = self._core.present(stored.adapter)
        if host is None:
            self._core.keeping.end_unknown(stored)
            return
        run = self._core.runs.take_over(stored, host)
        run.work = self._core.scene.tasks.start(self._take(run, stored, host), f"take over {stored.run_id}")

    async def _take(self, run: Run, stored: StoredRun, host: Host) -> None:
        try:
            await self._find_again(run, stored, host)
        except Exception:
            # Logged by who started this task; but nothing may leave a run without an end.
            run.fail()
            raise

    async def _find_again(self, run: Run, stored: StoredRun, host: Host) -> None:
        if run.state is not RunState.ADRIFT:
            return  # it was taken over by its request, which has begun it by now
        if run.awaits_request:
            await self._core.runs.wait_for_request(run)
            return
        endpoint = await self._endpoint(host, json.loads(stored.place))
        if run.is_ending:
            return
        if endpoint is None:
            run.lose(_BETWEEN if "between" in json.loads(stored.place) else _GONE)
            return
        self._go_on(run, endpoint)

    def _go_on(self, run: Run, endpoint: Endpoint) -> None:
        run.pin(endpoint)
        if not run.is_doubtful:
            run.accepted.set()
        self._core.runs.follow(run)

    async def _endpoint(self, host: Host, place: dict[str, str]) -> Endpoint | None:
        """Return the process that has the run; ``None`` if it is gone."""
        address, instance_id = place.get("address", ""), place.get("instance_id", "")
        if not address:
            return None
        if isinstance(host, LaunchedHost):
            endpoint = await host.adopt(address)
            return endpoint if endpoint is not None and endpoint.instance_id == instance_id else None
        loop = asyncio.get_running_loop()
        until = loop.time() + min(REATTACH_S, self._core.scene.timing.reattach_s)
        while loop.time() < until:
            try:
                async with host.use() as endpoint:
                    return endpoint if endpoint.instance_id == instance_id else None
            except DragomanError:
                await asyncio.sleep(1.0)
        return None
