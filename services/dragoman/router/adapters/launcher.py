"""Launches adapters as processes, each under a guard of its own."""

import asyncio
import json
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.guard import processes
from dragoman.guard.instance import is_guarded, read_instance
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import check_socket_path
from dragoman.router.adapters.launch_spec import LaunchSpec
from dragoman.router.adapters.starting import AdapterPaths, GuardStarter

_PROOF_TIMEOUT_S = 10.0
"""How long a guard may take to prove that its process tree is gone, before it is killed itself."""

_EXIT_TIMEOUT_S = 2.0
"""How long a guard that is ending may take to exit."""

_POLL_S = 0.1
"""How often to check for a process that is not a child, so that no signal reports its end."""

_log = Logger("dragoman.router")


class LaunchError(Exception):
    """An adapter could not be started; the message is for people and contains no environment."""


class GuardLauncher:
    """Starts adapters, each under a guard that outlives this process.

    Args:
        starter: what starts the guards, and has perhaps begun with some.
    """

    def __init__(self, starter: GuardStarter) -> None:
        self._starter = starter

    async def launch(self, name: str, spec: LaunchSpec) -> "GuardedProcess":
        """Start an adapter, or return the one that was prepared.

        Args:
            name: the adapter's type, for paths and logs.
            spec: the command to start.

        Raises:
            LaunchError: it did not start.
        """
        started = self._starter.start(name, spec)
        guard, paths = started.process, started.paths
        try:
            with started.claim:
                spawned = await asyncio.to_thread(_start_event, guard)
                reader, writer = await asyncio.open_unix_connection(str(paths.control))
        except OSError as error:
            # The guard reported the start, so adapter and guard have ended since.
            code = await asyncio.to_thread(_exit_code_of, guard)
            raise LaunchError(f"it exited immediately with code {code} (log: {paths.log})") from error
        except BaseException:
            guard.kill()
            await asyncio.shield(asyncio.to_thread(guard.wait))
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
        paths = AdapterPaths(
            socket=socket, control=Path(instance.control), instance=instance_file, log=Path(instance.log)
        )
        spawned = {"pid": instance.adapter[0], "started": instance.adapter[1]}
        return GuardedProcess(_AdoptedGuard(*instance.guard), spawned, reader, writer, paths)


def _start_event(guard: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait for the guard's report of the start, and return its ``spawned`` event.

    Raises:
        LaunchError: the start failed.
    """
    assert guard.stdout is not None
    assert guard.stderr is not None
    with guard.stdout, guard.stderr:
        report = guard.stdout.readline()
        event: dict[str, Any] = json.loads(report) if report else {}
        if event.get("event") == "spawned":
            return event
        error = guard.stderr.read().decode("utf-8", "replace").strip()
    guard.wait()
    raise LaunchError(str(event.get("message") or error or "its guard failed to start")[:500])


def _exit_code_of(guard: "subprocess.Popen[bytes]") -> int:
    """Wait for an unreachable guard to end; return its exit code, which mirrors its adapter's."""
    try:
        return guard.wait(_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        return guard.wait()


class _OwnGuard:
    """A guard that this router started."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self._process = process

    async def wait(self) -> None:
        """Wait until it is gone."""
        await asyncio.to_thread(self._process.wait)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def leave(self) -> None:
        """Let go of it."""
        # Else nothing of it would be left but an entry in the table of processes, once it ends.
        threading.Thread(target=self._process.wait, name="left guard", daemon=True).start()


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
        paths: AdapterPaths,
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
                # Its end is waited for in a thread, which is not to wait for long.
                await asyncio.wait([self._event_task])
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
