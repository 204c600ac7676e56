"""``make bench``: what Dragoman costs, as ratios and differences within one run.

Absolute times depend on the machine and on who else uses it: compare only figures of one run. Nothing here is
asserted; the tests never look at a clock.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import psutil
from dragoman.client import Client
from dragoman.protocol.limits import channel_options
from dragoman.testkit.isolation import isolate
from dragoman.testkit.model_server import ModelServer
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import adapter_pb2_grpc, event_pb2

from tests.bench import log

ROOT = Path(__file__).resolve().parents[2]
PACED = {"events": 2000, "interval_s": 0.001, "bytes": 160}
FLAT_OUT = {"events": 20000, "bytes": 80}
IDLE_STREAMS = 300
STREAMS = 64
STREAM_EVENTS = 800
"""Of each of them."""
CLAUDE_TURNS = 7


@contextlib.asynccontextmanager
async def emitter(address: str) -> AsyncIterator[psutil.Process]:
    """Run the emitter as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.emitter",
        address,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def router(
    listen: str, upstream: str, directory: Path, environment: dict[str, str] | None = None
) -> AsyncIterator[psutil.Process]:
    """Run a router as a process of its own, in front of the emitter if ``upstream`` is its address."""
    command = [sys.executable, "-m", "dragoman.cli.main", "serve", "--no-detect", "--listen", listen]
    command += ["--adapter", upstream] if upstream else []
    command += ["--state-dir", str(directory / "state")]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment or dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with grpc.aio.insecure_channel(listen, options=channel_options(listen)) as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def stream(address: str, wish: dict[str, float]) -> list[float]:
    """Have one run emitted; return each event's latency in microseconds."""
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
        stub = adapter_pb2_grpc.AdapterServiceStub(channel)
        request = pb.ExecuteRequest(adapter="emitter", run_id=f"bench-{time.monotonic_ns()}", prompt=json.dumps(wish))
        async for event in stub.Execute(request):
            if event.WhichOneof("body") == "text":
                latencies.append((time.monotonic_ns() - int(event.text.delta[:20])) / 1000)
    return latencies


def cpu_s(process: psutil.Process) -> float:
    """Return user and system time of a process in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure_latency(direct: str, routed: str, hop: psutil.Process) -> None:
    """Print latency through the router against a direct connection, in turns."""
    plain: list[float] = []
    through: list[float] = []
    used = 0.0
    for _ in range(3):
        plain += await stream(direct, PACED)
        before = cpu_s(hop)
        through += await stream(routed, PACED)
        used += cpu_s(hop) - before
    p50 = quantile(through, 0.5) - quantile(plain, 0.5)
    p99 = quantile(through, 0.99) - quantile(plain, 0.99)
    print("one event a millisecond, 200 B, one stream (microseconds)")
    print(f"  direct         p50 {quantile(plain, 0.5):8.0f}   p99 {quantile(plain, 0.99):8.0f}")
    print(f"  through router p50 {quantile(through, 0.5):8.0f}   p99 {quantile(through, 0.99):8.0f}")
    print(f"  added          p50 {p50:8.0f}   p99 {p99:8.0f}")
    print(f"  router CPU per event {used / len(through) * 1e6:6.0f}")


async def measure_throughput(direct: str, routed: str, hop: psutil.Process) -> None:
    """Print events per second flat out, and the router's CPU time for each."""
    began = time.monotonic()
    await stream(direct, FLAT_OUT)
    plain = FLAT_OUT["events"] / (time.monotonic() - began)
    before, began = cpu_s(hop), time.monotonic()
    await stream(routed, FLAT_OUT)
    through = FLAT_OUT["events"] / (time.monotonic() - began)
    used = (cpu_s(hop) - before) / FLAT_OUT["events"] * 1e6
    print("flat out, 100 B, one stream")
    print(f"  direct {plain:8.0f} events/s   through router {through:8.0f} events/s   ratio {through / plain:.2f}")
    print(f"  router CPU per event {used:6.0f} microseconds")


async def measure_streams(routed: str, hop: psutil.Process) -> None:
    """Print the router's CPU time for each event of many streams flat out, by how many the adapter has at once."""
    print(f"flat out, 100 B, {STREAMS} streams of {STREAM_EVENTS} events")
    for batch, batching in ((1, False), (1, True), (8, True), (32, True), (32, False)):
        used, took = await _of_streams(routed, hop, batch, batching=batching)
        asked = "batches" if batching else "single events"
        print(
            f"  adapter has {batch:3} at once, client takes {asked:13} {1 / took:8.0f} events/s"
            f"   router CPU per event {used * 1e6:6.1f} microseconds"
        )


async def _of_streams(address: str, hop: psutil.Process, batch: int, *, batching: bool) -> tuple[float, float]:
    """Return the router's CPU time and the time that passed for each event, in seconds."""
    wish = json.dumps({"events": STREAM_EVENTS, "bytes": 60, "batch": batch})
    async with grpc.aio.insecure_channel(address, options=channel_options(address)) as channel:
        execute: Any = channel.unary_stream("/dragoman.v1.AdapterService/Execute")  # messages stay bytes

        async def read(number: int) -> None:
            request = pb.ExecuteRequest(adapter="emitter", run_id=f"flat-{time.monotonic_ns()}-{number}", prompt=wish)
            if batching:
                request.batching.SetInParent()
            async for _message in execute(request.SerializeToString()):
                pass

        before, began = cpu_s(hop), time.monotonic()
        await asyncio.gather(*(read(number) for number in range(STREAMS)))
        count = STREAMS * STREAM_EVENTS
        return (cpu_s(hop) - before) / count, (time.monotonic() - began) / count


