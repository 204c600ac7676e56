"""Starting a target, and finding what it leaves behind."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from dragoman.conformance.check import Skip
from dragoman.protocol.dialing import open_channel
from dragoman.protocol.limits import channel_options
from grpc_health.v1 import health_pb2, health_pb2_grpc

MARK_VARIABLE = "DRAGOMAN_CONFORMANCE_MARK"
"""The variable by which processes of one target are found."""

_START_S = 30.0
_POLL_S = 0.05
_SHOWN_LOG = 2000
_SETTLE_S = 3.0
_END_S = 30.0
"""After SIGKILL: only a process that its kernel holds takes long."""


class LaunchError(Exception):
    """The target cannot be reached or started; the text says why."""


class Process:
    """A target that the kit has started.

    Args:
        process: the process, leader of its own group.
        address: where it listens.
        log: the file with what it prints.
        mark: the value of `MARK_VARIABLE` in its environment.
    """

    def __init__(self, process: asyncio.subprocess.Process, address: str, log: Path, mark: str) -> None:
        self.address = address
        self.mark = mark
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    @property
    def ending(self) -> str:
        """How it ended, for people."""
        code = self.code or 0
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    @property
    def output(self) -> bytes:
        """All that it has printed on standard output and standard error."""
        return self._log.read_bytes()

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        return self.output[-_SHOWN_LOG:].decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self, limit_s: float) -> bool:
        """Wait for its end; return whether it came within the limit."""
        try:
            await asyncio.wait_for(self._process.wait(), limit_s)
        except TimeoutError:
            return False
        return True

    async def is_gone(self, limit_s: float) -> bool:
        """Wait for its end; return whether it came within the limit and left nothing that serves its address."""
        return await self.ended(limit_s) and not await is_serving(self.address)

    async def until_serving(self, slowness: float = 1.0) -> None:
        """Wait until its health service answers SERVING.

        Args:
            slowness: how many times as long as usual that may take.

        Raises:
            LaunchError: it exited, or did not serve in time.
        """
        limit_s = _START_S * slowness
        try:
            async with asyncio.timeout(limit_s):
                while not await is_serving(self.address):
                    if self.code is not None:
                        raise LaunchError(f"the command {self.ending}:\n{self.printed}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise LaunchError(
                f"nothing serves {self.address} {limit_s:g} s after the start; an adapter listens where the "
                f"variable DRAGOMAN_LISTEN says:\n{self.printed}"
            ) from None


async def is_serving(address: str) -> bool:
    """Return whether the server's health service answers SERVING, or answers that it has no health service."""
    path = address.removeprefix("unix:")
    if path != address and not Path(path).exists():
        return False
    async with open_channel(address, channel_options(address)) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNIMPLEMENTED  # for the check of health to report
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def launched(
    command: Sequence[str],
    folder: Path,
    *,
    address: str = "",
    is_awaited: bool = True,
    slowness: float = 1.0,
    log: Path | None = None,
) -> AsyncIterator[Process]:
    """Start a target on a socket of its own; end all its processes afterwards.

    Args:
        command: the program and its arguments, with ``{listen}`` for the address; that is in DRAGOMAN_LISTEN too.
        folder: a new directory for its files.
        address: where it listens; a new Unix socket if empty.
        is_awaited: whether to wait until it serves.
        slowness: how many times as long as usual that may take.
        log: the file for what it prints; None for one in the folder.

    Raises:
        LaunchError: it does not start.
        OSError: the log cannot be written.
    """
    folder.mkdir()
    address = address or f"unix:{folder / 'adapter.sock'}"
    mark = secrets.token_hex(8)
    env = {**os.environ, "DRAGOMAN_LISTEN": address, MARK_VARIABLE: mark}
    argv = [part.replace("{listen}", address) for part in command]
    log = log or folder / "log"
    with log.open("wb") as output:
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the command {argv[0]!r} cannot be started: {error.strerror}") from error
    process = Process(child, address, log, mark)
    try:
        if is_awaited:
            await process.until_serving(slowness)
        yield process
    finally:
        process.signal(signal.SIGTERM)
        if not await process.ended(_SETTLE_S):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.ended(_SETTLE_S)


async def left_running(mark: str, variable: str = MARK_VARIABLE, limit_s: float = _SETTLE_S) -> list[str]:
    """Return the processes whose environment has the mark, once they had a moment to end.

    Raises:
        Skip: this platform does not show them.
    """
    if sys.platform != "linux":
        raise Skip(f"processes are not searched on {sys.platform}, only on Linux")
    found = _marked(mark, variable)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while found:
                await asyncio.sleep(_POLL_S)
                found = _marked(mark, variable)
    return found


async def end_left(mark: str, variable: str) -> None:
    """End the processes whose environment has the mark, and wait until they have ended.

    On a platform that does not show them it ends none.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            while found := list(_entries(mark, variable)):  # again, as one may have started another meanwhile
                for entry in found:
                    with contextlib.suppress(OSError):
                        os.kill(int(entry.name), signal.SIGKILL)
                while any(map(_is_running, found)):  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(_POLL_S)


def _is_running(entry: Path) -> bool:
    """Return whether a process lives; its environment is empty before it has ended."""
    with contextlib.suppress(OSError):
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _marked(mark: str, variable: str) -> list[str]:
    found = []
    for entry in _entries(mark, variable):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            found.append(f"{entry.name} {line[:80]}")
    return found


def _entries(mark: str, variable: str) -> Iterator[Path]:
    needle = f"{variable}={mark}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                yield entry
