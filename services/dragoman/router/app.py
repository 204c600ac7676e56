"""The router's wiring and its main program.

Embedded in another program::

    config = RouterConfig(listen=("unix:/run/user/1000/dragoman.sock",))
    async with Router(config) as router:
        ...  # clients connect to router.addresses

``dragoman serve`` uses ``run_router``, which also handles signals: the first SIGTERM or SIGINT drains, the second
stops at once, SIGHUP refreshes the detections.
"""

import asyncio
import contextlib
import gc
import importlib.metadata
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from dragoman.protocol.access import named_trust
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.health_port import health_served
from dragoman.protocol.logs import Logger, configure_logs
from dragoman.protocol.private import default_address, make_default_directory
from dragoman.protocol.server import DragomanServer, service_handler
from dragoman.protocol.telemetry import load_metrics, load_tracing
from dragoman.protocol.texts import enum_name
from dragoman.router.adapters.adapter_set import AdapterSet
from dragoman.router.adapters.context import AdapterContext, Timing
from dragoman.router.adapters.descriptions import DescriptionFolder
from dragoman.router.adapters.detection_file import DetectionFile
from dragoman.router.adapters.launcher import GuardLauncher
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.registrations import Registrations
from dragoman.router.adapters.registry import AdapterRegistry
from dragoman.router.adapters.watch import FileWatch
from dragoman.router.api.acceptance import Acceptance
from dragoman.router.api.adapter_service import AdapterServicer
from dragoman.router.api.agent_service import AgentServicer
from dragoman.router.api.agents import StoredAgents
from dragoman.router.api.budget_service import BudgetServicer
from dragoman.router.api.call_quotas import CallQuotas
from dragoman.router.api.detection import AgentDetector
from dragoman.router.api.drain import Drain
from dragoman.router.api.levels import RunsWatched
from dragoman.router.api.locate import RunLocator
from dragoman.router.api.router_service import AdapterList, RouterServicer, RunList, SessionList
from dragoman.router.api.streaming import RunStreams
from dragoman.router.cluster.failover import COMMAND, Failover
from dragoman.router.cluster.forwarding import ReplicaForwarder
from dragoman.router.config import POSTGRES, RouterConfig
from dragoman.router.launching import Launching, open_launching
from dragoman.router.model.ports import RequestPolicy
from dragoman.router.model.retention import RetainedRuns
from dragoman.router.model.tasks import Changes, Tasks
from dragoman.router.runs.admission import AdmissionController, AdmissionPolicy
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.runtime_dirs import RuntimeDirs
from dragoman.router.storage.database import Database, StoreError
from dragoman.router.storage.postgres import PostgresDatabase
from dragoman.router.storage.retention import RetentionPolicy
from dragoman.router.storage.run_log import RunLog
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.router.system import SystemClock, SystemProcesses
from dragoman.v1 import adapter_pb2, router_pb2

if TYPE_CHECKING:
    from dragoman.protocol.run_tokens import RunTokens
    from dragoman.router.adapters.kubernetes.discovery import KubernetesDiscovery
    from dragoman.router.api.webhooks import Webhooks
    from dragoman.router.runs.actor import Run

__all__ = ["Router", "RouterConfig", "StoreError", "run_router"]

_ADAPTERS = adapter_pb2.DESCRIPTOR.services_by_name["AdapterService"]
_ROUTER = router_pb2.DESCRIPTOR.services_by_name["RouterService"]

_GC_THRESHOLDS: Final = (2_000, 5, 250)
"""Objects made, and collections of each generation, until the next one is collected. The first is small, so that no
collection of the second holds the event loop for more than some milliseconds."""

_log = Logger("dragoman.router")


