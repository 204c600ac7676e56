"""What starting costs: imports, command, short run, detection, memory; ``python -m tests.bench.startup [ROUNDS]``.

All figures are ratios and differences within one run, whose rounds are interleaved. CPU time is the kernel's account
of a process and its ended children; it depends less on other users of the machine than wall time does. Processes read
compiled modules, as an installation has them.
"""

import asyncio
import compileall
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from dragoman.client import Client
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "dragoman.cli.main"]
BASE = "import grpc.aio"
IMPORTS = {
    "sidecar (process)": "import dragoman.sdk, dragoman.adapters.process.adapter",
    "sidecar (claude_code)": "import dragoman.sdk, dragoman.adapters.claude_code.adapter",
    "router": "import dragoman.router.app",
    "client": "import dragoman.client",
    "command `run`": "import dragoman.cli.commands.run",
}
RUNS_IN_A_ROUND = 5
OTHERS = {"node", "cursor-sdk"}
"""Programs beside the agents' that have no version to ask for."""


@dataclass
class Series:
    """What was measured of one thing, a value a round."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def line(self, name: str, base: "Series") -> str:
        """Return a line that compares it to another series of the same rounds."""
        wall, cpu = (_ratio(mine, other) for mine, other in ((self.wall_s, base.wall_s), (self.cpu_s, base.cpu_s)))
        times = f"wall {_ms(self.wall_s)}, CPU {_ms(self.cpu_s)}"
        return f"  {name:28} {times}; x{wall} wall, x{cpu} CPU"


def _ms(values: Sequence[float]) -> str:
    return f"{statistics.median(values) * 1000:6.0f} ms" if values else "-"


def _ratio(mine: Sequence[float], base: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(mine, base, strict=True)]
    return f"{statistics.median(ratios):.2f} (least values: {min(mine) / min(base):.2f})"


def started(command: Sequence[str], environment: Mapping[str, str], cwd: Path | str = "/") -> tuple[float, float]:
    """Run a program to its end; return its wall time and the CPU time of it and its children."""
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as it:
        _, status, usage = os.wait4(it.pid, 0)
        it.returncode = os.waitstatus_to_exitcode(status)
    if it.returncode != 0:
        raise SystemExit(f"{command} failed; its time means nothing")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def turns(rounds: int, measured: Mapping[str, Callable[[], tuple[float, float]]]) -> dict[str, Series]:
    """Measure things in turns, after one round to warm up."""
    found = {name: Series() for name in measured}
    for number in range(rounds + 1):
        for name, measure in measured.items():
            wall_s, cpu_s = measure()
            if number:
                found[name].wall_s.append(wall_s)
                found[name].cpu_s.append(cpu_s)
    return found


def measure_imports(environment: Mapping[str, str], rounds: int) -> None:
    """Print the cost of imports against that of grpc.aio."""
    programs = {BASE: BASE, **IMPORTS}
    found = turns(
        rounds,
        {
            name: lambda code=code: started([sys.executable, "-c", code], environment)  # type: ignore[misc]
            for name, code in programs.items()
        },
    )
    print(f"a process that only imports, {rounds} rounds")
    for name, series in found.items():
        print(series.line(name, found[BASE]))


def measure_command(environment: Mapping[str, str], rounds: int) -> None:
    """Print what a short run costs if no router runs: the command starts one, a sidecar and two guards."""
    run = [*COMMAND, "run", "process", "hello", "--config", "command=cat"]
    found = turns(
        rounds,
        {
            BASE: lambda: started([sys.executable, "-c", BASE], environment),
            "dragoman run process": lambda: started(run, environment),
        },
    )
    print(f"`dragoman run process` with cat and no router running, {rounds} rounds")
    for name, series in found.items():
        print(series.line(name, found[BASE]))


@contextlib.asynccontextmanager
async def router(directory: Path, environment: Mapping[str, str]) -> AsyncIterator[tuple[Client, psutil.Process]]:
    """Run a router, and yield a client of it and its process."""
    command = [*COMMAND, "serve", "--no-detect", "--listen", f"unix:{directory}/router.sock"]
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        async with Client(f"unix:{directory}/router.sock") as client:
            yield client, psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def run_cat(client: Client) -> float:
    """Have cat run once; return the seconds until its result."""
    request = pb.ExecuteRequest(adapter="process", prompt="hello")
    request.config.update({"command": "cat"})
    request.workspace.cwd = "/"
    began = time.monotonic()
    async with client.execute(request) as run:
        async for _ in run:
            pass
    if run.result is None or run.result.outcome != event_pb2.OUTCOME_SUCCEEDED:
        raise SystemExit(f"a measured run failed: {run.result}")
    return time.monotonic() - began


def run_bare_cat(environment: Mapping[str, str]) -> float:
    """Run the bare program; return the seconds until its end."""
    began = time.monotonic()
    subprocess.run(["cat"], input=b"hello", stdout=subprocess.PIPE, env=environment, check=True)
    return time.monotonic() - began


def tree_cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process, of its descendants and of those that have ended, in seconds."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


async def measure_short_run(directory: Path, environment: Mapping[str, str], rounds: int) -> None:
    """Print what a run costs at a router that runs, against its program alone; and idle memory behind it."""
    async with router(directory, environment) as (client, process):
        for _ in range(3):
            await run_cat(client)
        through: list[float] = []
        bare: list[float] = []
        used = 0.0
        for _ in range(rounds):
            for _ in range(RUNS_IN_A_ROUND):
                bare.append(await asyncio.to_thread(run_bare_cat, environment))
            before = tree_cpu_s(process)
            for _ in range(RUNS_IN_A_ROUND):
                through.append(await run_cat(client))
            used += tree_cpu_s(process) - before
        print(f"a run of cat at a running router, {rounds} rounds of {RUNS_IN_A_ROUND}")
        print(f"  bare program {_ms(bare)}, through the router {_ms(through)}")
        added = statistics.median(through) - statistics.median(bare)
        print(f"  added: p50 {added * 1000:.1f} ms, least {(min(through) - min(bare)) * 1000:.1f} ms")
        print(f"  CPU of router, sidecar, guards and cat for a run: {used / len(through) * 1000:.1f} ms")
        print_memory(process)


def print_memory(process: psutil.Process) -> None:
    """Print the proportional set sizes of a router and what is below it."""
    print("idle memory (PSS, with its private part)")
    for one in (process, *process.children(recursive=True)):
        memory = one.memory_full_info()
        line = " ".join(one.cmdline()[1:])
        kind = "guard" if "guard" in line else "sidecar" if "adapter" in line else "router"
        print(f"  {kind:8} {memory.pss / 1e6:5.1f} MB ({memory.uss / 1e6:5.1f})")


def measure_detection(directory: Path, environment: Mapping[str, str], rounds: int) -> None:
    """Print how long `dragoman detect` takes with no router running and nothing cached, against one ``--version``."""
    agents = [path for path in sorted((ROOT / ".agents" / "bin").glob("*")) if path.name not in OTHERS]
    if not agents:
        print("detection: not measured, as no agents are installed (scripts/install-agents)")
        return
    slowest: list[float] = []
    all_of_them: list[float] = []
    for number in range(rounds):
        versions = [timed([str(path), "--version"], environment) for path in agents]
        slowest.append(max(versions))
        fresh = str(directory / f"detect{number}")
        folders = {"XDG_STATE_HOME": fresh, "XDG_CACHE_HOME": fresh}
        all_of_them.append(timed([*COMMAND, "detect"], environment | folders))
    print(f"`dragoman detect` of all agents with nothing cached, {rounds} rounds")
    print(f"  slowest --version of {len(agents)} {_ms(slowest)}, all {_ms(all_of_them)}")
    beyond = [one - other for one, other in zip(all_of_them, slowest, strict=True)]
    print(f"  beyond it: p50 {statistics.median(beyond) * 1000:.0f} ms, least {min(beyond) * 1000:.0f} ms")


def timed(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a program, whatever its exit code; return the seconds that it took."""
    began = time.monotonic()
    subprocess.run(command, env=environment, capture_output=True, check=False)
    return time.monotonic() - began


def environment_of(directory: Path) -> dict[str, str]:
    """Return the environment of measured processes: a home of their own, and compiled modules."""
    home = directory / "home"
    home.mkdir(mode=0o700)
    names = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "TMPDIR": str(directory)}
    return {"PATH": f"{ROOT}/.agents/bin:{os.environ['PATH']}", "LANG": "C.UTF-8", **names}


async def main(rounds: int = 10) -> None:
    """Measure everything, one thing after the other."""
    for part in ("services", "adapters", "clients"):
        compileall.compile_dir(str(ROOT / part), quiet=2)
    directory = Path(tempfile.mkdtemp(prefix="dgm-"))
    try:
        environment = environment_of(directory)
        measure_imports(environment, rounds)
        measure_command(environment, rounds)
        await measure_short_run(directory, environment, rounds)
        measure_detection(directory, environment, max(1, rounds // 5))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
