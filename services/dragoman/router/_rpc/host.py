"""What stands behind an adapter's name: a place that gives a living process to who asks."""

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import structlog
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router._domain.directory import AdapterRecord
from dragoman.router._rpc.endpoint import Endpoint
from dragoman.router._rpc.link import Link, NotServedError, first_of, unavailable
from dragoman.router._rpc.scene import Scene
from dragoman.v1 import adapter_pb2, router_pb2

_DESCRIBE_S = 10.0
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

_log = structlog.get_logger("dragoman.router")


class Host(abc.ABC):
    """One adapter's place.

    Args:
        record: what the directory knows of it; kept up to date here.
        scene: what the router's parts share.
    """

    def __init__(self, record: AdapterRecord, scene: Scene) -> None:
        self.record = record
        self._scene = scene

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Endpoint]:
        """Use a living process of this adapter while the block runs; it is started if need be.

        Raises:
            DragomanError: ADAPTER_UNAVAILABLE or ADAPTER_REFUSED.
        """
        endpoint = await self._serving()
        with endpoint.used():
            yield endpoint

    @property
    @abc.abstractmethod
    def is_up(self) -> bool:
        """Whether there is a process that could know a run."""

    def lose(self, endpoint: Endpoint) -> None:  # noqa: B027 - a process that was not launched here is nobody's
        """Take note that another router has taken over a process of this place, with its runs."""

    async def end_if_deaf(self, endpoint: Endpoint) -> None:  # noqa: B027 - as above
        """End a process that was launched here, with all its agents, if it answers nothing any more.

        Nothing else would: it lives, so that its guard keeps it, and it hears no Cancel.
        """

    @abc.abstractmethod
    async def stop(self, grace_s: float) -> None:
        """Let go of it: a process that was launched here ends within ``grace_s`` seconds or is killed."""

    @abc.abstractmethod
    async def _acquire(self) -> Endpoint:
        """Return the present process, starting or reaching it if need be."""

    async def _serving(self) -> Endpoint:
        if self.record.is_refused:
            raise self.refusal()
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._scene.timing.patience_s
        while True:
            endpoint = await self._acquire()
            if endpoint.serving.is_set():
                return endpoint
            if loop.time() >= patient_until:
                raise self._unavailable(self.record.reason or endpoint.gone_because)
            # Either it is back, or another process takes its place.
            await first_of(
                asyncio.ensure_future(endpoint.serving.wait()),
                asyncio.ensure_future(endpoint.gone.wait()),
                timeout_s=patient_until - loop.time(),
            )

    def refusal(self) -> DragomanError:
        """Return the error for who asks for an adapter that is refused."""
        return DragomanError(
            Reason.ADAPTER_REFUSED,
            f"the adapter {self.record.type!r} is refused: {self.record.reason}",
            {"adapter": self.record.type},
        )

    def _unavailable(self, why: str, retry_after_s: float = 1.0) -> DragomanError:
        error = unavailable(f"the adapter {self.record.type!r} {why}", max(retry_after_s, 0.1))
        error.metadata = {"adapter": self.record.type}
        return error

    def _set(self, state: router_pb2.AdapterState.ValueType, reason: str = "") -> None:
        # Only one that was looked at again, and found right, stops being refused.
        if not self.record.is_refused or state == router_pb2.ADAPTER_STATE_READY:
            self.record.state, self.record.reason = state, reason
        self._scene.changes.tell()

    def _set_by(self, endpoint: Endpoint, state: router_pb2.AdapterState.ValueType, reason: str = "") -> None:
        """Say what state it is in by this process; one that only serves its last runs says nothing of the others."""
        if self._is_present(endpoint):
            self._set(state, reason)

    def _is_present(self, _endpoint: Endpoint) -> bool:
        """Tell whether this process is the one that new calls get."""
        return True

    # Talking to a process that is there.

    async def _shake_hands(self, link: Link) -> adapter_pb2.DescribeResponse:
        """Wait until it is there and says SERVING; return what it says of itself.

        One that has runs may be too busy to answer in time, and is asked again.

        Raises:
            DragomanError: it answers, and not as it should.
        """
        while True:
            await link.connected()
            with contextlib.suppress(NotServedError):
                while not await _first_serving(link):
                    await asyncio.sleep(_SHORTEST_PAUSE_S)
                    await link.connected()
            try:
                return await link.describe(_DESCRIBE_S)
            except DragomanError as error:
                if error.status is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise

    async def _watch(self, endpoint: Endpoint) -> None:
        """Follow its health until another process answers at its address."""
        pause = _SHORTEST_PAUSE_S
        while not endpoint.gone.is_set():
            if await self._follow_health(endpoint):
                pause = _SHORTEST_PAUSE_S
            if endpoint.gone.is_set():
                return
            endpoint.serving.clear()
            self._set_by(endpoint, router_pb2.ADAPTER_STATE_UNAVAILABLE, "is not connected")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            await self._reconnect(endpoint)
            if not endpoint.gone.is_set():
                await self._recognise(endpoint)

    async def _reconnect(self, endpoint: Endpoint) -> None:
        """Wait until there is a connection again, or the process is known to be gone."""
        await endpoint.link.connected()

    async def _follow_health(self, endpoint: Endpoint) -> bool:
        """Follow it over one connection; return whether it said anything."""
        said = False
        try:
            async for serving in endpoint.link.health():
                said = True
                self._note_health(endpoint, serving)
        except NotServedError:
            said = True
            self._note_health(endpoint, serving=True)
            await endpoint.link.disconnected()
        return said

    def _note_health(self, endpoint: Endpoint, serving: bool) -> None:
        if endpoint.gone.is_set() or serving == endpoint.serving.is_set():
            return
        log = _log.bind(adapter=endpoint.adapter, instance=endpoint.instance_id)
        if serving:
            endpoint.serving.set()
            self._set_by(endpoint, router_pb2.ADAPTER_STATE_READY)
            log.info("adapter serves")
        else:
            endpoint.serving.clear()
            self._set_by(endpoint, router_pb2.ADAPTER_STATE_UNAVAILABLE, "says that it does not serve")
            log.warning("adapter says that it does not serve")

    async def _recognise(self, endpoint: Endpoint) -> None:
        """Look whether it is still the same process that answers."""
        try:
            description = await endpoint.link.describe(_DESCRIBE_S)
        except DragomanError:
            return  # the connection is gone again; the next one will tell
        if description.instance_id != endpoint.instance_id:
            endpoint.leave("is another process than before")


async def _first_serving(link: Link) -> bool:
    """Follow its health until it serves; return False if the connection ends before."""
    async for serving in link.health():
        if serving:
            return True
    return False
