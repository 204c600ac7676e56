"""Launches adapters as processes, each under a guard of its own."""

import asyncio
import itertools
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.guard import processes
from dragoman.guard.instance import is_guarded, read_instance
from dragoman.guard.launch import AdapterOptions, adapter_guard, guard_command
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import ROUTER_VARIABLE, TOKEN_VARIABLE, check_socket_path
from dragoman.router.adapters.specs import LaunchSpec
from msgspec import Struct

LISTEN_VARIABLE = "DRAGOMAN_LISTEN"
"""The environment variable with the address for an adapter to listen on."""

_OWN_VARIABLES = frozenset(
    {TOKEN_VARIABLE, ROUTER_VARIABLE, "DRAGOMAN_DRAIN_GRACE", "DRAGOMAN_HEALTH", "DRAGOMAN_METRICS"}
)
"""Variables of this process that adapters do not inherit.

They and their agents need no router's address and token, and the router that stops one has waited for its runs.
"""

_PROOF_TIMEOUT_S = 10.0
"""How long a guard may take to prove that its process tree is gone, before it is killed itself."""

_EXIT_TIMEOUT_S = 2.0
"""How long a guard that is ending may take to exit."""

_POLL_S = 0.1
"""How often to check for a process that is not a child, so that no signal reports its end."""

_log = Logger("dragoman.router")


class LaunchError(Exception):
    """An adapter could not be started; the message is for people and contains no environment."""


class _Paths(Struct, frozen=True):
    socket: Path
    control: Path
    instance: Path
    log: Path


class GuardLauncher:
    """Starts adapters, each under a guard that outlives this process.

    Args:
        runtime: a private directory with a short path, for sockets.
        logs: the directory for the adapters' output, one rotated file each.
        orphan_after_s: how long an adapter outlives this process if it crashes.
    """

    def __init__(self, runtime: Path, logs: Path, *, orphan_after_s: float) -> None:
        self._runtime = runtime
        self._logs = logs
        self._orphan_after_s = orphan_after_s
        self._numbers = itertools.count(1)
        self._prepared: dict[str, asyncio.Task[GuardedProcess]] = {}

    async def prepare(self, name: str, spec: LaunchSpec) -> None:
        """Begin to start an adapter that is about to be launched. On return its guard runs, and needs no loop."""
        self._prepared[name] = asyncio.create_task(self._start(name, spec))
        await asyncio.sleep(0)  # the task's first step starts the guard

    async def launch(self, name: str, spec: LaunchSpec) -> "GuardedProcess":
        """Start an adapter, or return the one that was prepared.

        Args:
            name: the adapter's type, for paths and logs.
            spec: the command to start.

        Raises:
            LaunchError: it did not start.
        """
        prepared = self._prepared.pop(name, None)
        return await (prepared if prepared is not None else self._start(name, spec))

    async def close(self) -> None:
        """Stop what was prepared and never launched."""
        prepared, self._prepared = list(self._prepared.values()), {}
        for result in await asyncio.gather(*prepared, return_exceptions=True):
            if isinstance(result, GuardedProcess):
                await result.stop(0.0)

    async def _start(self, name: str, spec: LaunchSpec) -> "GuardedProcess":
        paths = self._paths(name)
        options = AdapterOptions(
            instance=paths.instance,
            instance_id=paths.instance.stem,
            control=paths.control,
            log=paths.log,
            listen=f"unix:{paths.socket}",
            orphan_after_s=self._orphan_after_s,
        )
        with guard_command(adapter_guard(spec.command, options)) as (command, arguments_fd):
            guard = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(spec, paths.socket),
                # Not the router's own directory, which may be a workspace.
                cwd=self._runtime,
                pass_fds=[arguments_fd],
                start_new_session=True,
            )
        try:
            spawned = await _start_event(guard)
            reader, writer = await asyncio.open_unix_connection(str(paths.control))
        except OSError as error:
            # The guard reported the start, so adapter and guard have ended since.
            raise LaunchError(
                f"it exited immediately with code {await _exit_code_of(guard)} (log: {paths.log})"
            ) from error
        except BaseException:
            await asyncio.shield(_kill(guard))
            raise
        return GuardedProcess(_OwnGuard(guard), spawned, reader, writer, paths)

    async def adopt(self, address: str) -> "GuardedProcess | None":
        """Adopt an adapter of a router that is gone; ``None`` if the adapter is gone, too."""
        if not address.startswith("unix:"):
            return None
        socket = Path(address.removeprefix("unix:"))
        try:
            check_socket_path(str(socket))
        except AddressError as error:
            _log.warning("adapter process not adopted", reason=str(error))
            return None
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
        return GuardedProcess(_AdoptedGuard(*instance.guard), spawned, reader, writer, paths)

    def _paths(self, name: str) -> _Paths:
        # Numbered, so that leftovers of a killed adapter do not conflict with the next one.
        stem = f"{name[:20]}.{next(self._numbers)}"
        return _Paths(
            socket=self._runtime / f"{stem}.s",
            control=self._runtime / f"{stem}.c",
            instance=self._runtime / f"{stem}.json",
            log=self._logs / f"{name}.log",
        )


