"""The router without its services: adapters by name, runs by id, and the end of it all."""

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from typing import Any

import structlog
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.server import draining
from dragoman.router._domain.directory import AdapterRecord
from dragoman.router._domain.runs import Retention
from dragoman.router._domain.stored import StoredRun
from dragoman.router._rpc.admitting import Admitting, Policy
from dragoman.router._rpc.dialed import DialedHost
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.keeping import GIVEN_UP, Keeping
from dragoman.router._rpc.launched import LaunchedHost
from dragoman.router._rpc.link import first_of
from dragoman.router._rpc.peers import Peers
from dragoman.router._rpc.runs import Runs
from dragoman.router._rpc.scene import Scene
from dragoman.v1 import router_pb2

_LAST_READS_S = 1.0
"""How long readers may take to read the end of their runs once the adapters are gone."""

_log = structlog.get_logger("dragoman.router")


class Core:
    """What the services serve.

    Args:
        scene: what the router's parts share.
        retention: what is kept of runs that are over, in memory.
        keeping: keeps all runs for longer.
        policy: how many runs are let through.
    """

    def __init__(self, scene: Scene, retention: Retention, keeping: Keeping, policy: Policy | None = None) -> None:
        self.scene = scene
        self.keeping = keeping
        self.peers = Peers()
        policy = policy or Policy()
        self._limited = sorted(policy.max_runs)
        self.admitting = Admitting(scene, keeping, policy, self.host)
        self.runs = Runs(scene, retention, keeping, self.admitting)
        self.ending = asyncio.Event()
        """Set when the streams of clients end because the router does."""
        self.is_draining = False
        self._hurry = asyncio.Event()
        self._streams = 0
        self._no_streams = asyncio.Event()
        self._no_streams.set()
        self._hosts: dict[AdapterRecord, Host] = {
            record: LaunchedHost(record, scene) if record.spec.launch is not None else DialedHost(record, scene)
            for record in scene.directory.records
        }

    def begin(self, address: str) -> None:
        """Connect to the configured addresses, and say from now on that this router lives.

        Args:
            address: where other routers reach this one.
        """
        self.keeping.address = address
        self.scene.tasks.start(self.keeping.keep_alive(), "keep the run log")
        for record, host in self._hosts.items():
            if isinstance(host, DialedHost) and not record.is_refused:
                host.begin()
        for record in self._hosts:
            if record.is_refused:
                _log.warning("adapter refused", adapter=record.type, reason=record.reason)
        self.scene.tasks.start(self._tell_strange_limits(), "look for limits of no adapter")

    async def _tell_strange_limits(self) -> None:
        """Say which bounds are nobody's, once it is known what is at the configured addresses."""
        await self.tried()
        for name in self._limited:
            if self.present(name) is None:
                near = self.scene.directory.near(name)
                why = "no adapter that is known by now has this name; an alias counts once its adapter was started"
                _log.warning("max_runs bounds nothing", adapter=name, did_you_mean=near, why=why)

    def is_adrift(self, stored: StoredRun) -> bool:
        """Tell whether no router follows a live run any more: its own is surely gone, or has given it up."""
        if stored.finished_at is not None or stored.owner == self.keeping.owner:
            return False
        return stored.lease_until < GIVEN_UP or self.scene.processes.is_gone(stored.owner)

    def refuse_new(self) -> None:
        """Raise DRAINING if nothing new is taken."""
        if self.is_draining:
            raise draining()

    @property
    def hosts(self) -> list[Host]:
        """The places of all adapters that are not refused, by type."""
        usable = [host for record, host in self._hosts.items() if not record.is_refused]
        return sorted(usable, key=lambda host: host.record.type)

    def present(self, name: str) -> Host | None:
        """Return the place of the adapter with this name, if the name is known by now."""
        record = self.scene.directory.find(name)
        return self._hosts[record] if record is not None else None

    def dialed(self, address: str) -> Host | None:
        """Return the place of what is at a configured address, whatever it turns out to be."""
        return next((host for record, host in self._hosts.items() if record.spec.address == address), None)

    async def host(self, name: str) -> Host:
        """Return the place of the adapter with this type or alias. A refused one is returned too.

        Raises:
            DragomanError: ADAPTER_REQUIRED or ADAPTER_NOT_FOUND.
        """
        self.require(name)
        host = await self.find(name)
        if host is None:
            raise self._not_found(name)
        return host

    def require(self, name: str) -> None:
        """Raise ADAPTER_REQUIRED if no adapter is named."""
        if not name:
            known = ", ".join(self.scene.directory.types())
            raise DragomanError(Reason.ADAPTER_REQUIRED, f"name an adapter; here are: {known or 'none'}")

    async def find(self, name: str) -> Host | None:
        """Return the place of the adapter with this type or alias; ``None`` if there is none."""
        if self.present(name) is None:
            # It may be an alias of one that was never started.
            await self.learn()
        return self.present(name)

    def _not_found(self, name: str) -> DragomanError:
        near = self.scene.directory.near(name)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see ListAdapters"
        metadata = {"adapter": name[:200], "did_you_mean": ",".join(near)}
        return DragomanError(Reason.ADAPTER_NOT_FOUND, f"there is no adapter {name[:200]!r}{hint}", metadata)

    async def learn(self) -> None:
        """Ask those adapters that were never reached what they are, starting them if need be."""
        asking = [asyncio.ensure_future(self._learn(host)) for host in self.hosts]
        if asking:
            # Who is slow goes on being asked; this call does not wait for it.
            await asyncio.wait(asking, timeout=self.scene.timing.learn_s)

    async def tried(self) -> None:
        """Wait until it is known, or was tried long enough, what is at the configured addresses."""
        trying = [asyncio.ensure_future(host.tried.wait()) for host in self.hosts if isinstance(host, DialedHost)]
        if trying:
            await asyncio.wait(trying, timeout=self.scene.timing.learn_s)
            for wait in trying:
                wait.cancel()

    async def _learn(self, host: Host) -> None:
        if isinstance(host, DialedHost):
            await host.tried.wait()
        elif host.record.description is None:
            try:
                async with host.use():
                    pass
            except DragomanError:
                return  # its state says why

    def entries(self) -> list[router_pb2.AdapterEntry]:
        """Return what there is to tell of all adapters."""
        entries = self.scene.directory.entries()
        for entry in entries:
            entry.remarks.extend(self.admitting.remarks(entry.adapter))
        return entries

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Count a client's stream while the block runs."""
        self._streams += 1
        self._no_streams.clear()
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams:
                self._no_streams.set()

    def hurry(self) -> None:
        """Make a drain that is under way end at once."""
        self._hurry.set()

    async def drain(self, grace_s: float) -> None:
        """Refuse new work; give live runs ``grace_s`` seconds; end what was launched here; end all streams.

        An adapter that is ended cancels its runs, and their readers see how they end. Runs at configured addresses
        go on without this router; their readers are told where to attach again.
        """
        self.is_draining = True
        live = self.runs.live()
        if live:
            _log.info("waiting for runs", live=len(live), grace_s=grace_s)
            await self._unless_hurried(_all([run.over.wait() for run in live]), grace_s)
        for run in live:
            if isinstance(run.host, DialedHost):
                run.streams_end.set()
            elif not run.is_ending and not run.is_at_no_adapter:
                run.remark("router_stopped", "The router was told to end, and its adapters with it: the run ends.")
            if run.is_at_no_adapter:
                # The next router begins it when its request comes again; this one must not let it into a free place.
                run.streams_end.set()
                if run.work is not None:
                    run.work.cancel()
        await self._stop_launched()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_READS_S):
                await self._no_streams.wait()
        self.ending.set()
        for run in self.runs:
            run.streams_end.set()
            # Whether anybody still holds it is no longer this router's business.
            run.holders.close()
        await self.scene.tasks.end()
        await _all([host.stop(0.0) for host in self._hosts.values()])
        await self.peers.close()

    async def _stop_launched(self) -> None:
        launched = [host for host in self._hosts.values() if isinstance(host, LaunchedHost)]
        stop_s = 0.0 if self._hurry.is_set() else self.scene.timing.stop_s
        stopping = asyncio.ensure_future(_all([host.stop(stop_s) for host in launched]))
        await self._unless_hurried(asyncio.shield(stopping), None)
        if not stopping.done():
            await _all([host.stop(0.0) for host in launched])
        await stopping

    async def _unless_hurried(self, work: Awaitable[None], timeout_s: float | None) -> None:
        """Wait for ``work``, but not when there is a hurry."""
        await first_of(asyncio.ensure_future(work), asyncio.ensure_future(self._hurry.wait()), timeout_s=timeout_s)


async def _all(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    await asyncio.gather(*work)
