"""A place for hostile programs: the process adapter behind a real server, and what must hold after every run.

Whatever a program does: exactly one result or a status, a dense and ordered stream, nothing left running of all the
processes of this machine, no secret in any event or log, no run directory, an unchanged workspace.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import structlog
from dragoman.adapters.process import adapter as process_adapter
from dragoman.guard.processes import carriers, pids
from dragoman.sdk import Adapter
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2

from tests.adapters.process import fake_agent
from tests.adapters.process.journal import facts, read_journal
from tests.hostile import HERE as HOSTILE
from tests.sdk.serving import DEADLINE_S, Sidecar, Stream, connected, serving

SECRETS = ("token-4711-very-secret", "env-0815-very-secret", "config-2342-very-secret")
"""The run's token, and a secret in ``env`` and in ``config.env``."""
GONE_WITHIN_S = 1.0
"""After a run's result its processes are gone already; this is for the table of processes to say so."""
COMMAND_VARIABLE = "DRAGOMAN_PROCESS_ADAPTER"
"""Names the program of another adapter ``process``, in any language, that has to pass these tests too."""


def duration(value_s: float) -> duration_pb2.Duration:
    """Return seconds as a Duration."""
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(int(value_s * 1e9))
    return duration


class Arena:
    """One test's sidecar, workspace, and hunt for what its programs leave behind."""

    def __init__(
        self, sidecar: Sidecar, root: Path, logged: Sequence[Mapping[str, Any]], run_directories: Path
    ) -> None:
        self.sidecar = sidecar
        self.logged = logged
        self.workspace = root / "workspace"
        self.run_directories = run_directories
        self.journal = root / "journal"
        self._mark = f"DRAGOMAN_TEST_HUNT={secrets.token_hex(8)}"
        self._before = ""

    def request(self, command: str, *args: str, prompt: str = "do it", **config: Any) -> api.ExecuteRequest:
        """Return a request that runs a command with three secrets around."""
        request = api.ExecuteRequest(prompt=prompt, auth_token=SECRETS[0])
        request.workspace.cwd = str(self.workspace)
        request.config.update({"command": command, "args": list(args), "env": {"CONFIG_SECRET": SECRETS[2]}})
        request.config.update(config)
        name, _, value = self._mark.partition("=")
        request.env.update({name: value, "ENV_SECRET": SECRETS[1]})
        request.limits.grace.CopyFrom(duration(0.3))
        request.orphan_after.CopyFrom(duration(DEADLINE_S))
        return request

    def agent(self, *steps: str, prompt: str = "do it", **config: Any) -> api.ExecuteRequest:
        """Return a request that runs the fake agent."""
        script = str(Path(fake_agent.__file__))
        words = ["-I", "-S", script, "--journal", str(self.journal), *steps]
        return self.request(sys.executable, *words, prompt=prompt, **config)

    def hostile(self, name: str, *args: str, **config: Any) -> api.ExecuteRequest:
        """Return a request that runs one of the hostile scripts."""
        return self.request(sys.executable, "-I", "-S", str(HOSTILE / f"{name}.py"), *args, **config)

    def begin(self, request: api.ExecuteRequest) -> Stream:
        """Start a run."""
        return self.sidecar.begin(request)

    async def run(self, request: api.ExecuteRequest) -> list[pb.AgentEvent]:
        """Run to the end and return the events."""
        events = await asyncio.wait_for(self.begin(request).rest(), DEADLINE_S)
        check_stream(events, secrets=SECRETS)
        return events

    async def result(self, request: api.ExecuteRequest) -> pb.Result:
        """Run to the end and return the result."""
        return (await self.run(request))[-1].result

    def entries(self) -> list[dict[str, Any]]:
        """Return the fake agent's journal."""
        return read_journal(self.journal) if self.journal.exists() else []

    def left(self) -> list[str]:
        """Return the processes of this test that are still there, those with a wiped environment included."""
        daemons = [entry["pid"] for entry in facts(self.entries(), "daemon")]
        found = [*carriers(self._mark.encode()), *(pid for pid in daemons if _is_alive(pid))]
        return [f"{pid} {_command(pid)}" for pid in found]

    def secrets_in_command_lines(self) -> list[str]:
        """Return the command lines of this machine that hold one of the secrets.

        Agents of other tests, which run side by side, may have them in their steps.
        """
        lines = [_command(pid) for pid in pids() if pid != os.getpid()]
        own = [line for line in lines if "--journal" not in line or str(self.journal) in line]
        return [line for line in own if any(secret in line for secret in SECRETS)]

    def open(self) -> None:
        """Make the workspace and remember it."""
        (self.workspace / "src").mkdir(parents=True)
        (self.workspace / "src" / "main.py").write_text("print()\n")
        self._before = fingerprint(self.workspace)

    def check(self) -> None:
        """Check what must hold after every run."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.01)  # a process that was reaped by another is in the table for a moment
        assert left == [], "something is left running"
        left_directories = [*self.run_directories.glob("[!d]*"), *self.run_directories.glob("dragoman-*/*")]
        left_directories += self.run_directories.glob("dragoman-run-*")
        assert left_directories == [], "a run directory is left"
        assert fingerprint(self.workspace) == self._before, "the workspace has changed"
        text = repr(self.logged)
        assert not [secret for secret in SECRETS if secret in text], "a secret is in the log"

    def clean_up(self) -> None:
        """Kill what a failed test has left."""
        for line in self.left():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(int(line.split()[0])).kill()
        shutil.rmtree(self.run_directories, ignore_errors=True)


def fingerprint(root: Path) -> str:
    """Return a digest of a directory: names, modes and content."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(f"{path.relative_to(root)} {path.lstat().st_mode:o}\n".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "(gone)"


