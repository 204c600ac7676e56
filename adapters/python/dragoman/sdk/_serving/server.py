"""Serving an adapter as a process of its own."""

import asyncio
import contextlib
import importlib
import math
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dragoman.protocol.addresses import AddressError
from dragoman.protocol.health_port import health_served
from dragoman.protocol.limits import DEFAULT_GRACE_S
from dragoman.protocol.logs import LogFormat, Logger, configure_logs
from dragoman.protocol.server import DragomanServer, service_handler
from dragoman.protocol.telemetry import load_metrics, load_tracing
from dragoman.sdk._process.prepared_guard import SpareGuards
from dragoman.sdk._serving.service import AdapterServicer
from dragoman.sdk.adapter import Adapter
from dragoman.v1 import adapter_pb2

if TYPE_CHECKING:
    from dragoman.sdk._serving.registering import Registration

LISTEN_VARIABLE = "DRAGOMAN_LISTEN"
"""The environment variable in which a launcher says where to listen."""
METRICS_VARIABLE = "DRAGOMAN_METRICS"
"""The environment variable with the address at which Prometheus reads metrics; absent, none are kept."""
HEALTH_VARIABLE = "DRAGOMAN_HEALTH"
"""The environment variable with the address of a port in the clear that serves health alone; absent, none does."""
EXPECTS_RUN_VARIABLE = "DRAGOMAN_EXPECTS_RUN"
"""The environment variable that is set if a launcher is about to send a run."""
DRAIN_GRACE_VARIABLE = "DRAGOMAN_DRAIN_GRACE"
"""The environment variable that says for how many seconds live runs may continue after SIGTERM; 0 if it is absent.

Not longer by default: what launches an adapter, a router or a person at a terminal, wants it gone when it ends it.
"""

_FIRST_RUN_IMPORTS = ("concurrent.futures.thread", "hmac", "tempfile")
"""What the first run imports, as an adapter serves sooner without it."""

_SERVICE = adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"]
_log = Logger("dragoman.sdk")