def _environment(spec: LaunchSpec, socket: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    return {
        "GRPC_VERBOSITY": "NONE",  # its log is for its developers
        **inherited,
        **spec.env,
        LISTEN_VARIABLE: f"unix:{socket}",
        # Adapters start processes, too, and grpc's fork handlers have crashed such children.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }


async def _start_event(guard: asyncio.subprocess.Process) -> dict[str, Any]:
    """Wait for the guard's report of the start, and return its ``spawned`` event.

    Raises:
        LaunchError: the start failed.
    """
    assert guard.stdout is not None
    assert guard.stderr is not None
    report = await guard.stdout.readline()  # uvloop sees the end of a pipe only when its process ends
    event: dict[str, Any] = json.loads(report) if report else {}
    if event.get("event") == "spawned":
        return event
    error = (await guard.stderr.read()).decode("utf-8", "replace").strip()
    await guard.wait()
    raise LaunchError(str(event.get("message") or error or "its guard failed to start")[:500])


async def _exit_code_of(guard: asyncio.subprocess.Process) -> int:
    """Wait for an unreachable guard to end; return its exit code, which mirrors its adapter's."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_TIMEOUT_S):
            return await guard.wait()
    await _kill(guard)
    return await guard.wait()


async def _kill(guard: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        guard.kill()
    await guard.wait()


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
        transport = process._transport  # noqa: SLF001 - it kills a living process when it is closed or collected
        transport.get_extra_info("subprocess").returncode = 0  # unless it believes that the process has ended
        transport.close()


class _AdoptedGuard:
    """A guard that a router started which is gone."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._started = started

    async def wait(self) -> None:
        """Wait until it is gone; only a parent is notified, so this polls."""
        while (process := processes.read(self.pid)) is not None and process.started == self._started:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_S)

    def kill(self) -> None:
        """Kill it."""
        process = processes.read(self.pid)
        if process is not None and process.started == self._started:
            processes.send(process, signal.SIGKILL)

    def leave(self) -> None:
        """Do nothing: it is no child."""


class GuardedProcess:
    """An adapter's process under its guard. Made by ``GuardLauncher``."""

    def __init__(
        self,
        guard: _OwnGuard | _AdoptedGuard,
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
        self._event_task = asyncio.ensure_future(self._follow_events(reader))

    async def ended(self) -> str:
        """Wait until the process has ended, and return how."""
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        """Terminate it, kill its process tree after ``grace_s`` seconds, and wait until the tree is gone."""
        if not self._ended.done() and grace_s > 0:
            self._send_command({"signal": "SIGTERM"})
            await asyncio.wait([self._ended], timeout=grace_s)
        if not self._ended.done():
            self._send_command({"kill": True})
        try:
            async with asyncio.timeout(_PROOF_TIMEOUT_S):
                await self._guard.wait()
        except TimeoutError:
            _log.error(
                "guard killed: it did not end its process tree in time", guard_pid=self.guard_pid, pid=self.pid
            )
            with suppress(ProcessLookupError):
                self._guard.kill()
            await self._guard.wait()
        await self._event_task
        self._writer.close()
        # A killed adapter leaves its socket behind.
        self._socket.unlink(missing_ok=True)

    def leave(self) -> None:
        """Disconnect without stopping it, as another router uses it."""
        self._event_task.cancel()
        self._writer.close()
        self._guard.leave()

    def _send_command(self, command: dict[str, object]) -> None:
        self._writer.write(json.dumps(command).encode() + b"\n")

    async def _follow_events(self, reader: asyncio.StreamReader) -> None:
        """Follow the guard's events until it is gone."""
        with suppress(OSError):
            while line := await reader.readline():
                event = json.loads(line)
                if event.get("event") == "exited" and not self._ended.done():
                    self._ended.set_result(_exit_description(event))
        if not self._ended.done():
            # The guard was killed. An adapter without a guard must not live on.
            self._kill_unguarded()
            self._ended.set_result("was killed because its guard had been killed")

    def _kill_unguarded(self) -> None:
        process = processes.read(self.pid)
        if process is not None and process.started == self._started:
            processes.send(process, signal.SIGKILL)


def _exit_description(event: dict[str, Any]) -> str:
    if event.get("signal") is None:
        return f"exited with code {event.get('code')}"
    try:
        return f"was killed by {signal.Signals(event['signal']).name}"
    except ValueError:
        return f"was killed by signal {event['signal']}"
