"""Adapters as processes, each under a guard of its own."""

import asyncio
import itertools
import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from dragoman.guard import processes
from dragoman.guard.instance import is_guarded, read_instance
from dragoman.guard.launch import adapter_guard
from dragoman.router._domain.directory import LaunchSpec
from dragoman.router._ports import LaunchError

LISTEN_VARIABLE = "DRAGOMAN_LISTEN"
"""The environment variable that tells an adapter where to listen."""

_GONE_S = 10.0
"""How long a guard gets to prove that all is gone, before it is killed itself."""

_GOING_S = 2.0
"""How long a guard that is on its way out may take for the last of it."""

_LOOK_S = 0.1
"""How often a process is looked for of which nobody tells when it is gone."""

_log = structlog.get_logger("dragoman.router")


@dataclass(frozen=True, slots=True)
class _Paths:
    socket: Path
    control: Path
    instance: Path
    log: Path


class GuardLauncher:
    """Starts adapters; a ``Launcher``.

    Args:
        runtime: a private directory with a short path, for sockets.
        logs: where the adapters' output goes, one rotated file for each.
        orphan_after_s: how long an adapter lives on when this process is gone without a word.
    """

    def __init__(self, runtime: Path, logs: Path, *, orphan_after_s: float) -> None:
        self._runtime = runtime
        self._logs = logs
        self._orphan_after_s = orphan_after_s
        self._numbers = itertools.count(1)

    async def launch(self, name: str, spec: LaunchSpec) -> "GuardedProcess":
        """Start an adapter.

        Raises:
            LaunchError: it did not start.
        """
        paths = self._paths(name)
        command = adapter_guard(
            spec.command,
            instance=paths.instance,
            instance_id=paths.instance.stem,
            control=paths.control,
            log=paths.log,
            listen=f"unix:{paths.socket}",
            orphan_after_s=self._orphan_after_s,
        )
        guard = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(spec, paths.socket),
            # Not the caller's: an adapter's current directory is nobody's workspace.
            cwd=self._runtime,
            start_new_session=True,
        )
        try:
            spawned = await _first_word(guard)
            reader, writer = await asyncio.open_unix_connection(str(paths.control))
        except OSError as error:
            # It was there: so the adapter has ended already, and it with the adapter.
            raise LaunchError(f"it ended at once with exit code {await _end_of(guard)} (log: {paths.log})") from error
        except BaseException:
            await asyncio.shield(_end(guard))
            raise
        return GuardedProcess(_OwnGuard(guard), spawned, reader, writer, paths)

    async def adopt(self, address: str) -> "GuardedProcess | None":
        """Take over an adapter that a router started which is gone; ``None`` if it is not there any more.

        Args:
            address: where it listens.
        """
        if not address.startswith("unix:"):
            return None
        socket = Path(address.removeprefix("unix:"))
        instance_file = socket.with_suffix(".json")
        instance = read_instance(str(instance_file))
        if instance is None or not is_guarded(str(instance_file)) or not instance.is_current(instance.adapter):
            return None
        try:
            reader, writer = await asyncio.open_unix_connection(instance.control)
        except OSError:
            return None
        paths = _Paths(socket=socket, control=Path(instance.control), instance=instance_file, log=Path(instance.log))
        spawned = {"pid": instance.adapter[0], "started": instance.adapter[1]}
        return GuardedProcess(_OthersGuard(*instance.guard), spawned, reader, writer, paths)

    def _paths(self, name: str) -> _Paths:
        # Numbered: what is left of one that was killed must not be in the way of the next.
        stem = f"{name[:20]}.{next(self._numbers)}"
        return _Paths(
            socket=self._runtime / f"{stem}.s",
            control=self._runtime / f"{stem}.c",
            instance=self._runtime / f"{stem}.json",
            log=self._logs / f"{name}.log",
        )