class Router:
    """A router inside a running event loop; an asynchronous context manager. Used once.

    Args:
        config: its configuration.
        launching: what starts its adapters, opened with the same configuration; absent, the router opens it.

    Raises:
        AddressError: on entering: it cannot listen on a configured address, or its directories are not safe.
        OSError: on entering: its directories cannot be created.
        PolicyError: on entering: the policy is missing or invalid.
        StoreError: on entering: the run log is unusable.
        WebhookError: on entering: the webhooks are invalid.
    """

    def __init__(self, config: RouterConfig, launching: Launching | None = None) -> None:
        self.config = config
        self._launching = launching
        self._held = contextlib.AsyncExitStack()
        self._running: _Running | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Router {' '.join(self.addresses) or '(not running)'}>"

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as held:
            launching = self._launching
            if launching is None:
                launching = held.enter_context(open_launching(self.config))
            running = _Running(self.config, launching)
            if running.metrics is not None:
                await held.enter_async_context(running.metrics.served(self.config.metrics))
            if self.config.health:
                await held.enter_async_context(health_served(self.config.health, running.server.check_health))
            await running.run_log.open()
            try:
                await running.server.start()
                running.begin(self.config.advertise or running.server.addresses[0])
                # Before the first call is served, so that the runs are known again after a restart.
                await running.failover.begin()
                await running.server.set_serving()
            except BaseException:
                await running.run_log.close()
                raise
            self._held = held.pop_all()
        self._running = running
        _log.info("router ready", listen=self.addresses, adapters=running.registry.types())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop(0.0)

    @property
    def addresses(self) -> list[str]:
        """The configured addresses that it listens on, with actual ports."""
        return self._running.server.addresses if self._running is not None else []

    def refresh_detection(self) -> None:
        """Clear the detection cache and detect all agents again, in the background."""
        if self._running is not None and not self._running.drain.is_draining:
            self._running.tasks.start(self._running.detector.refresh(), "refresh detection")

    def detect(self, on_detected: Callable[[Sequence[adapter_pb2.Detection]], None]) -> None:
        """Detect all agents that are not cached, in the background, and pass the detections to a callback."""
        if self._running is not None and not self._running.drain.is_draining:
            self._running.tasks.start(self._detect(self._running, on_detected), "detection at start")

    async def _detect(
        self, running: "_Running", on_detected: Callable[[Sequence[adapter_pb2.Detection]], None]
    ) -> None:
        response = await running.detector.all(adapter_pb2.DetectRequest())
        if not running.drain.is_draining:
            on_detected(response.detections)

    async def stop(self, grace_s: float) -> None:
        """Drain and stop; no process that this router started is left.

        From now on health reports NOT_SERVING and new calls are rejected. Live runs may continue for ``grace_s``
        seconds; then launched adapters stop, which cancels their runs, and clients' streams end. A second call waits
        for the same end; with a grace of zero it ends the drain at once.

        Args:
            grace_s: seconds.
        """
        if self._running is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(self._running, grace_s))
        elif grace_s <= 0:
            self._running.drain.hurry.set()
        await asyncio.shield(self._stopping)

    async def _stop(self, running: "_Running", grace_s: float) -> None:
        _log.info("router draining", grace_s=grace_s)
        try:
            running.failover.leave()
            await running.server.stop([running.drain], grace_s)
            if running.webhooks is not None:
                await running.webhooks.close()
        finally:
            try:
                await running.run_log.close()
            finally:
                await asyncio.to_thread(running.tracing.close)
                await self._held.aclose()
        _log.info("router stopped")

    async def wait(self) -> None:
        """Wait until it has been stopped."""
        if self._running is not None:
            await self._running.server.wait()
        if self._stopping is not None:
            await asyncio.shield(self._stopping)