async def measure_idle(routed: str, hop: psutil.Process) -> None:
    """Print the router's memory for each silent stream."""
    async with grpc.aio.insecure_channel(routed, options=channel_options(routed)) as channel:
        stub = adapter_pb2_grpc.AdapterServiceStub(channel)
        before = hop.memory_info().rss
        calls = []
        for number in range(IDLE_STREAMS):
            request = pb.ExecuteRequest(adapter="emitter", run_id=f"idle-{number}", prompt='{"events": 0}')
            calls.append(stub.Execute(request))
        await asyncio.gather(*(call.read() for call in calls))
        grown = hop.memory_info().rss - before
        for call in calls:
            call.cancel()
    print(f"idle streams: {IDLE_STREAMS} at once, {grown / IDLE_STREAMS / 1024:.0f} KB of router memory each")


async def measure_claude(directory: Path) -> None:
    """Print the wall time of a real Claude Code run through Dragoman against the bare program, in turns."""
    executable = ROOT / ".agents" / "bin" / "claude"
    if not executable.exists():
        print("real Claude Code run: not measured, as it is not installed (scripts/install-agents claude)")
        return
    async with ModelServer() as server:
        isolated = isolate("claude", directory / "claude", model_url=server.url, bin_dir=executable.parent)
        workspace = directory / "workspace"
        workspace.mkdir()
        listen = f"unix:{directory}/c.sock"
        async with router(listen, "", directory / "c", isolated.environment):
            bare, warm, cold = await _claude_in_turns(executable, isolated.environment, workspace, listen)
    print(f"a real Claude Code run against a scripted model, {CLAUDE_TURNS} in turns (seconds, medians)")
    print(f"  bare program                                   {statistics.median(bare):6.2f}")
    _print_against("Client -> running router -> sidecar", warm, bare)
    _print_against("`dragoman run`, which starts its own of both", cold, bare)


def _print_against(name: str, taken: Sequence[float], bare: Sequence[float]) -> None:
    ratio = statistics.median(mine / theirs for mine, theirs in zip(taken, bare, strict=True))
    added = statistics.median(mine - theirs for mine, theirs in zip(taken, bare, strict=True))
    print(f"  {name:46} {statistics.median(taken):6.2f}   ratio {ratio:.2f}, added {added:+.2f}")


async def _claude_in_turns(
    executable: Path, environment: dict[str, str], workspace: Path, listen: str
) -> tuple[list[float], list[float], list[float]]:
    bare: list[float] = []
    warm: list[float] = []
    cold: list[float] = []
    async with Client(listen) as client:
        await _routed_claude(client, workspace)  # starts the sidecar
        for _ in range(CLAUDE_TURNS):
            bare.append(await _bare_claude(executable, environment, workspace))
            warm.append(await _routed_claude(client, workspace))
            cold.append(await _cold_claude(environment, workspace))
    return bare, warm, cold


async def _bare_claude(executable: Path, environment: dict[str, str], workspace: Path) -> float:
    arguments = ["-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        str(executable), *arguments, cwd=workspace, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    await process.communicate(b"MOCK_TEXT hello")
    return time.monotonic() - began


async def _routed_claude(client: Client, workspace: Path) -> float:
    request = pb.ExecuteRequest(adapter="claude_code", prompt="MOCK_TEXT hello")
    request.workspace.cwd = str(workspace)
    began = time.monotonic()
    async with client.execute(request) as run:
        async for _ in run:
            pass
    _must_succeed(run.result is not None and run.result.outcome == event_pb2.OUTCOME_SUCCEEDED)
    return time.monotonic() - began


async def _cold_claude(environment: dict[str, str], workspace: Path) -> float:
    command = [sys.executable, "-m", "dragoman.cli.main", "run", "claude_code", "MOCK_TEXT hello", "--json"]
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command, cwd=workspace, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _must_succeed(await process.wait() == 0)
    return time.monotonic() - began


def _must_succeed(succeeded: bool) -> None:
    if not succeeded:
        raise SystemExit("a measured run failed; its time means nothing")


async def main() -> None:
    """Measure everything, one thing after the other."""
    with tempfile.TemporaryDirectory(prefix="dgm-") as name:
        directory = Path(name)
        direct, routed = f"unix:{directory}/e.sock", f"unix:{directory}/r.sock"
        async with emitter(direct), router(routed, direct, directory) as hop:
            await stream(routed, {"events": 100, "bytes": 10})  # warm
            await measure_latency(direct, routed, hop)
            await measure_throughput(direct, routed, hop)
            await measure_streams(routed, hop)
            await measure_idle(routed, hop)
            for part in ("log", "history"):
                (directory / part).mkdir()
            await log.measure_events(directory / "log", direct, stream, FLAT_OUT)
        await log.measure_history(directory / "history")
        await measure_claude(directory)


if __name__ == "__main__":
    asyncio.run(main())
