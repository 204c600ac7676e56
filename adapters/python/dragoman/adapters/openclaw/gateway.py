"""Warm gateways: one per state directory, started when first needed, looked after, ended with the adapter.

A start takes a quarter of a minute and as much of a processor, a turn of a warm one half a second.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

import structlog
from dragoman.adapters.openclaw import keeper
from dragoman.adapters.openclaw.relay import GatewayError, Socket
from dragoman.adapters.openclaw.setting import PLUGIN, RUNS, Setting, own_config
from dragoman.sdk import FailureError, FailureInfo, JsonValue, compact
from dragoman.v1 import event_pb2 as pb

_START_LIMIT_S: Final = 300.0
_LOOK_S: Final = 0.2
_ANSWER_LIMIT_S: Final = 10.0
_STOP_LIMIT_S: Final = 20.0
"""More than the keeper gives the gateway: killed before it has ended that, it would leave it behind."""
_LAST_WORDS: Final = 1200
"""Characters."""
_STARTS: Final = 3
"""How often one is started that could not start just then."""
_PASSING: Final = {
    # It listens seconds after a free port was looked for: then somebody else may have it.
    "already listening on": "openclaw_port_taken",
    # It gives a part of itself five seconds to begin, which a busy machine may not have.
    "lease heartbeat did not become ready": "openclaw_gateway_late",
}
"""What it says when it could not start just then, and the failure's code."""

_log = structlog.get_logger("dragoman.adapters.openclaw")


