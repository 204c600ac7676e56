"""An adapter announces itself at routers, and renews that as long as it lives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from dragoman.protocol.addresses import AddressError, parse_address
from dragoman.protocol.backoff import Backoff
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.limits import channel_options
from dragoman.protocol.logs import Logger
from dragoman.protocol.statuses import from_rpc_error
from dragoman.v1 import router_pb2
from msgspec import Struct

_CALL_S: Final = 15.0
"""How long a router may take to answer; it calls the adapter meanwhile."""
_FAREWELL_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0
_RECONNECT_MS: Final = 1000
_SILENT_S: Final = 5.0
"""After this long without a connection the log says so."""
_ANYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - they are refused

_log = Logger("dragoman.sdk")


class Registration(Struct, frozen=True):
    """Where an adapter announces itself, with ``RegisterAdapter``.

    Attributes:
        routers: addresses of routers; each has registrations of its own.
        address: the adapter's, as the routers reach it. Empty: the first that it listens on.
        lease_s: after so many seconds without a renewal a router removes the adapter.
    """

    routers: Sequence[str]
    address: str = ""
    lease_s: float = 30.0

    def announced(self, listen: Sequence[str]) -> str:
        """Return the address that is announced.

        Returns:
            The address; empty if there is no router.

        Raises:
            AddressError: it, or a router's, is no address that can be reached.
        """
        if not self.routers:
            return ""
        for router in self.routers:
            parse_address(router)
        address = parse_address(self.address or listen[0])
        if address.host in _ANYWHERE:
            raise AddressError(
                f"{address} is where the adapter listens, but not where a router reaches it; say that address with"
                " --advertise HOST:PORT"
            )
        return str(address)


@contextlib.asynccontextmanager
async def registered(registration: Registration, address: str, adapter: str, instance_id: str) -> AsyncIterator[None]:
    """Keep an adapter registered while the block runs; nothing that goes wrong with that ends it."""
    if not registration.routers:
        yield
        return
    request = router_pb2.RegisterAdapterRequest(address=address, instance_id=instance_id, adapter=adapter)
    request.lease.FromNanoseconds(int(registration.lease_s * 1e9))
    loop = asyncio.get_running_loop()
    keeping = [
        loop.create_task(_RouterLink(router, request).keep(registration.lease_s / 3), name=f"register at {router}")
        for router in registration.routers
    ]
    try:
        yield
    finally:
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


class _RouterLink:
    """The registration at one router."""

    def __init__(self, router: str, request: router_pb2.RegisterAdapterRequest) -> None:
        self._router = router
        self._request = request
        self._reported = ""
        """What the log says of it at present."""

    async def keep(self, renew_s: float) -> None:
        """Register, and again every ``renew_s`` seconds, and when the router is back; unregister when cancelled."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                options = {**dict(channel_options(self._router)), "grpc.max_reconnect_backoff_ms": _RECONNECT_MS}
                channel = open_channel(self._router, list(options.items()))
            except DragomanError as error:
                self._report("the router's address cannot be used", why=error.message)
                await asyncio.sleep(backoff.next_s())
                continue
            try:
                await self._keep_at(channel, renew_s)
            finally:
                await asyncio.shield(self._leave(channel))

    async def _keep_at(self, channel: grpc.aio.Channel, renew_s: float) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            await self._connected(channel)
            try:
                await self._call(channel, "RegisterAdapter", self._request.SerializeToString(), _CALL_S)
            except DragomanError as error:
                self._report("registration refused", why=error.message)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            self._report("adapter registered")
            await _until_lost(channel, renew_s)

    async def _connected(self, channel: grpc.aio.Channel) -> None:
        try:
            async with asyncio.timeout(_SILENT_S):
                await channel.channel_ready()
        except TimeoutError:
            self._report("the router cannot be reached; waiting for it")
            await channel.channel_ready()

    async def _call(self, channel: grpc.aio.Channel, method: str, request: bytes, timeout_s: float) -> None:
        call: Any = channel.unary_unary(f"/dragoman.v1.RouterService/{method}")
        try:
            await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def _leave(self, channel: grpc.aio.Channel) -> None:
        request = router_pb2.UnregisterAdapterRequest(
            address=self._request.address, instance_id=self._request.instance_id
        )
        with contextlib.suppress(DragomanError):  # else the lease ends it
            await self._call(channel, "UnregisterAdapter", request.SerializeToString(), _FAREWELL_S)
        await channel.close()

    def _report(self, what: str, **why: str) -> None:
        """Log what is new."""
        now = f"{what} {why}"
        if now != self._reported:
            self._reported = now
            log = _log.info if not why else _log.warning
            log(what, router=self._router, address=self._request.address, **why)


async def _until_lost(channel: grpc.aio.Channel, timeout_s: float) -> None:
    """Wait until the connection is lost, for at most ``timeout_s`` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
