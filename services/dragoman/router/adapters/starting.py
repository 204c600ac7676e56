"""Starts adapters as processes, each under a guard of its own, without an event loop.

It imports little: the adapter of a command starts before most of the command is imported.
"""

import contextlib
import itertools
import os
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from dragoman.guard.launch import AdapterOptions, adapter_guard, guard_command
from dragoman.protocol.private import ROUTER_VARIABLE, TOKEN_VARIABLE
from dragoman.router.adapters.launch_spec import LaunchSpec

LISTEN_VARIABLE = "DRAGOMAN_LISTEN"
"""The environment variable with the address for an adapter to listen on."""
EXPECTS_RUN_VARIABLE = "DRAGOMAN_EXPECTS_RUN"
"""The environment variable that is set for an adapter that is started for a run, which begins once it listens."""

_OWN_VARIABLES = frozenset(
    {
        TOKEN_VARIABLE,
        ROUTER_VARIABLE,
        EXPECTS_RUN_VARIABLE,
        "DRAGOMAN_DRAIN_GRACE",
        "DRAGOMAN_HEALTH",
        "DRAGOMAN_METRICS",
    }
)
"""Variables of this process that adapters do not inherit.

They and their agents need no router's address and token, and the router that stops one has waited for its runs.
"""

_END_S = 10.0
"""How long a guard may take to end an adapter that was started in vain, before it is killed itself."""


class AdapterPaths(NamedTuple):
    """The files of one adapter process."""

    socket: Path
    control: Path
    instance: Path
    log: Path


class StartedGuard(NamedTuple):
    """A guard that was started for an adapter. It reports on its standard output whether the adapter started."""

    name: str
    spec: LaunchSpec
    paths: AdapterPaths
    process: "subprocess.Popen[bytes]"
    claim: socket.socket
    """Open while no router is connected, so that the adapter lives as long as this process, and no longer."""


class GuardStarter:
    """Starts guards. One that was prepared is handed out once, to what needs exactly it.

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
        self._prepared: list[StartedGuard] = []

    def prepare(self, name: str, spec: LaunchSpec, *, for_run: bool = False) -> None:
        """Start an adapter that is probably used soon, unless that was done already.

        The arguments are those of ``start``.
        """
        with contextlib.suppress(OSError):  # a later attempt reports it
            self._prepared.append(self.start(name, spec, for_run=for_run))

    def start(self, name: str, spec: LaunchSpec, *, for_run: bool = False) -> StartedGuard:
        """Start an adapter, or return the one that was prepared and has not ended.

        Args:
            name: the adapter's type, for paths and logs.
            spec: the command to start.
            for_run: whether it is started for a run, for which it makes itself ready.

        Raises:
            OSError: the guard cannot be started.
        """
        for started in self._prepared:
            if (started.name, started.spec) == (name, spec):
                self._prepared.remove(started)
                if started.process.poll() is None:
                    return started
                _end(started)
                break
        paths = self._paths(name)
        options = AdapterOptions(
            instance=paths.instance,
            instance_id=paths.instance.stem,
            control=paths.control,
            log=paths.log,
            listen=f"unix:{paths.socket}",
            orphan_after_s=self._orphan_after_s,
        )
        claim, theirs = socket.socketpair()
        arguments = adapter_guard(spec.command, options, control_fd=theirs.fileno())
        with contextlib.ExitStack() as undo, theirs, guard_command(arguments) as (command, arguments_fd):
            undo.callback(claim.close)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=adapter_environment(spec, paths.socket) | ({EXPECTS_RUN_VARIABLE: "1"} if for_run else {}),
                # Not the router's own directory, which may be a workspace.
                cwd=self._runtime,
                pass_fds=[theirs.fileno(), arguments_fd],
                start_new_session=True,
            )
            undo.pop_all()
        return StartedGuard(name, spec, paths, process, claim)

    def close(self) -> None:
        """End what was prepared and not used, and wait until it is gone."""
        prepared, self._prepared = self._prepared, []
        for started in prepared:
            started.process.terminate()
        for started in prepared:
            _end(started)

    def _paths(self, name: str) -> AdapterPaths:
        # Numbered, so that leftovers of a killed adapter do not conflict with the next one.
        stem = f"{name[:20]}.{next(self._numbers)}"
        return AdapterPaths(
            socket=self._runtime / f"{stem}.s",
            control=self._runtime / f"{stem}.c",
            instance=self._runtime / f"{stem}.json",
            log=self._logs / f"{name}.log",
        )


def _end(started: StartedGuard) -> None:
    """Wait until a guard has ended that was ordered to."""
    with started.claim, started.process as guard:
        try:
            guard.wait(_END_S)
        except subprocess.TimeoutExpired:
            guard.kill()
    # A killed adapter leaves its socket behind.
    started.paths.socket.unlink(missing_ok=True)


def adapter_environment(spec: LaunchSpec, socket: Path) -> dict[str, str]:
    """Return the environment of an adapter that listens on a socket."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    return {
        "GRPC_VERBOSITY": "NONE",  # its log is for its developers
        **inherited,
        **spec.env,
        LISTEN_VARIABLE: f"unix:{socket}",
        # Adapters start processes, too, and grpc's fork handlers have crashed such children.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