@contextlib.contextmanager
def run_directories_in(path: Path) -> Iterator[None]:
    """Let temporary directories be made there."""
    before = tempfile.tempdir
    tempfile.tempdir = str(path)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.asynccontextmanager
async def arena_in(root: Path, adapter: Adapter | None = None) -> AsyncIterator[Arena]:
    """Open an arena, and check after all its runs what must hold."""
    # Not below `root`: in a folder with a long name the adapter would not make its own.
    run_directories = Path(tempfile.mkdtemp(prefix="runs-"))
    program = os.environ.get(COMMAND_VARIABLE, "") if adapter is None else ""
    with structlog.testing.capture_logs() as logged:
        opened = launched(program, run_directories, logged) if program else serving(adapter or process_adapter())
        async with opened as sidecar:
            arena = Arena(sidecar, root, logged, run_directories)
            arena.open()
            try:
                with run_directories_in(arena.run_directories):
                    yield arena
                arena.check()
            finally:
                arena.clean_up()


@contextlib.asynccontextmanager
async def launched(
    program: str, run_directories: Path, logged: list[MutableMapping[str, Any]]
) -> AsyncIterator[Sidecar]:
    """Start another program that is the adapter ``process``; what it prints is added to the log."""
    with tempfile.TemporaryDirectory(prefix="sidecar-") as directory:
        address = f"unix:{Path(directory) / 's'}"
        environment = {**os.environ, "DRAGOMAN_LISTEN": address, "TMPDIR": str(run_directories)}
        process = await asyncio.create_subprocess_exec(program, env=environment, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        reading = asyncio.create_task(_read_log(process.stderr, logged))
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not any(entry.get("msg") == "adapter ready" for entry in logged):  # noqa: ASYNC110 - its log says so
                    await asyncio.sleep(0.01)
            async with connected(address) as sidecar:
                yield sidecar
        finally:
            process.terminate()
            await process.wait()
            await reading


async def _read_log(output: asyncio.StreamReader, logged: list[MutableMapping[str, Any]]) -> None:
    async for line in output:
        logged.append(json.loads(line))