class AdapterServer:
    """Serves an adapter inside a running event loop; ``serve`` does so for a whole process.

    Args:
        adapter: the adapter.
        listen: addresses: ``unix:/path``, or ``host:port`` on loopback (port 0: any) for callers with the token.
        insecure_tcp_without_token: whether calls over TCP are answered without the token; for tests alone.
        drain_grace_s: how long live runs may continue once it is to stop, before they are cancelled.
        metrics: the address at which Prometheus reads metrics; empty for none.
        health: the address of a port in the clear that serves health alone, for probes; empty for none.
    """

    def __init__(
        self,
        adapter: Adapter,
        listen: Sequence[str],
        *,
        insecure_tcp_without_token: bool = False,
        drain_grace_s: float = 0.0,
        metrics: str = "",
        health: str = "",
    ) -> None:
        self._adapter = adapter
        self._guards = SpareGuards(is_keeping=True)
        self.servicer = AdapterServicer(adapter, self._guards, drain_grace_s)
        self._metrics = load_metrics(self.servicer.levels) if metrics else None
        self._metrics_address, self._health_address = metrics, health
        self._held = contextlib.AsyncExitStack()
        self.servicer.observer = self._metrics or self.servicer.observer
        handler = service_handler(_SERVICE, self.servicer, observer=self.servicer.observer)
        self._server = DragomanServer(
            {_SERVICE: handler}, listen, insecure_tcp_without_token=insecure_tcp_without_token
        )

    @property
    def addresses(self) -> list[str]:
        """Where it listens, once started."""
        return self._server.addresses

    async def start(self) -> None:
        """Listen, say SERVING, and make ready for a run that is expected.

        Raises:
            AddressError: an address is taken, or is not on this machine.
        """
        if self._metrics is not None:
            await self._held.enter_async_context(self._metrics.served(self._metrics_address))
        if self._health_address:
            await self._held.enter_async_context(health_served(self._health_address, self._server.check_health))
        await self._server.start()
        await self._server.set_serving()
        if os.environ.pop(EXPECTS_RUN_VARIABLE, "") and self._adapter.starts_programs:
            self._guards.prepare()
            for name in _FIRST_RUN_IMPORTS:
                importlib.import_module(name)

    async def stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Refuse new runs, let live ones continue for ``drain_grace_s``, cancel the rest, and close.

        Args:
            grace_s: seconds that a cancelled run gets.
        """
        try:
            await self._server.stop([self.servicer], grace_s)
        finally:
            self._guards.close()
            await self._held.aclose()
            await self._adapter.close()


def serve(
    adapter: Adapter,
    listen: Sequence[str] | None = None,
    *,
    log_format: LogFormat = "auto",
    log_level: str = "info",
    insecure_tcp_without_token: bool = False,
    register: "Registration | None" = None,
) -> None:
    """Serve ``adapter`` until SIGTERM or SIGINT; then drain. A second signal stops at once.

    Live runs may continue for ``DRAGOMAN_DRAIN_GRACE`` seconds while new ones are refused.

    Args:
        adapter: the adapter.
        listen: addresses; absent, what ``DRAGOMAN_LISTEN`` says.
        log_format: how to log to standard error.
        log_level: the least level that is logged.
        insecure_tcp_without_token: whether calls over TCP are answered without the token; for tests alone.
        register: the routers at which the adapter announces itself as long as it lives; absent, none: a router has
            launched it, or knows where it is.

    Raises:
        AddressError: nowhere to listen, or an address cannot be used.
        ValueError: ``DRAGOMAN_DRAIN_GRACE`` is no number of seconds.
    """
    # One address: a socket's path may hold spaces.
    variable = os.environ.get(LISTEN_VARIABLE, "")
    addresses = list(listen or ([variable] if variable else []))
    if not addresses:
        raise AddressError(f"nowhere to listen: give an address or set {LISTEN_VARIABLE}, e.g. unix:$HOME/agent.sock")
    configure_logs(log_format, level=log_level)
    if register is not None:
        register.announced(addresses)
    grace_s = _drain_grace_s()

    def server() -> AdapterServer:
        return AdapterServer(
            adapter,
            addresses,
            insecure_tcp_without_token=insecure_tcp_without_token,
            drain_grace_s=grace_s,
            metrics=os.environ.get(METRICS_VARIABLE, ""),
            health=os.environ.get(HEALTH_VARIABLE, ""),
        )

    asyncio.run(_serve(server, register))


def _drain_grace_s() -> float:
    text = os.environ.get(DRAIN_GRACE_VARIABLE, "").strip() or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{DRAIN_GRACE_VARIABLE}={text!r} is no number of seconds; e.g. 300")
    return seconds


async def _serve(make_server: Callable[[], AdapterServer], register: "Registration | None") -> None:
    server = make_server()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    info, instance_id = server.servicer.info, server.servicer.instance_id
    server.servicer.tracing = load_tracing(f"dragoman-adapter-{info.type}")
    await server.start()
    _log.info("adapter ready", adapter=info.type, listen=server.addresses, instance_id=instance_id)
    async with contextlib.AsyncExitStack() as registration:
        if register is not None:
            from dragoman.sdk._serving.registering import registered  # noqa: PLC0415 - most adapters do not register

            where = register.announced(server.addresses)
            await registration.enter_async_context(registered(register, where, info.type, instance_id))
        await stop.wait()
    _log.info("adapter draining", adapter=info.type)
    drain = asyncio.create_task(server.stop())
    hasty = asyncio.create_task(hurry.wait())
    await asyncio.wait([drain, hasty], return_when=asyncio.FIRST_COMPLETED)
    if not drain.done():
        await server.servicer.drain(0.0)
    await drain
    hasty.cancel()
    await asyncio.to_thread(server.servicer.tracing.close)
    _log.info("adapter stopped", adapter=info.type)
