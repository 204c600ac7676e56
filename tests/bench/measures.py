"""What ``make bench`` measures, as small functions, and the figures that are judged.

A measure notes samples under ``measure.hop.quantity``, one a round; hops take turns within a round. All figures are
ratios within one run, or sizes. CPU is the scheduler's account of the process between client and adapter alone.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc

from tests.bench import agents, flood, history, startup
from tests.bench.hops import Hop, adapters, batching_socket, hop, pinned
from tests.bench.report import Figure

STREAMS = 64
PACED_STREAMS = 1000
RATES = [250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000, 32000, 48000]
"""Events per second of all paced streams, one step after the other, until one is late."""
LATE_S = 0.02
SLOW_STREAMS = 8
SLOW_BYTES_PER_S = 25_000
_TEXT = {"small": 50, "medium": 150, "large": 64 * 1024 - 256}
"""Bytes of text in events of 100 bytes, 200 bytes and 64 KB."""


@dataclass
class Rig:
    """One run of the benchmark: what is there to measure with, and what was measured."""

    load: Path | None
    """The program that is client and adapter; None without Go."""
    directory: Path
    missing: list[str]
    """Hops whose programs are not installed."""
    is_full: bool
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    remarks: list[str] = field(default_factory=list)
    _jobs: "itertools.count[int]" = field(default_factory=itertools.count)

    def note(self, measure: str, name: str, **quantities: float) -> None:
        """Add a sample of each quantity."""
        for quantity, value in quantities.items():
            self.samples[f"{measure}.{name}.{quantity}"].append(value)

    def rounds(self, quick: int, full: int) -> range:
        """Return as many rounds as the mode has."""
        return range(full if self.is_full else quick)

    def seconds(self, quick: float, full: float) -> float:
        """Return how long the mode takes for one sample."""
        return full if self.is_full else quick

    def routers(self) -> list[str]:
        """Return the routers that the mode measures; the last one as it is installed by default."""
        return ["router_uvloop", "router_telemetry", "router"] if self.is_full else ["router"]

    @contextlib.asynccontextmanager
    async def hops(self, *names: str) -> AsyncIterator[list[Hop]]:
        """Run an adapter and new hops in front of it, without those that are missing."""
        assert self.load is not None
        async with contextlib.AsyncExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.directory)))
            adapter = await stack.enter_async_context(adapters(directory, self.load))
            present = [name for name in names if name not in self.missing]
            found = [await stack.enter_async_context(hop(name, directory, adapter)) for name in present]
            for one in found:
                await self.run(one, {}, streams=1, seconds=0.3)  # warm
            yield found

    async def run(
        self,
        through: Hop,
        emission: dict[str, Any],
        *,
        streams: int,
        seconds: float = 0.0,
        read_bytes: float = 0.0,
        batching: bool = False,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[dict[str, float], float]:
        """Have a client read runs; return its report, and the CPU seconds of the hop since all streams are open.

        Without a gate in the emission the CPU of opening them counts too.

        Args:
            through: the hop to measure.
            emission: what each run emits, see ``load/adapter.go``.
            streams: how many are open at once.
            seconds: how long to begin new ones; 0: one run each.
            read_bytes: how fast each stream is read, in bytes a second; 0: as fast as possible.
            batching: ask for several events in one message.
            meanwhile: is awaited while the streams are open; then they are closed.
        """
        assert self.load is not None
        request = pb.ExecuteRequest(adapter="load_batching" if batching else "load")
        if batching:
            request.batching.SetInParent()
        adapter = batching_socket(through.adapter) if batching else through.adapter
        job = {
            "socket": str(through.socket),
            "adapter": str(adapter),
            "name": f"job{next(self._jobs)}",
            "request": request.SerializeToString().hex(),
            "emission": emission,
            "connections": min(4, streams),
            "streams": streams,
            "seconds": seconds,
            "read_bytes": read_bytes,
            "late_s": LATE_S if streams == PACED_STREAMS else 0.0,
            "timeout_s": 120.0,
        }
        before = through.cpu_s()
        client = await asyncio.create_subprocess_exec(
            *pinned([str(self.load), "client"], "1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps(job).encode() + b"\n")
        assert await client.stdout.readline() == b"open\n", f"{through.name} opened no stream"
        if emission.get("gate"):
            before = through.cpu_s()
        client.stdin.write(b"\n")
        if meanwhile is not None:
            await meanwhile()
        client.stdin.close()
        report: dict[str, Any] = json.loads(await client.stdout.read())
        used = through.cpu_s() - before
        await client.wait()
        if report["failed"]:
            self.remarks.append(f"{through.name}: {report['failed']} runs failed: {report['failure']}")
        return report, used


async def runs_in_turn(rig: Rig) -> None:
    """Time until the first event of a new run, and CPU per run, one run after the other."""
    await _runs(rig, "serial", 1)


async def runs_at_once(rig: Rig) -> None:
    """CPU per run with 64 at once."""
    await _runs(rig, "at_once", STREAMS)


async def _runs(rig: Rig, measure: str, streams: int) -> None:
    async with rig.hops("direct", "nginx", "envoy", "relay", *rig.routers()) as hops:
        for _ in rig.rounds(3, 5):
            for one in hops:
                report, used = await rig.run(one, {}, streams=streams, seconds=rig.seconds(0.7, 2.0))
                runs = max(1.0, report["runs"])
                rig.note(measure, one.name, first_us=report["first_p50_us"], per_s=runs / report["wall_s"])
                if one.pid:
                    rig.note(measure, one.name, run_ms=used / runs * 1e3)


async def flat_out(rig: Rig) -> None:
    """CPU per event of 64 streams that never pause; at the router also with batches, if it grants them."""
    slow, fast = (
        (1_000, 50_000) if rig.is_full else (400, 20_000)
    )  # events of a stream: slow ways take seconds for them
    emission = {"gate": "yes", "bytes": _TEXT["small"], "seconds": rig.seconds(0.5, 3.0)}
    async with rig.hops("nginx", "envoy", "relay", *rig.routers()) as hops:
        ways = [(one, False) for one in hops]
        if await _grants_batches(hops[-1]):
            ways.append((hops[-1], True))
        else:
            rig.remarks.append("batches: not granted by the router")
        for _ in rig.rounds(3, 5):
            for one, batching in ways:
                most = fast if batching or one.name in {"nginx", "envoy"} else slow
                report, used = await rig.run(one, {**emission, "events": most}, streams=STREAMS, batching=batching)
                events = max(1, report["events"])
                name = one.name + "_batches" * batching
                rig.note("flat", name, event_us=used / events * 1e6, per_s=events / report["wall_s"])
                rig.note("flat", name, per_message=events / max(1.0, report["messages"]))


async def _grants_batches(router: Hop) -> bool:
    address = f"unix:{router.socket}"
    async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
        stub = adapter_pb2_grpc.AdapterServiceStub(channel)
        description = await stub.Describe(pb.DescribeRequest(adapter="load_batching"))
        request = pb.ExecuteRequest(adapter="load_batching", prompt="{}")
        request.batching.SetInParent()
        with contextlib.suppress(grpc.aio.AioRpcError):  # NOT_SUPPORTED
            async for _ in stub.Execute(request):
                return description.batching
    return False


async def paced(rig: Rig) -> None:
    """Latency that is added to one event per millisecond of one stream, and CPU per event."""
    steps = [{"per_second": 1000, "seconds": rig.seconds(1.0, 3.0)}]
    emission = {"gate": "yes", "bytes": _TEXT["medium"], "steps": steps}
    async with rig.hops("direct", "nginx", "envoy", "relay", *rig.routers()) as hops:
        for _ in rig.rounds(3, 5):
            direct = 0.0
            for one in hops:
                report, used = await rig.run(one, emission, streams=1)
                rig.note("paced", one.name, p50_us=report["latency_p50_us"], p99_us=report["latency_p99_us"])
                if one.pid == 0:
                    direct = report["latency_p50_us"]
                    continue
                rig.note("paced", one.name, added_us=report["latency_p50_us"] - direct)
                rig.note("paced", one.name, event_us=used / max(1.0, report["events"]) * 1e6)


async def many_paced(rig: Rig) -> None:
    """The highest rate of 1 000 paced streams of which a hundredth at most is later than 20 ms."""
    per_stream = [{"per_second": rate / PACED_STREAMS, "seconds": rig.seconds(1.5, 3.0)} for rate in RATES]
    emission = {"gate": "yes", "bytes": _TEXT["medium"], "steps": per_stream}
    names = ("envoy", "relay", "router") if rig.is_full else ("relay", "router")
    for _ in rig.rounds(1, 2):
        async with rig.hops(*names) as hops:
            for one in hops:
                report, _ = await rig.run(one, emission, streams=PACED_STREAMS)
                rig.note("many_paced", one.name, per_s=[0, *RATES][int(report["steps_held"])])


async def idle_streams(rig: Rig) -> None:
    """Memory of a stream that is silent."""
    streams = 1000 if rig.is_full else 300
    for _ in rig.rounds(1, 2):
        async with rig.hops("nginx", "envoy", "relay", "router") as hops:
            for one in hops:
                before, after = one.resident_bytes(), 0

                async def look(at: Hop = one) -> None:
                    nonlocal after
                    after = at.resident_bytes()

                await rig.run(one, {"idle": True}, streams=streams, meanwhile=look)
                rig.note("idle", one.name, stream_kb=(after - before) / streams / 1024)


async def slow_readers(rig: Rig) -> None:
    """Memory that grows behind readers that are slower than the adapter."""
    emission = {"gate": "yes", "bytes": _TEXT["large"], "seconds": 600}
    for _ in rig.rounds(1, 2):
        async with rig.hops("envoy", "relay", "router") as hops:
            for one in hops:
                before = peak = one.resident_bytes()

                async def look(at: Hop = one) -> None:
                    nonlocal peak
                    for _ in range(int(rig.seconds(3.0, 10.0) * 10)):
                        await asyncio.sleep(0.1)
                        peak = max(peak, at.resident_bytes())

                await rig.run(one, emission, streams=SLOW_STREAMS, read_bytes=SLOW_BYTES_PER_S, meanwhile=look)
                rig.note("slow", one.name, stream_mb=(peak - before) / SLOW_STREAMS / 1e6)


async def start(rig: Rig) -> None:
    """What imports, the command and a short run take, against ``import grpc.aio`` or the bare program; memory."""
    rounds = len(rig.rounds(3, 10))
    environment = startup.environment_of(rig.directory)
    startup.compile_modules()
    for name, series in startup.import_costs(environment, rounds).items():
        for wall_s, cpu_s in zip(series.wall_s, series.cpu_s, strict=True):
            rig.note("start", name, wall_ms=wall_s * 1e3, cpu_ms=cpu_s * 1e3)
    for name, series in startup.command_costs(environment, rounds).items():
        for wall_s, cpu_s in zip(series.wall_s, series.cpu_s, strict=True):
            rig.note("command", name, wall_ms=wall_s * 1e3, cpu_ms=cpu_s * 1e3)
    short = await startup.short_run_costs(rig.directory, environment, rounds)
    for routed, bare in zip(short.routed_s, short.bare_s, strict=True):
        rig.note("short_run", "router", added_ms=(routed - bare) * 1e3)
    rig.note("short_run", "router", cpu_ms=short.cpu_s * 1e3)
    for kind, size in short.memory_mb.items():
        rig.note("memory", kind, pss_mb=size)
    if rig.is_full:
        for beyond in startup.detection_costs(rig.directory, environment, max(1, rounds // 5)):
            rig.note("detect", "command", beyond_s=beyond)


async def lines(rig: Rig) -> None:
    """The share of an agent's many lines that the run log has, in order."""
    count = 500_000 if rig.is_full else 50_000
    shutil.rmtree(folder := rig.directory / "flood", ignore_errors=True)
    folder.mkdir(mode=0o700)
    found = await flood.logged_lines(folder, count)
    rig.note("lines", "router", in_log=found.logged / count, live=found.live / count, per_s=found.live / found.wall_s)
    rig.remarks.extend(f"{count} lines: {remark}" for remark in found.remarks)