def _environment(spec: LaunchSpec, socket: Path) -> dict[str, str]:
    return {
        **os.environ,
        **spec.env,
        LISTEN_VARIABLE: f"unix:{socket}",
        # Adapters start processes too; with grpc's fork handlers such children have crashed.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }


async def _first_word(guard: asyncio.subprocess.Process) -> dict[str, Any]:
    """Wait until the guard says how the start went.

    Raises:
        LaunchError: it went wrong.
    """
    assert guard.stdout is not None
    assert guard.stderr is not None
    said = await guard.stdout.read()
    complaint = (await guard.stderr.read()).decode("utf-8", "replace").strip()
    event: dict[str, Any] = json.loads(said) if said else {}
    if event.get("event") == "spawned":
        return event
    await guard.wait()
    raise LaunchError(str(event.get("message") or complaint or "its guard did not start")[:500])


async def _end_of(guard: asyncio.subprocess.Process) -> int:
    """Wait until a guard is gone that cannot be reached any more; return its exit code, which is its adapter's."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_GOING_S):
            return await guard.wait()
    await _end(guard)
    return await guard.wait()


async def _end(guard: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        guard.kill()
    await guard.wait()


class _Guard(Protocol):
    """The guard's process."""

    @property
    def pid(self) -> int:
        """Its id."""

    async def wait(self) -> object:
        """Wait until it is gone."""

    def kill(self) -> None:
        """Kill it."""

    def leave(self) -> None:
        """Let go of it."""


class _OwnGuard:
    """A guard that this router started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process

    async def wait(self) -> None:
        """Wait until it is gone."""
        await self._process.wait()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def leave(self) -> None:
        """Let go of it."""
        process: Any = self._process
        transport = process._transport  # noqa: SLF001 - it kills what lives when it is closed or collected
        transport.get_extra_info("subprocess").returncode = 0  # unless it thinks that it is gone
        transport.close()


class _OthersGuard:
    """A guard that another router started, which is gone."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._started = started

    async def wait(self) -> None:
        """Wait until it is gone; nobody tells who is not its parent."""
        while (process := processes.read(self.pid)) is not None and process.started == self._started:  # noqa: ASYNC110 - as said
            await asyncio.sleep(_LOOK_S)

    def kill(self) -> None:
        """Kill it."""
        process = processes.read(self.pid)
        if process is not None and process.started == self._started:
            processes.send(process, signal.SIGKILL)

    def leave(self) -> None:
        """Let go of it."""


class GuardedProcess:
    """An adapter's process under its guard; a ``Launched``. Made by ``GuardLauncher``."""

    def __init__(
        self,
        guard: "_Guard",
        spawned: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        paths: _Paths,
    ) -> None:
        self.address = f"unix:{paths.socket}"
        self.pid = int(spawned["pid"])
        self.guard_pid = guard.pid
        self.log_path = str(paths.log)
        self._started = spawned["started"]
        self._guard = guard
        self._writer = writer
        self._socket = paths.socket
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.ensure_future(self._listen(reader))

    async def ended(self) -> str:
        """Wait until the process has ended, and say how."""
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, kill it and all beneath it after ``grace_s`` seconds; wait until all that is gone."""
        if not self._ended.done() and grace_s > 0:
            self._order({"signal": "SIGTERM"})
            await asyncio.wait([self._ended], timeout=grace_s)
        if not self._ended.done():
            self._order({"kill": True})
        try:
            async with asyncio.timeout(_GONE_S):
                await self._guard.wait()
        except TimeoutError:
            _log.error("guard killed: it could not end what is beneath it", guard_pid=self.guard_pid, pid=self.pid)
            with suppress(ProcessLookupError):
                self._guard.kill()
            await self._guard.wait()
        await self._listening
        self._writer.close()
        # One that was killed has left its socket behind.
        self._socket.unlink(missing_ok=True)

    def leave(self) -> None:
        """Let go of it while it lives: another router has it."""
        self._listening.cancel()
        self._writer.close()
        self._guard.leave()

    def _order(self, command: dict[str, object]) -> None:
        self._writer.write(json.dumps(command).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Follow the guard's words until it is gone."""
        with suppress(OSError):
            while line := await reader.readline():
                event = json.loads(line)
                if event.get("event") == "exited" and not self._ended.done():
                    self._ended.set_result(_how(event))
        if not self._ended.done():
            # The guard was killed. Nobody watches the adapter any more, so it must not live on.
            self._kill_unguarded()
            self._ended.set_result("was ended because its guard was killed")

    def _kill_unguarded(self) -> None:
        process = processes.read(self.pid)
        if process is not None and process.started == self._started:
            processes.send(process, signal.SIGKILL)


def _how(event: dict[str, Any]) -> str:
    if event.get("signal") is None:
        return f"ended with exit code {event.get('code')}"
    try:
        return f"was ended by {signal.Signals(event['signal']).name}"
    except ValueError:
        return f"was ended by signal {event['signal']}"
