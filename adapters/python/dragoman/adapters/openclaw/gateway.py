"""Warm gateways: one per state directory, started when first needed, ended with the adapter.

A start takes 15 seconds of a processor, a turn of a warm one half a second.
"""

import asyncio
import json
import os
import secrets
import shutil
import socket
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

from dragoman.adapters.openclaw.environment import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    PLUGIN,
    RUNS,
    STATE_VARIABLE,
    Setting,
    own_config,
)
from dragoman.adapters.openclaw.ws_bridge import GatewayError, Socket
from dragoman.protocol.logs import Logger
from dragoman.sdk import FailureError, FailureInfo
from dragoman.sdk.fields import JsonValue, compact
from dragoman.sdk.run import SharedProgram
from dragoman.v1 import event_pb2 as pb

_START_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.2
_ANSWER_LIMIT_S: Final = 10.0
_STOP_GRACE_S: Final = 8.0
_TAIL: Final = 1200
"""Characters."""
_STARTS: Final = 3
"""How often a start is tried that fails temporarily."""
_TEMPORARY: Final = {
    # It listens seconds after the free port was found: another process may have it by then.
    "already listening on": "openclaw_port_taken",
    # One of its parts has five seconds to start, which is too little on a busy machine.
    "lease heartbeat did not become ready": "openclaw_gateway_late",
}
"""Its messages when a start fails temporarily, and the failures' codes."""

_log = Logger("dragoman.adapters.openclaw")


class GatewayFolder:
    """The private directory of a gateway: its configuration, the adapter's plugin, and a file for each run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, setting: Setting, port: int) -> None:
        """Write what the gateway needs to start."""
        plugin = self.path / PLUGIN
        for folder in (plugin, self.path / RUNS, self.path / "tmp"):
            folder.mkdir(mode=0o700)
        for resource in (files(__package__) / "plugin").iterdir():
            if resource.is_file():
                (plugin / resource.name).write_bytes(resource.read_bytes())
        (self.path / CONFIG_FILE).write_text(compact(own_config(setting, port, self.path)), encoding="utf-8")

    def write_run(self, name: str, content: JsonValue) -> None:
        """Give the plugin a run's settings; see ``environment.run_file`` for the name."""
        fresh = self.path / RUNS / f".{name}"
        with open(fresh, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump(content, file)
        fresh.replace(self.path / RUNS / name)

    def remove_run(self, name: str) -> None:
        """Have the plugin refuse the tools of a session that has no run."""
        (self.path / RUNS / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)


class Gateway:
    """One gateway that runs. Made by ``start``."""

    def __init__(self, setting: Setting, folder: GatewayFolder, port: int, token: str) -> None:
        self.setting = setting
        self.folder = folder
        self.port = port
        self.token = token
        self.is_doubtful = False
        """Whether it has programs of a run that only its own end will end."""
        self._program: SharedProgram | None = None
        self._earlier: dict[str, frozenset[tuple[int, int]]] = {}

    @classmethod
    async def start(cls, setting: Setting) -> "Gateway":
        """Start one and wait until it answers; try again, at another port, after a temporary failure.

        Raises:
            FailureError: it ends at once, or does not answer in time.
        """
        for _ in range(_STARTS - 1):
            try:
                return await cls._start(setting)
            except FailureError as error:
                if error.info.code not in _TEMPORARY.values():
                    raise
                _log.warning("gateway is started again", problem=error.info.code)
        return await cls._start(setting)

    @classmethod
    async def _start(cls, setting: Setting) -> "Gateway":
        folder = GatewayFolder(Path(tempfile.mkdtemp(prefix="dragoman-openclaw-")))
        gateway = cls(setting, folder, _free_port(), secrets.token_urlsafe(32))
        try:
            folder.fill(setting, gateway.port)
            await gateway._spawn()
            await gateway._wait_until_ready()
        except BaseException:
            await gateway.stop()
            raise
        return gateway

    async def _spawn(self) -> None:
        command = [self.setting.executable, "gateway", "--allow-unconfigured"]
        folder = self.folder.path
        environment = {
            **self.setting.environment,
            STATE_VARIABLE: str(self.setting.state_dir),
            CONFIG_VARIABLE: str(folder / CONFIG_FILE),
            "OPENCLAW_INCLUDE_ROOTS": str(self.setting.config.resolve().parent),
            "OPENCLAW_GATEWAY_TOKEN": self.token,
            "OPENCLAW_GATEWAY_PORT": str(self.port),
            "TMPDIR": str(folder / "tmp"),
        }
        self._program = await SharedProgram.start(command, cwd=str(folder), env=environment, private_dir=str(folder))

    async def _wait_until_ready(self) -> None:
        deadline = asyncio.get_running_loop().time() + _START_LIMIT_S
        while not await self.is_healthy():
            if not self.is_alive:
                await self._end()  # its output is complete then
                raise FailureError(_failure(self.setting, "ended while it started", self._output()))
            if asyncio.get_running_loop().time() > deadline:
                code = "openclaw_gateway_silent"
                raise FailureError(_failure(self.setting, "does not answer", self._output(), code))
            await asyncio.sleep(_POLL_S)  # it has no notification that it is ready

    @property
    def is_alive(self) -> bool:
        """Whether its process is there."""
        return self._program is not None and self._program.is_alive

    async def is_healthy(self) -> bool:
        """Return whether it answers."""
        if not self.is_alive:
            return False
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S), Socket(self.port, self.token):
                return True
        except (GatewayError, TimeoutError):
            return False

    def _output(self) -> str:
        return "" if self._program is None else self._program.words()

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Send a request and return its answer; empty if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S), Socket(self.port, self.token) as connection:
                answer = await connection.ask(method, dict(params))
        except (GatewayError, TimeoutError) as error:
            _log.warning("gateway does not answer", method=method, problem=str(error))
            return {}
        payload = answer.get("payload")
        return payload if answer.get("ok") is True and isinstance(payload, dict) else {}

    async def begin_run(self, marker: str) -> None:
        """Note which processes exist before a run begins."""
        if self._program is not None:
            self._earlier[marker] = await self._program.begin_run()

    async def end_run(self, marker: str, *, is_alone: bool) -> bool:
        """End the processes of a run without a turn; see ``SharedProgram.end_run``."""
        earlier = self._earlier.pop(marker, frozenset())
        return self._program is None or await self._program.end_run(marker, earlier, is_alone=is_alone)

    async def stop(self) -> bool:
        """End it, and remove its directory; return whether its process tree is confirmed dead."""
        is_gone = await self._end()
        self.folder.remove()
        return is_gone

    async def _end(self) -> bool:
        return self._program is None or await self._program.stop(_STOP_GRACE_S)


