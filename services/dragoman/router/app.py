"""The router, put together.

In a program of one's own::

    config = RouterConfig(listen=("unix:/run/user/1000/dragoman.sock",))
    async with Router(config) as router:
        ...  # clients connect to router.addresses

For ``dragoman serve`` there is ``run_router``, which also follows signals: the first SIGTERM or SIGINT drains, the
second ends at once, SIGHUP looks for agents anew.
"""

import asyncio
import contextlib
import importlib.metadata
import signal
from collections.abc import Callable, Sequence
from typing import Self

import structlog
from dragoman.protocol.logs import configure_logs
from dragoman.protocol.server import DragomanServer, service_handler
from dragoman.router._domain.directory import AdapterSpec, Directory
from dragoman.router._domain.runs import Retention
from dragoman.router._local.clock import SystemClock
from dragoman.router._local.detection_file import DetectionFile
from dragoman.router._local.guarded import GuardLauncher
from dragoman.router._local.places import Places, hold_places
from dragoman.router._local.processes import SystemProcesses
from dragoman.router._local.sources import address_specs, entry_point_specs, manifest_specs
from dragoman.router._rpc.adapter_service import AdapterServicer
from dragoman.router._rpc.admitting import Policy
from dragoman.router._rpc.core import Core
from dragoman.router._rpc.detecting import Detecting
from dragoman.router._rpc.forgetting import Kept
from dragoman.router._rpc.keeping import Keeping
from dragoman.router._rpc.router_service import RouterServicer
from dragoman.router._rpc.scene import Scene, Timing
from dragoman.router._rpc.takeover import Takeover
from dragoman.router._store.database import Database, StoreError
from dragoman.router._store.postgres import PostgresDatabase
from dragoman.router._store.sqlite import SqliteDatabase
from dragoman.router._store.store import Store
from dragoman.router.config import DEFAULT_LISTEN, POSTGRES, RouterConfig
from dragoman.v1 import adapter_pb2, router_pb2

__all__ = ["DEFAULT_LISTEN", "Router", "RouterConfig", "StoreError", "run_router"]

_ADAPTERS = adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"]
_ROUTER = router_pb2.DESCRIPTOR.services_by_name["RouterService"]

_log = structlog.get_logger("dragoman.router")


class Router:
    """A router inside a running event loop; an asynchronous context manager. Used once.

    Args:
        config: its configuration.

    Raises:
        AddressError: on entering: it may not or cannot listen where it should.
        OSError: on entering: its directories cannot be made.
        StoreError: on entering: the run log cannot be used.
    """

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self._held = contextlib.ExitStack()
        self._running: _Running | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Router {' '.join(self.addresses) or '(not running)'}>"

    async def __aenter__(self) -> Self:
        with contextlib.ExitStack() as held:
            running = _Running(self.config, held.enter_context(hold_places(self.config.state_dir)))
            await running.core.keeping.open()
            try:
                await running.server.start()
                running.core.begin(self.config.advertise or running.server.addresses[0])
                # Once before anybody asks: after a restart its runs are known again.
                await running.takeover.begin()
                await running.server.set_serving()
            except BaseException:
                await running.core.keeping.close()
                raise
            self._held = held.pop_all()
        self._running = running
        _log.info("router ready", listen=self.addresses, adapters=running.core.scene.directory.types())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop(0.0)

    @property
    def addresses(self) -> list[str]:
        """Where it listens: what was configured, with real ports."""
        return self._running.server.addresses if self._running is not None else []

    def refresh_detection(self) -> None:
        """Forget what was detected and look for all agents anew, in the background."""
        if self._running is not None and not self._running.core.is_draining:
            self._running.core.scene.tasks.start(self._running.detecting.refresh(), "refresh detection")

    async def stop(self, grace_s: float) -> None:
        """Drain and end: nothing that was started here is left.

        Health says NOT_SERVING and new calls are refused from now on. Live runs may go on for ``grace_s`` seconds;
        then launched adapters are told to end, which cancels their runs, and clients' streams end. Calling it again
        waits for the same end; with a grace of zero it also hastens it.

        Args:
            grace_s: seconds.
        """
        if self._running is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(self._running, grace_s))
        elif grace_s <= 0:
            self._running.core.hurry()
        await asyncio.shield(self._stopping)

    async def _stop(self, running: "_Running", grace_s: float) -> None:
        _log.info("router draining", grace_s=grace_s)
        try:
            await running.takeover.leave()
            await running.server.stop([running.core], grace_s)
        finally:
            try:
                await running.core.keeping.close()
            finally:
                self._held.close()
        _log.info("router stopped")

    async def wait(self) -> None:
        """Wait until it has been stopped."""
        if self._running is not None:
            await self._running.server.wait()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)