class _Running:
    """The wired parts of a router."""

    def __init__(self, config: RouterConfig, launching: Launching) -> None:
        places = launching.starting.dirs
        version = importlib.metadata.version("dragoman")
        clock, processes, timing, changes = SystemClock(), SystemProcesses(), _timing(config), Changes()
        self.registry, self.tasks = AdapterRegistry(launching.specs), Tasks()
        context = AdapterContext(
            registry=self.registry,
            launcher=GuardLauncher(launching.starting.starter),
            descriptions=DescriptionFolder(places.descriptions),
            clock=clock,
            processes=processes,
            timing=timing,
            tasks=self.tasks,
            changes=changes,
        )
        self._max_runs = config.max_runs
        owner = processes.own_name() + (COMMAND if config.embedded else "")
        kept = RetentionPolicy(config.log_retain_s, config.log_max_bytes, config.log_retain_sessions_s)
        store = Store(_database(config.run_log, places))
        self.run_log = RunLog(store, clock, owner, kept=kept, lease_s=config.log_lease_s)
        policy = AdmissionPolicy(config.max_runs, config.upstream_retries, config.breaker_crashes)
        self._members = members = AdapterSet(context)
        self._sources = launching.sources
        self._adapters = adapters = AdapterPool(context, members)
        self._registrations = Registrations(members, context)
        self._kubernetes = _kubernetes(config, members, clock)
        requests = _request_policy(config.policy)
        admission = AdmissionController(clock, changes, self.run_log, policy, adapters.get, requests)
        retained = RetainedRuns(config.retain_finished_s, config.max_retained_runs)
        runs = RunRegistry(clock, self.tasks, config.reattach_s, retained, self.run_log, admission)
        self.failover = Failover(runs, self.run_log, adapters, processes, self.tasks, config.reattach_s)
        forwarder = ReplicaForwarder(config.peer_name)
        self.drain = Drain(runs, members, forwarder, self.tasks, timing.stop_s)
        detections = DetectionFile(places.detections)
        self.detector = AgentDetector(adapters, admission, context, detections, version)
        locator = RunLocator(runs, self.run_log, self.failover, adapters, forwarder)
        quotas = CallQuotas(requests)
        agents = StoredAgents(self.run_log, adapters, clock, config.secrets)
        acceptance = Acceptance(agents, runs, self.drain, requests, quotas, _issuing())
        streams = RunStreams(self.run_log.store, self.drain)
        adapter_list = AdapterList(adapters, admission, changes)
        run_list = RunList(runs, self.run_log, locator)
        session_list = SessionList(runs.sessions, self.run_log)
        self.tracing = runs.tracing = load_tracing("dragoman-router")
        watched = RunsWatched(runs, adapters, admission, self.run_log)
        self.metrics = load_metrics(watched.levels) if config.metrics else None
        watched.observer, runs.ended = self.metrics or watched.observer, watched.ended
        self.webhooks = _webhooks(config.webhooks, clock)
        if self.webhooks is not None:
            runs.host.heard, runs.ended = self.webhooks.heard, _both(watched.ended, self.webhooks.ended)
        services = {
            _ADAPTERS: service_handler(
                _ADAPTERS,
                AdapterServicer(adapters, acceptance, locator, streams, self.detector, self.drain),
                raw_requests=True,
                observer=self.metrics,
            ),
            _ROUTER: service_handler(
                _ROUTER,
                RouterServicer(
                    adapter_list, run_list, session_list, self.drain, self._registrations, version=version
                ),
                AgentServicer(agents, self.drain),
                BudgetServicer(requests, self.run_log, clock),
                observer=self.metrics,
            ),
        }
        self.server = DragomanServer(
            services,
            _listen(config),
            if_free=_default_if_free(config),
            insecure_tcp_without_token=config.insecure_tcp_without_token,
            has_scopes=True,
            limit=quotas.call,
        )

    def begin(self, address: str) -> None:
        """From now on connect to adapters that run already, follow which come and go, and renew the runs' lease."""
        self.run_log.address = address
        self.tasks.start(self.run_log.keep_alive(), "keep the run log")
        self._members.begin()
        if self.webhooks is not None:
            self.webhooks.begin()
        for source in self._sources:
            self.tasks.start(FileWatch(source, self._members).run(), "watch the adapters' files")
        if self._kubernetes is not None:
            self.tasks.start(self._kubernetes.run(), "follow Kubernetes Services")
        self.tasks.start(self._registrations.expire(), "expire registrations")
        self.tasks.start(self._check_limits(), "check configured limits")

    async def _check_limits(self) -> None:
        """Log configured limits of unknown adapters, once those at configured addresses are known."""
        await self._adapters.tried()
        for name in sorted(self._max_runs):
            if self._adapters.present(name) is None:
                near = self._adapters.similar_names(name)
                why = "no known adapter has this name; an undeclared alias takes effect once its adapter has started"
                _log.warning("max_runs matches no adapter", adapter=name, did_you_mean=near, why=why)


def _listen(config: RouterConfig) -> tuple[str, ...]:
    if config.listen:
        return config.listen
    make_default_directory()
    return (default_address(),)


def _default_if_free(config: RouterConfig) -> str:
    if not config.at_default_too or default_address() in config.listen:
        return ""
    try:
        make_default_directory()
    except AddressError as error:
        _log.info("not listening at the default address", why=str(error))
        return ""
    return default_address()


