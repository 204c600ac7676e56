"""What starting costs: imports, command, short run, detection, memory; ``python -m tests.bench --only start``.

Rounds are interleaved. CPU time is the kernel's account
of a process and its ended children; it depends less on other users of the machine than wall time does. Processes read
compiled modules, as an installation has them.
"""

import asyncio
import compileall
import contextlib
import os
import subprocess
import sys
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
BASE = "import grpc_aio"
"""The name of the series that others are compared to."""
BASE_CODE = "import grpc.aio"
IMPORTS = {
    "sidecar (process)": "import dragoman.sidecar, dragoman.adapters.process.adapter",
    "sidecar (claude_code)": "import dragoman.sidecar, dragoman.adapters.claude_code.adapter",
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


@dataclass
class ShortRuns:
    """What runs of cat cost at a running router."""

    routed_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    """Of the bare program, in the same rounds."""
    cpu_s: float = 0.0
    """Of router, sidecar, guards and cat, for a run."""
    memory_mb: dict[str, float] = field(default_factory=dict)
    """The proportional set sizes of the idle router, sidecar and guard."""


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


def import_costs(environment: Mapping[str, str], rounds: int) -> dict[str, Series]:
    """Measure imports, and that of grpc.aio as ``BASE``."""
    programs = {BASE: BASE_CODE, **IMPORTS}
    return turns(
        rounds,
        {
            name: lambda code=code: started([sys.executable, "-c", code], environment)  # type: ignore[misc]
            for name, code in programs.items()
        },
    )


def command_costs(environment: Mapping[str, str], rounds: int) -> dict[str, Series]:
    """Measure a short run if no router runs: the command starts one, a sidecar and two guards."""
    run = [*COMMAND, "run", "process", "hello", "--config", "command=cat"]
    return turns(
        rounds,
        {
            BASE: lambda: started([sys.executable, "-c", BASE_CODE], environment),
            "dragoman run process": lambda: started(run, environment),
        },
    )


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


async def short_run_costs(directory: Path, environment: Mapping[str, str], rounds: int) -> ShortRuns:
    """Measure what a run costs at a router that runs, against its program alone; and idle memory behind it."""
    found = ShortRuns()
    async with router(directory, environment) as (client, process):
        for _ in range(3):
            await run_cat(client)
        used = 0.0
        for _ in range(rounds):
            for _ in range(RUNS_IN_A_ROUND):
                found.bare_s.append(await asyncio.to_thread(run_bare_cat, environment))
            before = tree_cpu_s(process)
            for _ in range(RUNS_IN_A_ROUND):
                found.routed_s.append(await run_cat(client))
            used += tree_cpu_s(process) - before
        found.cpu_s = used / len(found.routed_s)
        found.memory_mb = idle_memory_mb(process)
    return found


def idle_memory_mb(process: psutil.Process) -> dict[str, float]:
    """Return the proportional set sizes of a router and what is below it."""
    sizes = {}
    for one in (process, *process.children(recursive=True)):
        sizes[kind_of(one.cmdline())] = one.memory_full_info().pss / 1e6
    return sizes


def kind_of(command: Sequence[str]) -> str:
    """Return what a process of a router is, by its command line."""
    line = " ".join(command[1:])
    return "guard" if "guard" in line else "sidecar" if "dragoman.sidecar" in line else "router"


def detection_costs(directory: Path, environment: Mapping[str, str], rounds: int) -> list[float]:
    """Return the seconds of `dragoman detect`, with no router and no cache, beyond the slowest ``--version``."""
    agents = linked_agents(directory / "commands")
    environment = {**environment, "PATH": f"{directory}/commands:{environment['PATH']}"}
    beyond: list[float] = []
    for number in range(rounds if agents else 0):
        slowest = max(timed([str(path), "--version"], environment) for path in agents)
        # Cold is what Dragoman knows; the agents keep the caches that they have just filled.
        fresh = {"XDG_STATE_HOME": str(directory / f"detect{number}")}
        beyond.append(timed([*COMMAND, "detect"], {**environment, **fresh}) - slowest)
    return beyond


def linked_agents(directory: Path) -> list[Path]:
    """Make a directory of the pinned agents as ``npm install -g`` links them; return its entries.

    Those in ``.agents/bin`` that need Node.js are shell scripts, which name the pinned one.
    """
    directory.mkdir()
    for path in sorted((ROOT / ".agents" / "bin").glob("*")):
        if path.name not in OTHERS:
            npm = ROOT / ".agents" / path.name / "node_modules" / ".bin" / path.name
            (directory / path.name).symlink_to(path if path.is_symlink() else npm)
    return sorted(directory.iterdir())


def timed(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a program, whatever its exit code; return the seconds that it took."""
    began = time.monotonic()
    subprocess.run(command, env=environment, capture_output=True, check=False)
    return time.monotonic() - began


def environment_of(directory: Path) -> dict[str, str]:
    """Return the environment of measured processes: a home of their own, and compiled modules."""
    home = directory / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    names = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "TMPDIR": str(directory)}
    return {"PATH": f"{ROOT}/.agents/bin:{os.environ['PATH']}", "LANG": "C.UTF-8", **names}


def compile_modules() -> None:
    """Compile the modules, as an installation has them."""
    for part in ("services", "adapters", "clients"):
        compileall.compile_dir(str(ROOT / part), quiet=2)
