"""What Prometheus reads of a server. Needs the extra ``telemetry``; imported by servers that are to be measured.

Labels are the names of RPCs, statuses, adapters and outcomes: no run, caller or model, and nothing
that a request holds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final

from dragoman.protocol.addresses import AddressError, port_address
from dragoman.protocol.logs import Logger
from dragoman.protocol.observer import Level, Observer
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_RUN_BUCKETS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 14400)
_DELAY_BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2)
_LOOK_S: Final = 1.0
"""How often the delay of the event loop is measured."""
_READ_S: Final = 5.0
"""How long a server that is busy may take to return its levels."""

_log = Logger("dragoman.metrics")


class Metrics(Observer):
    """Counts calls and runs.

    Args:
        levels: returns the present levels; called in the event loop.
    """

    def __init__(self, levels: Callable[[], Iterable[Level]]) -> None:
        self._levels = levels
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._calls = Counter(
            "dragoman_rpcs", "Calls that have ended.", ["rpc", "code", "reason"], registry=self.registry
        )
        self._runs = Counter("dragoman_runs", "Runs that have ended.", ["adapter", "outcome"], registry=self.registry)
        self._durations = Histogram(
            "dragoman_run_duration_seconds",
            "Time from the acceptance of a run to its end.",
            ["adapter"],
            buckets=_RUN_BUCKETS_S,
            registry=self.registry,
        )
        self._delays = Histogram(
            "dragoman_event_loop_delay_seconds",
            "How much later than it should the event loop does what is due, measured every second.",
            buckets=_DELAY_BUCKETS_S,
            registry=self.registry,
        )

    def call_ended(self, rpc: str, code: str, reason: str) -> None:
        """Count a call."""
        self._calls.labels(rpc, code, reason).inc()

    def run_ended(self, adapter: str, outcome: str, duration_s: float) -> None:
        """Count a run."""
        self._runs.labels(adapter, outcome).inc()
        self._durations.labels(adapter).observe(duration_s)

    @contextlib.asynccontextmanager
    async def served(self, text: str) -> AsyncIterator[str]:
        """Serve them over HTTP at an address while the block runs; yield ``host:port``.

        Raises:
            AddressError: nothing can listen there.
        """
        chosen = port_address(text)
        host, port = chosen.host, chosen.port
        self.registry.register(_Levels(asyncio.get_running_loop(), self._levels))
        try:
            server, thread = start_http_server(port, host, registry=self.registry)
        except OSError as error:
            raise AddressError(f"metrics cannot be served at {host}:{port}: {error.strerror}") from error
        delays = asyncio.create_task(self._measure_delays(), name="measure the event loop")
        address = f"{host}:{server.server_port}"
        _log.info("metrics are served", address=address)
        try:
            yield address
        finally:
            delays.cancel()
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join()

    async def _measure_delays(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            self._delays.observe(max(0.0, loop.time() - due))


class _Levels(Collector):
    """Reads the levels when Prometheus asks, from its thread, in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, levels: Callable[[], Iterable[Level]]) -> None:
        self._loop = loop
        self._levels = levels

    def describe(self) -> Iterable[Metric]:
        """Return nothing: else they were read when this is registered, in the event loop itself."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the levels."""

        async def read() -> list[Level]:
            return list(self._levels())

        for level in asyncio.run_coroutine_threadsafe(read(), self._loop).result(_READ_S):
            labels = [] if "" in level.values else ["adapter"]
            kind = CounterMetricFamily if level.is_total else GaugeMetricFamily
            family = kind(f"dragoman_{level.name}", level.documentation, labels=labels)
            for adapter, value in level.values.items():
                family.add_metric([adapter] if labels else [], value)
            yield family
