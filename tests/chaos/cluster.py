"""Real routers with their sidecars and agents as processes, and the means to kill each of them."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from dragoman.client import Client
from dragoman.guard.processes import carriers, carries
from dragoman.guard.tree import MARKER
from dragoman.protocol.limits import channel_options
from dragoman.v1 import router_pb2

from tests.chaos.cases import ADAPTERS, PAIRS
from tests.chaos.commits import Commits
from tests.chaos.databases import Database, Postgres, Sqlite

PATIENCE_S: Final = 60.0
"""How long what must come may take on a machine that is busy."""
ORPHAN_AFTER_S: Final = 20.0
"""How long an adapter outlives its router; the next one has its runs sooner, though its start be slow, or its first
claim fail."""
REATTACH_S: Final = 15.0
"""How long a run is looked for, or its request waited for, before it is LOST."""
LEASE_S: Final = 4.0
"""How long a router may say nothing before its runs could be taken; who is seen to be dead is not waited for."""
GONE_S: Final = ORPHAN_AFTER_S + 15.0
"""How long processes may outlive the run or the router that they belong to."""
SECRET: Final = re.compile(rb"chaos-[0-9a-f]{24}|" + b"chaos-".hex().encode() + rb"(3[0-9]|6[1-6]){24}")
"""Any run's secret; also in PostgreSQL's notation of bytes."""
_INHERITED: Final = ("PATH", "PYTHONPATH")
"""The latter, where it is inherited, so that what is killed here is of the sources that these tests are of."""
ROOT: Final = Path(__file__).parents[2]


class Program:
    """A program that answers at an address.

    Args:
        address: where.
        command: what the interpreter is inherited.
        env: all its variables.
        output: the file that takes what it says.
    """

    def __init__(self, address: str, command: Sequence[str], env: Mapping[str, str], output: Path) -> None:
        self.address = address
        self._command, self._env, self._output = command, env, output
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_up(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._env,
                cwd=ROOT,
            )
        async with grpc.aio.insecure_channel(self.address, options=channel_options(self.address)) as channel:
            ended = asyncio.ensure_future(self._process.wait())
            ready = asyncio.ensure_future(channel.channel_ready())
            await asyncio.wait({ended, ready}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            ready.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)
        last = self._output.read_bytes()[-2000:].decode(errors="replace")
        assert not _is_done(ended), f"{self.address} ended with {self._process.returncode}: {last}"
        assert _is_done(ready), f"{self.address} did not answer within {PATIENCE_S:.0f} s: {last}"

    def log_lines(self, run_id: str) -> list[dict[str, Any]]:
        """Return the lines of its log about a run, as far as they are whole."""
        *lines, _unfinished = self._output.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if run_id.encode() in line and line.startswith(b"{")]

    @property
    def delayed_s(self) -> float:
        """For how long it was ready to run, and the machine was busy with others; 0 if not counted."""
        return _delayed_s(self._process.pid) if self._process is not None else 0.0

    def send(self, signum: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signum)

    async def ended(self) -> None:
        """Wait until it has ended, for which it may wait for its runs."""
        assert self._process is not None
        async with asyncio.timeout(2 * PATIENCE_S):
            await self._process.wait()


class Cluster:
    """One router on one state directory, or two on one PostgreSQL.

    Args:
        storage: see ``cases``.
        folder: with a path that is short enough for sockets.
        run_log: the database's address; empty for SQLite.
    """

    def __init__(self, storage: str, folder: Path, run_log: str = "") -> None:
        self.storage = storage
        self.folder = folder
        self.postgres = Postgres(run_log) if run_log else None
        self.database: Database = self.postgres or Sqlite(folder / "s0" / "runs.db")
        self.commits = Commits(folder / "pg", run_log) if run_log else None
        # Guards of runs inherit only what an interpreter needs to start, and this is a part of that.
        self.mark = f"LD_LIBRARY_PATH={folder}/{secrets.token_hex(8)}"
        (folder / "home").mkdir()
        self.sidecars = [self._sidecar(adapter) for adapter in ADAPTERS] if storage == "pair_dialed" else []
        self.routers = [self._router(number) for number in range(2 if storage in PAIRS else 1)]

    def _router(self, number: int) -> Program:
        address = f"unix:{self.folder}/r{number}.sock"
        config: dict[str, Any] = {
            "listen": [address],
            "state_dir": str(self.folder / f"s{number}"),
            "adapter_orphan_after_s": ORPHAN_AFTER_S,
            "reattach_s": REATTACH_S,
            "log_lease_s": LEASE_S,
            "run_log": self.commits.url if self.commits is not None else "",
            "addresses": [sidecar.address for sidecar in self.sidecars],
            "entry_points": not self.sidecars,
        }
        if self.storage in PAIRS:
            # The runs of other adapters continue without it; its own adapters' runs may come to their end, which they
            # do as soon as they can: a shorter time would cancel those whose agents a busy machine starts slowly.
            config["drain_grace_s"] = 0.3 if self.sidecars else PATIENCE_S
        command = ["-m", "tests.chaos.serve", json.dumps(config)]
        return Program(address, command, self._env(), self.folder / f"router{number}.log")

    def _sidecar(self, adapter: str) -> Program:
        address = f"unix:{self.folder}/{adapter}.sock"
        command = ["-P", "-m", "dragoman.cli.main", "adapter", "serve", adapter]
        env = self._env() | {"DRAGOMAN_LISTEN": address}
        return Program(address, command, env, self.folder / f"{adapter}.log")

    def _env(self) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        home = str(self.folder / "home")
        inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        return {**inherited, "HOME": home, "TMPDIR": str(self.folder), name: value}

    @property
    def address(self) -> str:
        """Where the router answers, or the one of two that owns all runs."""
        return self.routers[0].address

    async def open(self) -> None:
        """Start everything there is."""
        if self.commits is not None:
            await self.commits.open()
        for sidecar in self.sidecars:
            await sidecar.start()
        await self.start()
        if self.postgres is not None:
            await asyncio.to_thread(self.postgres.watch_moves)

    async def close(self) -> list[str]:
        """End everything; return what is left."""
        await self.end(signal.SIGTERM)
        for sidecar in self.sidecars:
            sidecar.send(signal.SIGTERM)
            await sidecar.ended()
        return await self.until_nothing_is_left()

    async def start(self) -> None:
        """Start those routers that are not there, and wait until they answer."""
        for router in self.routers:
            if not router.is_up:
                await router.start()

    async def end(self, signum: signal.Signals) -> None:
        """Have all routers end, and wait for them."""
        for router in self.routers:
            router.send(signum)
        for router in self.routers:
            await router.ended()

    async def entry(self, adapter: str) -> router_pb2.AdapterEntry:
        """Return the router's entry of an adapter, once it has a process of it, which it may have to adopt."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        async with Client(self.address) as client:
            while True:
                listed = await client.list_adapters()
                entry = next(entry for entry in listed.adapters if entry.adapter == adapter)
                if entry.pid:
                    return entry
                assert asyncio.get_running_loop().time() < until, f"no process of {adapter}: {entry.reason}"
                await asyncio.sleep(0.05)

    @property
    def delayed_s(self) -> float:
        """For how long the routers and these tests were ready to run, and the machine was busy with others."""
        return _delayed_s(os.getpid()) + sum(router.delayed_s for router in self.routers)

    def kill(self, pid: int) -> None:
        """Kill a process, if it is one of this cluster."""
        if pid > 0 and carries(pid, self.mark.encode()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def marked(self) -> list[int]:
        """Return the processes of agents' runs that are still there, and their guards.

        One guard without a child is left out for each sidecar: it waits for the next run.
        """
        prefix = f"{MARKER}=".encode()
        parents = {pid: parent_of(pid) for pid in carriers(self.mark.encode()) if prefix in _environment(pid)}
        guards = [pid for pid in parents.keys() - set(parents.values()) if "/guard/__main__.py" in describe(pid)]
        waiting = {parents[pid]: pid for pid in guards}
        return [pid for pid, parent in parents.items() if parent <= 1 or waiting.get(parent) != pid]

    async def until_run_is_gone(self, run_id: str) -> list[str]:
        """Wait until no process of a run's agent is there; return those that do not go away."""
        return await _until_gone(lambda: carriers(f"CHAOS_RUN={run_id}".encode()))

    async def until_no_run_is_left(self) -> list[str]:
        """Wait until no process carries a run's marker; return those that do not go away."""
        return await _until_gone(self.marked)

    async def until_nothing_is_left(self) -> list[str]:
        """Wait until no process of this cluster is there: no agent, guard, sidecar or router."""
        return await _until_gone(lambda: carriers(self.mark.encode()))

    async def end_all(self) -> None:
        """Kill what is left, after a failure."""
        for pid in carriers(self.mark.encode()):
            self.kill(pid)
        if self.commits is not None:
            await self.commits.close()

    def traces(self) -> list[str]:
        """Return where any run's secret is found: in any file of this cluster, or in its database."""
        # What is removed meanwhile is passed over: adapters, and what they leave, come to their end.
        files = [Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names]
        found = [str(path.relative_to(self.folder)) for path in files if path.is_file() and _has_secret(path)]
        return found + self.database.traces(SECRET.pattern)


def _is_done(future: "asyncio.Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _delayed_s(pid: int) -> float:
    # https://docs.kernel.org/scheduler/sched-stats.html: the second number, in nanoseconds.
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _has_secret(path: Path) -> bool:
    try:
        return SECRET.search(path.read_bytes()) is not None
    except OSError:
        return False  # it is a socket, or was removed just now


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    """Return the parent's pid; 0 if the process is gone."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return 0


def describe(pid: int) -> str:
    """Return a process's command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        words = "(gone)"
    return f"{pid} {words[:200]}"


async def _until_gone(look: Callable[[], list[int]]) -> list[str]:
    loop = asyncio.get_running_loop()
    until = loop.time() + GONE_S
    while (left := await asyncio.to_thread(look)) and loop.time() < until:  # noqa: ASYNC110 - only a parent is notified
        await asyncio.sleep(0.1)
    return [describe(pid) for pid in left]