class _Running:
    """The parts of a router, wired."""

    def __init__(self, config: RouterConfig, places: Places) -> None:
        version = importlib.metadata.version("dragoman")
        scene = Scene(
            directory=Directory(_specs(config)),
            launcher=GuardLauncher(places.runtime, places.logs, orphan_after_s=config.adapter_orphan_after_s),
            clock=SystemClock(),
            processes=SystemProcesses(),
            timing=_timing(config),
        )
        kept = Retention(config.retain_finished_s, config.max_retained_runs, config.max_retained_bytes)
        log = Kept(config.log_retain_s, config.log_max_bytes, config.log_retain_sessions_s)
        runs = Store(_database(config.run_log, places))
        name = scene.processes.own_name()
        keeping = Keeping(runs, scene.clock, name, kept=log, lease_s=config.log_lease_s)
        policy = Policy(config.max_runs, config.upstream_retries, config.breaker_crashes)
        self.core = Core(scene, kept, keeping, policy)
        store = DetectionFile(places.detections)
        self.takeover = Takeover(self.core, stays=config.takes_over)
        self.detecting = Detecting(self.core, store, ttl_s=config.detect_ttl_s, version=version)
        adapters = AdapterServicer(self.core, self.detecting, self.takeover)
        services = {
            _ADAPTERS: service_handler(_ADAPTERS, adapters, raw_requests=True),
            _ROUTER: service_handler(_ROUTER, RouterServicer(self.core, version=version)),
        }
        self.server = DragomanServer(services, config.listen)


def _database(run_log: str, places: Places) -> Database:
    if run_log.startswith(POSTGRES):
        return PostgresDatabase(f"postgresql://{run_log.partition('://')[2]}")
    # What is to be forgotten lies where nothing outlives the router.
    return SqliteDatabase(places.runtime / "runs.db" if run_log == "memory" else places.runs)


def _timing(config: RouterConfig) -> Timing:
    return Timing(
        start_s=config.start_timeout_s,
        idle_s=config.idle_after_s,
        stop_s=config.stop_timeout_s,
        reattach_s=config.reattach_s,
        detect_s=config.detect_timeout_s,
    )


def _specs(config: RouterConfig) -> list[AdapterSpec]:
    """Find the adapters. Who is found first gets a name that two claim."""
    entry_points = entry_point_specs() if config.entry_points else []
    return [*entry_points, *manifest_specs(config.manifest_paths), *address_specs(config.addresses)]


def run_router(config: RouterConfig, *, on_ready: Callable[[Sequence[str]], None] | None = None) -> None:
    """Run a router until SIGTERM or SIGINT; the first drains, the second ends at once. SIGHUP detects anew.

    Args:
        config: its configuration.
        on_ready: called with the addresses once it serves.

    Raises:
        AddressError: it may not or cannot listen where it should.
        OSError: its directories cannot be made.
    """
    configure_logs(config.log_format, level=config.log_level)
    asyncio.run(_run(config, on_ready))


async def _run(config: RouterConfig, on_ready: Callable[[Sequence[str]], None] | None) -> None:
    first, second = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (second if first.is_set() else first).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    async with Router(config) as router:
        loop.add_signal_handler(signal.SIGHUP, router.refresh_detection)
        if on_ready is not None:
            on_ready(router.addresses)
        await first.wait()
        stopping = asyncio.ensure_future(router.stop(config.drain_grace_s))
        impatient = asyncio.ensure_future(second.wait())
        await asyncio.wait({stopping, impatient}, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        if not stopping.done():
            await router.stop(0.0)
        await stopping
