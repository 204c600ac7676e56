"""The owner's end of a run's guard: starting it, giving it orders, hearing it, collecting it.

The guard is started with `subprocess.Popen`, not by the event loop: asyncio kills the process it is
starting when it is cancelled, which is no way to treat a guard, and on Python 3.11 every process
costs it a thread.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from dragoman.sdk._process.prepared_guard import PreparedGuard

_CONTROL_BYTES = 1 << 16


class LaunchError(Exception):
    """The guard itself could not be started; the text is for people.

    Attributes:
        errno_name: As in ``errno.h``. ENOENT and its like mean the working directory: a guard that
            cannot be found is EIO, since it says nothing about the command.
    """

    def __init__(self, errno_name: str, message: str) -> None:
        super().__init__(message)
        self.errno_name = errno_name


class GuardLink:
    """One guard process and the socket to it.

    Args:
        loop: The running event loop.
        on_event: Called with each event of the guard, in order.
        on_end: Called once, when all events of the command were read, and the guard has ended and is reaped, or
            waits for another command.
        give_back: Called with a guard that waits for another command, before `on_end`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[dict[str, Any]], None],
        on_end: Callable[[], None],
        give_back: Callable[[PreparedGuard], None],
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self._on_end = on_end
        self._give_back = give_back
        self._guard: PreparedGuard | None = None
        self._control: socket.socket | None = None
        self._partial = b""

    def launch(
        self,
        guard: PreparedGuard,
        argv: tuple[str, ...],
        *,
        cwd: str,
        env: Mapping[str, str],
        linger_s: float,
        private_dir: str | None,
    ) -> tuple[int, int, int]:
        """Have a guard start the command; return our ends of its stdin, stdout and stderr.

        Raises:
            LaunchError: No program can be started so; the guard has ended.
            OSError: There are no descriptors left; the guard has ended.
        """
        try:
            pipes = guard.begin(argv, cwd=cwd, env=env, linger_s=linger_s, private_dir=private_dir)
        except ValueError as error:  # a zero byte in an argument, the environment or the directory
            raise LaunchError("EINVAL", str(error)) from None
        self._guard, self._control = guard, guard.control
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)
        return pipes

    @property
    def pid(self) -> int | None:
        """The guard's pid; None if it was not started."""
        return None if self._guard is None else self._guard.process.pid

    def order(self, command: dict[str, object]) -> None:
        """Send an order; lost if the guard is dead, which `on_end` reports."""
        if self._control is None:
            return
        try:
            self._control.send(json.dumps(command).encode() + b"\n")
        except OSError:
            return  # dead, as the reader is about to learn, or stuck, which the owner must bound

    def wake(self) -> None:
        """Continue a stopped guard."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the guard alone, not what it guards."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: signal.Signals) -> None:
        # Once the socket is closed the guard is ending by itself.
        if self._guard is not None and self._control is not None:
            self._guard.process.send_signal(signum)

    def _read(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # reset: the guard died with an order unread
        *lines, self._partial = (self._partial + data).split(b"\n")
        waits = False
        for line in lines:
            event = json.loads(line)
            waits = event.get("waits", False)
            self._on_event(event)
        if not data:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            self._collect()
        elif waits:
            self._loop.remove_reader(self._control.fileno())
            self._control = None
            assert self._guard is not None
            self._give_back(self._guard)
            self._on_end()

    def _collect(self) -> None:
        """Reap the guard: its socket is closed, so its end is a matter of microseconds."""
        assert self._guard is not None
        guard = self._guard.process
        try:
            fd = os.pidfd_open(guard.pid) if hasattr(os, "pidfd_open") else -1
        except OSError:
            fd = -1  # an old kernel or a sandbox
        if fd < 0:
            reaped = self._loop.run_in_executor(None, guard.wait)
            reaped.add_done_callback(lambda _: self._on_end())
            return

        def on_exit() -> None:
            self._loop.remove_reader(fd)
            os.close(fd)
            guard.wait()
            self._on_end()

        self._loop.add_reader(fd, on_exit)
