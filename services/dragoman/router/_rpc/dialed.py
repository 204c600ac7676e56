"""Adapters at configured addresses: somebody else starts them; the router stays in touch."""

import asyncio
import contextlib

import structlog
from dragoman.protocol.errors import DragomanError
from dragoman.router._domain.backoff import LONGEST_DELAY_S, Backoff
from dragoman.router._domain.directory import AdapterRecord
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.host import Host
from dragoman.router._rpc.link import Link, unavailable
from dragoman.router._rpc.scene import Scene
from dragoman.v1 import adapter_pb2, router_pb2

_FIRST_TRY_S = 1.0
"""After this long without a connection it is said to be unavailable."""
_SECOND_ASK_S = 5.0
_LOOK_S = 0.25
"""How often a process that cannot be reached is looked for."""

_log = structlog.get_logger("dragoman.router")


class DialedHost(Host):
    """The place of an adapter at a configured address."""

    def __init__(self, record: AdapterRecord, scene: Scene) -> None:
        super().__init__(record, scene)
        self._endpoint: Endpoint | None = None
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: tuple[int, int] | None = None
        """Pid and start mark of what answers; ``None`` if it cannot be seen from here."""
        self._reached = asyncio.Event()
        self.tried = asyncio.Event()
        """Set once it is known, or was tried long enough, what is there."""

    @property
    def is_up(self) -> bool:
        """Always: what is behind an address may know runs that this router does not."""
        return True

    def begin(self) -> None:
        """Start to stay in touch."""
        self._set(router_pb2.ADAPTER_STATE_STARTING)
        self._link = Link(self.record.spec.address)
        self._task = self._scene.tasks.start(self._keep(self._link), f"address {self.record.spec.address}")

    async def stop(self, grace_s: float) -> None:  # noqa: ARG002 - it is not ours to end
        """Let go of the connection; the adapter lives on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._link is not None:
            await self._link.close()

    async def _acquire(self) -> Endpoint:
        if self._endpoint is None or self._endpoint.gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._scene.timing.patience_s):
                    await self._reached.wait()
        if self.record.is_refused:
            raise self.refusal()
        if self._endpoint is None or self._endpoint.gone.is_set():
            raise self._unavailable(self.record.reason or "does not answer")
        return self._endpoint

    async def _keep(self, link: Link) -> None:
        backoff = Backoff()
        while True:
            if await self._meet(link):
                backoff = Backoff()
                assert self._endpoint is not None
                await self._watch(self._endpoint)
                self._part()
            else:
                now = self._scene.clock.monotonic()
                backoff = backoff.failed(now, self._scene.clock.chance())
                await asyncio.sleep(LONGEST_DELAY_S if self.record.is_refused else backoff.wait_s(now))

    async def _meet(self, link: Link) -> bool:
        """Connect, however long it takes, and take in what is there; False if it cannot be used."""
        try:
            await self._connect(link)
            async with asyncio.timeout(self._scene.timing.start_s):
                description = await self._shake_hands(link)
            is_one = await self._is_one(link, description.instance_id)
        except TimeoutError:
            self._set(router_pb2.ADAPTER_STATE_UNAVAILABLE, "is there and does not get ready")
            return False
        except DragomanError as error:
            self._set(router_pb2.ADAPTER_STATE_UNAVAILABLE, f"did not describe itself: {error.message}")
            return False
        finally:
            self.tried.set()
        return self._welcome(link, description, is_one=is_one)

    async def _connect(self, link: Link) -> None:
        try:
            async with asyncio.timeout(_FIRST_TRY_S):
                await link.connected()
        except TimeoutError:
            self._set(router_pb2.ADAPTER_STATE_UNAVAILABLE, f"does not answer at {link.address}")
            self.tried.set()
            await link.connected()

    async def _is_one(self, link: Link, instance_id: str) -> bool:
        """Ask over another connection who is there: behind one name may be several processes."""
        if link.address.startswith("unix:"):
            return True
        second = Link(link.address)
        try:
            other = (await second.describe(_SECOND_ASK_S)).instance_id
            if instance_id != other and (await link.describe(_SECOND_ASK_S)).instance_id == other:
                raise unavailable("it was restarted just now")
            return instance_id == other
        finally:
            await second.close()

    def _welcome(self, link: Link, description: adapter_pb2.DescribeResponse, *, is_one: bool) -> bool:
        if not is_one:
            self.record.refuse(
                f"two processes answer at {link.address}; give each an address of its own, as a run stays with one"
            )
        elif not self._scene.directory.learn(self.record, description):
            self._endpoint = Endpoint(link, description)
            started = self._scene.processes.started(description.pid) if description.pid > 0 else None
            self._process = None if started is None else (description.pid, started)
            self._reached.set()
            self._set(router_pb2.ADAPTER_STATE_READY)
            _log.info("adapter ready", adapter=description.adapter, instance=description.instance_id)
            return True
        _log.warning("adapter refused", adapter=self.record.type, reason=self.record.reason)
        self._scene.changes.tell()
        return False

    async def _reconnect(self, endpoint: Endpoint) -> None:
        """Wait until there is a connection again, or the process is known to be gone."""
        connected = asyncio.ensure_future(endpoint.link.connected())
        try:
            while not connected.done():
                if self._has_ended():
                    endpoint.leave("cannot be reached, and its process has ended")
                    return
                await asyncio.wait([connected], timeout=_LOOK_S)
        finally:
            connected.cancel()
            await asyncio.gather(connected, return_exceptions=True)

    def _has_ended(self) -> bool:
        """Tell whether the process that was there is surely gone; one that was never seen is not."""
        if self._process is None:
            return False
        pid, started = self._process
        return self._scene.processes.started(pid) != started

    def _part(self) -> None:
        """The process is another one now."""
        assert self._endpoint is not None
        _log.warning("adapter lost", adapter=self._endpoint.adapter, instance=self._endpoint.instance_id)
        self._reached.clear()