def _database(run_log: str, places: RuntimeDirs) -> Database:
    if run_log.startswith(POSTGRES):
        return PostgresDatabase(f"postgresql://{run_log.partition('://')[2]}")
    # "memory" is a file, too, in a directory that does not outlive the router.
    return SqliteDatabase(places.runtime / "runs.db" if run_log == "memory" else places.runs)


def _kubernetes(config: RouterConfig, adapters: AdapterSet, clock: SystemClock) -> "KubernetesDiscovery | None":
    if not config.kubernetes:
        return None
    from dragoman.router.adapters.kubernetes.api import ApiAccess  # noqa: PLC0415 - most routers are in no cluster
    from dragoman.router.adapters.kubernetes.discovery import KubernetesDiscovery  # noqa: PLC0415 - as above

    access = ApiAccess(
        config.kubernetes, config.kubernetes_account, config.kubernetes_url, config.kubernetes_namespace
    )
    return KubernetesDiscovery(access, adapters, clock)


def _request_policy(file: Path | None) -> RequestPolicy:
    if file is None:
        return RequestPolicy()
    from dragoman.router.api.policy_file import OperatorPolicyFile  # noqa: PLC0415 - most routers have none

    return OperatorPolicyFile(file)


def _webhooks(file: Path | None, clock: SystemClock) -> "Webhooks | None":
    if file is None:
        return None
    from dragoman.router.api.webhooks import Webhooks, read_webhooks  # noqa: PLC0415 - most routers have none

    return Webhooks(read_webhooks(file), clock)


def _both(first: "Callable[[Run], None]", second: "Callable[[Run], None]") -> "Callable[[Run], None]":
    def call(run: "Run") -> None:
        first(run)
        second(run)

    return call


def _issuing() -> "Callable[[], RunTokens | None]":
    trust = named_trust()
    if trust is None:
        return lambda: None
    from dragoman.router.api.issuing import Issuing  # noqa: PLC0415 - few routers have such a file

    return Issuing(trust).current


def _timing(config: RouterConfig) -> Timing:
    return Timing(
        start_s=config.start_timeout_s,
        idle_s=config.idle_after_s,
        stop_s=config.stop_timeout_s,
        reattach_s=config.reattach_s,
        detect_s=config.detect_timeout_s,
        detect_ttl_s=config.detect_ttl_s,
    )


def _log_detections(found: Sequence[adapter_pb2.Detection]) -> None:
    for one in found:
        auth = enum_name(adapter_pb2.AuthState.DESCRIPTOR, one.auth, "AUTH_STATE_").lower()
        facts = {"available": one.available, "version": one.version, "auth": auth}
        _log.info("agent detected", adapter=one.adapter, **facts, message=one.message, hint=one.hint)


def run_router(
    config: RouterConfig,
    *,
    on_ready: Callable[[Sequence[str]], None] | None = None,
    on_detected: Callable[[Sequence[adapter_pb2.Detection]], None] | None = None,
) -> None:
    """Run a router until SIGTERM or SIGINT; the first drains, the second stops at once. SIGHUP refreshes detections.

    Args:
        config: its configuration.
        on_ready: called with the addresses once the router serves.
        on_detected: called with the detections of ``config.detects_at_start``. None: they are logged.

    Raises:
        AddressError: it cannot listen on a configured address.
        ModuleNotFoundError: ``uvloop`` is not installed.
        OSError: its directories cannot be created.
        PolicyError: the policy is missing or invalid.
        WebhookError: the file of webhooks is.
    """
    configure_logs(config.log_format, level=config.log_level)
    # What is loaded stays, and what a run leaves behind has few cycles. By default Python would look through all live
    # runs again and again: with 1 000 of them for 150 ms each time.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_uvloop() if config.uvloop else None) as runner:
        runner.run(_run(config, on_ready, on_detected or _log_detections))


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop  # noqa: PLC0415 - an extra

    return uvloop.new_event_loop


async def _run(
    config: RouterConfig,
    on_ready: Callable[[Sequence[str]], None] | None,
    on_detected: Callable[[Sequence[adapter_pb2.Detection]], None],
) -> None:
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
        if config.detects_at_start:
            router.detect(on_detected)
        await first.wait()
        stopping = asyncio.ensure_future(router.stop(config.drain_grace_s))
        impatient = asyncio.ensure_future(second.wait())
        await asyncio.wait({stopping, impatient}, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        if not stopping.done():
            await router.stop(0.0)
        await stopping
