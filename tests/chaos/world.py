"""A real router with its sidecars and agents as processes, and the means to kill each of them."""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc
import psycopg
from dragoman.client import Client
from dragoman.guard.processes import carriers, carries
from dragoman.guard.tree import MARKER
from dragoman.protocol.limits import channel_options
from dragoman.v1 import router_pb2

PATIENCE_S: Final = 60.0
"""How long what must come may take on a machine that is busy."""
ORPHAN_AFTER_S: Final = 10.0
"""How long an adapter outlives its router, which comes back sooner if it was killed."""
GONE_S: Final = 25.0
"""How long processes may outlive the run or the router that they belong to."""
SECRET: Final = re.compile(rb"chaos-[0-9a-f]{24}|" + b"chaos-".hex().encode())
"""Any run's secret; as PostgreSQL tells bytes, its beginning."""
ROOT: Final = Path(__file__).parents[2]


class World:
    """One router on one state directory.

    Args:
        storage: ``sqlite`` or ``postgres``.
        folder: with a path that is short enough for sockets.
        run_log: the database's address; empty for SQLite.
    """

    def __init__(self, storage: str, folder: Path, run_log: str = "") -> None:
        self.storage = storage
        self.folder = folder
        self.run_log = run_log
        self.address = f"unix:{folder}/r.sock"
        self.state_dir = folder / "s"
        self.output = folder / "router.log"
        self.mark = f"CHAOS_WORLD={secrets.token_hex(8)}"
        self._router: asyncio.subprocess.Process | None = None
        (folder / "home").mkdir()

    async def start(self) -> None:
        """Start the router, and wait until it answers."""
        command = ["-m", "tests.chaos.serve", self.address, str(self.state_dir), str(ORPHAN_AFTER_S), self.run_log]
        name, _, value = self.mark.partition("=")
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "TMPDIR": str(self.folder), name: value}
        with self.output.open("ab") as output:
            self._router = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=ROOT,
            )
        async with grpc.aio.insecure_channel(self.address, options=channel_options(self.address)) as channel:
            ended = asyncio.ensure_future(self._router.wait())
            ready = asyncio.ensure_future(channel.channel_ready())
            await asyncio.wait({ended, ready}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            ready.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)
        assert self._router.returncode is None, self.output.read_text()[-2000:]

    async def end(self, signum: signal.Signals) -> None:
        """Have the router end, and wait for it."""
        assert self._router is not None
        with contextlib.suppress(ProcessLookupError):
            self._router.send_signal(signum)
        async with asyncio.timeout(PATIENCE_S):
            await self._router.wait()

    async def entry(self, adapter: str) -> router_pb2.AdapterEntry:
        """Return what the router tells of an adapter."""
        async with Client(self.address) as client:
            listed = await client.list_adapters()
        return next(entry for entry in listed.adapters if entry.adapter == adapter)

    def kill(self, pid: int) -> None:
        """Kill a process, if it is one of this world."""
        if pid > 0 and carries(pid, self.mark.encode()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def hurt_database(self, lock_s: float) -> None:
        """Cut all connections to the database, or keep it from being written for so many seconds."""
        if self.storage == "postgres":
            await asyncio.to_thread(self._cut_connections)
        else:
            await asyncio.to_thread(self._hold_lock, lock_s)

    def _cut_connections(self) -> None:
        with psycopg.connect(self.run_log, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _hold_lock(self, lock_s: float) -> None:
        with contextlib.closing(sqlite3.connect(self.state_dir / "runs.db", timeout=30.0)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            threading.Event().wait(lock_s)
            connection.execute("ROLLBACK")

    def marked(self) -> list[int]:
        """Return the processes of agents' runs that are still there, and their guards."""
        prefix = f"{MARKER}=".encode()
        return [pid for pid in carriers(self.mark.encode()) if prefix in _environment(pid)]

    async def until_run_is_gone(self, run_id: str) -> list[str]:
        """Wait until no process of a run's agent is there; return those that do not go away."""
        return await _until_gone(lambda: carriers(f"CHAOS_RUN={run_id}".encode()))

    async def until_no_run_is_left(self) -> list[str]:
        """Wait until no process carries a run's marker; return those that do not go away."""
        return await _until_gone(self.marked)

    async def until_nothing_is_left(self) -> list[str]:
        """Wait until no process of this world is there: no agent, guard, sidecar or router."""
        return await _until_gone(lambda: carriers(self.mark.encode()))

    def end_all(self) -> None:
        """Kill what is left, after a failure."""
        for pid in carriers(self.mark.encode()):
            self.kill(pid)

    def traces(self) -> list[str]:
        """Return where any run's secret is found: in any file of this world, or in its database."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        found = [str(path.relative_to(self.folder)) for path in files if SECRET.search(path.read_bytes())]
        return found + (self._traces_in_postgres() if self.run_log else [])

    def _traces_in_postgres(self) -> list[str]:
        with psycopg.connect(self.run_log) as connection:
            return [
                table
                for table in ("runs", "events", "sessions", "settings")
                for (row,) in connection.execute(f"SELECT t::text FROM {table} t")
                if SECRET.search(row.encode())
            ]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


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
    while (left := await asyncio.to_thread(look)) and loop.time() < until:  # noqa: ASYNC110 - nobody tells who is not a parent
        await asyncio.sleep(0.1)
    return [describe(pid) for pid in left]