async def long_history(rig: Rig) -> None:
    """How long looking things up takes with few runs in the log and with many."""
    folder = rig.directory / "history"
    folder.mkdir(mode=0o700)
    async for name, found in history.look_ups(folder):
        rig.note("history", name, **found)


async def real_agents(rig: Rig) -> None:
    """Wall time and CPU of agents with a scripted model, through a warm router over the bare program."""
    for adapter in agents.AGENTS:
        async for sample in agents.rounds_of(adapter, rig.directory, 10):
            rig.note("agents", adapter, **sample)
    rig.missing.extend(agents.missing_agents())


@dataclass(frozen=True)
class Measure:
    """One function of this module, and what it needs."""

    name: str
    title: str
    function: Callable[[Rig], Awaitable[None]]
    needs_load: bool = True
    only_full: bool = False


MEASURES = [
    Measure("serial", "Runs one after the other", runs_in_turn),
    Measure("at_once", "64 runs at once", runs_at_once),
    Measure("flat", "64 streams, events of 100 bytes, flat out", flat_out),
    Measure("paced", "One stream, an event of 200 bytes per millisecond", paced),
    Measure("many_paced", "1 000 paced streams: highest rate with a p99 of at most 20 ms", many_paced),
    Measure("idle", "Memory of an idle stream", idle_streams),
    Measure("slow", "Memory behind a slow reader, events of 64 KB", slow_readers),
    Measure("start", "Start-up", start, needs_load=False),
    Measure("lines", "An agent that prints lines without pause", lines, needs_load=False),
    Measure(
        "history", "Looking up in a run log of 100 and of 10 000 runs", long_history, needs_load=False, only_full=True
    ),
    Measure("agents", "Real agents", real_agents, needs_load=False, only_full=True),
]