class Gateway:
    """One gateway that runs. Made by ``start``."""

    def __init__(self, setting: Setting, folder: Path, port: int, token: str) -> None:
        self.setting = setting
        self.folder = folder
        self.port = port
        self.token = token
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(cls, setting: Setting) -> "Gateway":
        """Start one and wait until it answers; again, at another port, if it only could not just then.

        Raises:
            FailureError: it ends at once, or does not answer in time.
        """
        for _ in range(_STARTS - 1):
            try:
                return await cls._start(setting)
            except FailureError as error:
                if error.info.code not in _PASSING.values():
                    raise
                _log.warning("gateway is started again", problem=error.info.code)
        return await cls._start(setting)

    @classmethod
    async def _start(cls, setting: Setting) -> "Gateway":
        made = cls(
            setting, Path(tempfile.mkdtemp(prefix="dragoman-openclaw-")), _free_port(), secrets.token_urlsafe(32)
        )
        try:
            made._lay_out()
            await made._spawn()
            await made._answers()
        except BaseException:
            await made.stop()
            raise
        return made

    @property
    def runs(self) -> Path:
        """The folder in which the plugin looks for what belongs to a session."""
        return self.folder / RUNS

    @property
    def _log_file(self) -> Path:
        return self.folder / "gateway.log"

    def _lay_out(self) -> None:
        plugin = self.folder / PLUGIN
        for folder in (plugin, self.runs, self.folder / "tmp"):
            folder.mkdir(mode=0o700)
        for resource in (files(__package__) / "plugin").iterdir():
            if resource.is_file():
                (plugin / resource.name).write_bytes(resource.read_bytes())
        config = own_config(self.setting, self.port, self.folder)
        (self.folder / "openclaw.json").write_text(compact(config), encoding="utf-8")

    async def _spawn(self) -> None:
        command = [sys.executable, "-I", str(Path(keeper.__file__)), str(self._log_file)]
        command += [self.setting.executable, "gateway", "--allow-unconfigured"]
        environment = {
            **self.setting.environment,
            "OPENCLAW_STATE_DIR": str(self.setting.state_dir),
            "OPENCLAW_CONFIG_PATH": str(self.folder / "openclaw.json"),
            "OPENCLAW_INCLUDE_ROOTS": str(self.setting.config.resolve().parent),
            "OPENCLAW_GATEWAY_TOKEN": self.token,
            "OPENCLAW_GATEWAY_PORT": str(self.port),
            "TMPDIR": str(self.folder / "tmp"),
        }
        self._process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def _answers(self) -> None:
        deadline = asyncio.get_running_loop().time() + _START_LIMIT_S
        while not await self.is_well():
            if not self.is_alive:
                raise FailureError(self._failure("ended while it started", "openclaw_gateway_ended"))
            if asyncio.get_running_loop().time() > deadline:
                raise FailureError(self._failure("does not answer", "openclaw_gateway_silent"))
            await asyncio.sleep(_LOOK_S)  # it tells nobody that it is ready

    @property
    def is_alive(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.returncode is None

    async def is_well(self) -> bool:
        """Tell whether it answers."""
        if not self.is_alive:
            return False
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S), Socket(self.port, self.token):
                return True
        except (GatewayError, TimeoutError):
            return False

    def _failure(self, what: str, code: str) -> FailureInfo:
        words = ""
        with contextlib.suppress(OSError):
            words = self._log_file.read_text(encoding="utf-8", errors="replace").strip()
        code = next((passing for said, passing in _PASSING.items() if said in words), code)
        words = words[-_LAST_WORDS:]
        hint = ""
        if "ownership" in words or "already running" in words:
            hint = (
                f" Another gateway owns {self.setting.state_dir}: stop it, or set OPENCLAW_STATE_DIR to"
                " a directory that is the adapter's own."
            )
        message = f"OpenClaw's gateway {what}.{hint} Its last words: {words or 'none'}"
        return FailureInfo(pb.FAILURE_KIND_SPAWN_FAILED, message, code=code)

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Ask a gateway that is well; empty if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S), Socket(self.port, self.token) as connection:
                answer = await connection.ask(method, dict(params))
        except (GatewayError, TimeoutError) as error:
            _log.warning("gateway does not answer", method=method, problem=str(error))
            return {}
        payload = answer.get("payload")
        return payload if answer.get("ok") is True and isinstance(payload, dict) else {}

    def write_run(self, name: str, content: JsonValue) -> None:
        """Tell the plugin about a session; see ``setting.run_file`` for the name."""
        fresh = self.runs / f".{name}"
        with open(fresh, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump(content, file)
        fresh.replace(self.runs / name)

    def forget_run(self, name: str) -> None:
        """Have the plugin refuse what a session that no run is in may still want."""
        (self.runs / name).unlink(missing_ok=True)

    async def stop(self) -> None:
        """End it, and remove what it had."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()  # by this the keeper knows
            try:
                async with asyncio.timeout(_STOP_LIMIT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class _Place:
    """The gateway of one state directory, and how many runs use it."""

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.starting: asyncio.Task[Gateway] | None = None
        self.gateway: Gateway | None = None
        """The one that was taken last."""
        self.users = 0


def _broke_off(start: "asyncio.Task[Gateway]") -> bool:
    return start.done() and (start.cancelled() or start.exception() is not None)


class Gateways:
    """All gateways of an adapter."""

    def __init__(self) -> None:
        self._places: dict[Path, _Place] = {}

    async def take(self, setting: Setting) -> Gateway:
        """Return a gateway that is well. ``leave`` it afterwards.

        Where one runs with another setting, it is replaced as soon as no run uses it. A start goes on when
        the run that wanted it is cancelled: the next will want it, too.

        Raises:
            FailureError: it cannot be started.
        """
        place = self._places.setdefault(setting.state_dir, _Place())
        async with place.changed:
            while True:
                if place.starting is None or _broke_off(place.starting):
                    place.starting = asyncio.ensure_future(Gateway.start(setting))
                gateway = await asyncio.shield(place.starting)
                if gateway.setting == setting and await gateway.is_well():
                    place.gateway = gateway
                    place.users += 1
                    return gateway
                if place.users and gateway.is_alive:
                    await place.changed.wait()
                else:
                    place.starting, place.users = None, 0
                    await gateway.stop()

    async def leave(self, gateway: Gateway) -> None:
        """Say that a run no longer needs its gateway; it stays warm."""
        place = self._places.get(gateway.setting.state_dir)
        if place is not None and place.gateway is gateway:  # else it has died, and another is there
            async with place.changed:
                place.users = max(0, place.users - 1)
                place.changed.notify_all()

    async def close(self) -> None:
        """End them all."""
        starts = [place.starting for place in self._places.values() if place.starting is not None]
        self._places.clear()
        for start in starts:
            start.cancel()  # no more than a wish where it has started
        ended = await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(gateway.stop() for gateway in ended if isinstance(gateway, Gateway)))