def _failure(setting: Setting, what: str, output: str, code: str = "") -> FailureInfo:
    """Return the failure of a start; without a code, its output decides whether that is temporary."""
    code = code or next((code for text, code in _TEMPORARY.items() if text in output), "openclaw_gateway_ended")
    tail = output[-_TAIL:]
    hint = ""
    if "ownership" in tail or "already running" in tail:
        hint = (
            f" Another gateway owns {setting.state_dir}: stop it, or set OPENCLAW_STATE_DIR to"
            " a directory that is the adapter's own."
        )
    message = f"OpenClaw's gateway {what}.{hint} Its last output: {tail or 'none'}"
    return FailureInfo(pb.FAILURE_KIND_SPAWN_FAILED, message, code=code)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class _Entry:
    """The gateway of one state directory, and how many runs use it."""

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.starting: asyncio.Task[Gateway] | None = None
        self.gateway: Gateway | None = None
        """The one that was acquired last."""
        self.users = 0


def _has_failed(start: "asyncio.Task[Gateway]") -> bool:
    return start.done() and (start.cancelled() or start.exception() is not None)


class Gateways:
    """All gateways of an adapter."""

    def __init__(self) -> None:
        self._entries: dict[Path, _Entry] = {}

    async def acquire(self, setting: Setting) -> Gateway:
        """Return a gateway that answers. ``release`` it afterwards.

        One with another setting is replaced as soon as no run uses it. A start continues if the run that requested
        it is cancelled: the next run will use it.

        Raises:
            FailureError: it cannot be started.
        """
        entry = self._entries.setdefault(setting.state_dir, _Entry())
        async with entry.changed:
            while True:
                if entry.starting is None or _has_failed(entry.starting):
                    entry.starting = asyncio.create_task(Gateway.start(setting))
                gateway = await asyncio.shield(entry.starting)
                if gateway.setting == setting and await gateway.is_healthy():
                    entry.gateway = gateway
                    entry.users += 1
                    return gateway
                if entry.users and gateway.is_alive:
                    await entry.changed.wait()
                else:
                    entry.starting, entry.users = None, 0
                    await gateway.stop()

    async def release(self, gateway: Gateway, marker: str, *, has_stopped: bool = True) -> bool:
        """End a run in its gateway, which stays warm; return whether the whole run is confirmed dead.

        Processes that cannot be ended while other runs use the gateway end with it, as soon as no run uses it.

        Args:
            gateway: the one that was acquired.
            marker: the run's.
            has_stopped: whether the run has no turn there any more.
        """
        entry = self._entries.get(gateway.setting.state_dir)
        if entry is None or entry.gateway is not gateway:  # it has ended, and was replaced
            return await gateway.end_run(marker, is_alone=True)
        async with entry.changed:  # no other run can acquire it meanwhile
            try:
                is_alone = entry.users <= 1
                is_gone = await gateway.end_run(marker, is_alone=is_alone) and has_stopped
                gateway.is_doubtful = gateway.is_doubtful or not is_gone
                if is_alone and gateway.is_doubtful:
                    _log.warning("gateway is stopped: processes of a run remain in it")
                    is_gone = await gateway.stop()
                return is_gone
            finally:
                entry.users = max(0, entry.users - 1)
                entry.changed.notify_all()

    async def close(self) -> None:
        """End them all."""
        starts = [entry.starting for entry in self._entries.values() if entry.starting is not None]
        self._entries.clear()
        for start in starts:
            start.cancel()  # a finished one stays finished
        ended = await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(gateway.stop() for gateway in ended if isinstance(gateway, Gateway)))