TITLES = {
    **{one.name: one.title for one in MEASURES},
    "command": "`dragoman run process` with cat and no router running",
    "short_run": "A run of cat at a running router",
    "memory": "Idle memory",
    "detect": "`dragoman detect`, cold, beyond the slowest `--version`",
}
"""The headings of what measures note; `start` notes several things."""

FIGURES = [
    Figure("first event of a new run, p50, against Envoy", "x",
           "serial.router.first_us", "serial.envoy.first_us", goal=7),
    Figure("runs one after the other, CPU per run", "ms", "serial.router.run_ms", goal=2.5),
    Figure("64 runs at once, CPU per run", "ms", "at_once.router.run_ms", goal=2.5),
    Figure("64 streams flat out, batches: CPU per event against Envoy", "x",
           "flat.router_batches.event_us", "flat.envoy.event_us", goal=8, floor=12),
    Figure("64 streams flat out, no batches: CPU per event against the relay", "x",
           "flat.router.event_us", "flat.relay.event_us", goal=1.3, floor=2.5),
    Figure("an event per ms: added p50 against Envoy", "x",
           "paced.router.added_us", "paced.envoy.added_us", goal=1.8),
    Figure("an event per ms: CPU per event against the relay", "x",
           "paced.router.event_us", "paced.relay.event_us", goal=1.2, floor=2.2),
    Figure("1 000 paced streams: highest rate against the relay", "x",
           "many_paced.router.per_s", "many_paced.relay.per_s", goal=0.6, at_least=True),
    Figure("memory per idle stream", "KB", "idle.router.stream_kb", goal=55),
    Figure("slow reader, growth per stream", "MB", "slow.router.stream_mb", goal=2),
    Figure("import of a sidecar, CPU, against `import grpc.aio`", "x",
           "start.sidecar (process).cpu_ms", "start.import grpc_aio.cpu_ms", goal=1.8, floor=3.5),
    Figure("`dragoman run process` with cat and no router, wall, against `import grpc.aio`", "x",
           "command.dragoman run process.wall_ms", "command.import grpc_aio.wall_ms", goal=2.5),
    Figure("short run at a running router, wall over the bare program", "ms", "short_run.router.added_ms", goal=20),
    Figure("idle router, PSS", "MB", "memory.router.pss_mb", goal=30),
    Figure("idle sidecar, PSS", "MB", "memory.sidecar.pss_mb", goal=24),
    Figure("`dragoman detect`, cold, beyond the slowest `--version`", "s", "detect.command.beyond_s", goal=1),
    Figure("share of the lines of an agent without pause that the run log has", "x",
           "lines.router.in_log", goal=1, at_least=True, floor=1),
    *(
        Figure(f"{adapter} through a warm router over the bare program, {what}", "x",
               f"agents.{adapter}.{ratio}", goal=goal)
        for adapter in agents.AGENTS
        for what, ratio, goal in [("wall", "wall_ratio", 1.06), ("CPU", "cpu_ratio", 1.08)]
    ),
    # No goals of their own: ratios in place of sizes that depend on the machine, for `make bench-check`.
    Figure("first event of a new run, p50, against the relay", "x",
           "serial.router.first_us", "serial.relay.first_us", floor=8),
    Figure("runs one after the other, CPU against the relay", "x",
           "serial.router.run_ms", "serial.relay.run_ms", floor=6),
    Figure("64 runs at once, CPU against the relay", "x", "at_once.router.run_ms", "at_once.relay.run_ms", floor=6),
    Figure("memory per idle stream against the relay", "x", "idle.router.stream_kb", "idle.relay.stream_kb", floor=3),
    Figure("`dragoman run process`, CPU against `import grpc.aio`", "x",
           "command.dragoman run process.cpu_ms", "command.import grpc_aio.cpu_ms", floor=10),
]  # fmt: skip
"""What issue 11 sets goals for, and what ``make bench-check`` keeps."""


def selected(only: str, *, check: bool) -> set[str]:
    """Return the names of the measures to take: the only one, those that floors are about, or all."""
    if only:
        return {only}
    bounded = {figure.of.partition(".")[0] for figure in FIGURES if figure.floor is not None}
    return {one.name for one in MEASURES if one.name in bounded or not check}


async def measure(rig: Rig, names: Collection[str]) -> None:
    """Take those of the measures that the mode has, one after the other."""
    for one in MEASURES:
        if one.name not in names or (one.only_full and not rig.is_full):
            continue
        if one.needs_load and rig.load is None:
            rig.remarks.append(f"{one.title}: not measured, as there is no Go to build the client and adapter with")
            continue
        print(f"... {one.title}", flush=True)
        await one.function(rig)
