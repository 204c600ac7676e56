"""Guards that are started before their command is known, so that no run waits for an interpreter.

A guard is started with the marker of the run that it will have, since that is how its processes are recognized, with
the pipes of its command, and with an empty file for its arguments. It then waits for the run. If its owner ends, it
ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from dragoman.guard.launch import WaitingGuard
from dragoman.guard.tree import MARKER
from dragoman.sdk._process.pipes import Pipes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_UNUSED_S = 60.0
"""Seconds after a run in which a guard is kept for the next one."""
_NEXT_S, _FIRST_S = 0.005, 0.3
"""Seconds after the start of a run until the next guard is started; of the first run, which may be the only one."""


class PreparedGuard:
    """A guard that waits for its command.

    Attributes:
        marker: The marker of its run; empty if that has none.
        pipes: The command's pipes.
        control: Our end of the socket to the guard.
        process: The guard.

    Raises:
        OSError: It could not be started; nothing is left of the attempt.
    """

    def __init__(self, marker: str) -> None:
        self.marker = marker
        with ExitStack() as undo:
            self.pipes = Pipes()
            undo.callback(self.pipes.close_ours)
            try:
                self.control, theirs = socket.socketpair()
                undo.callback(self.control.close)
                with theirs:
                    self._waiting = WaitingGuard(theirs.fileno())
                    undo.callback(self._waiting.close)
                    self.process = subprocess.Popen(
                        self._waiting.command,
                        cwd="/",
                        env=_environment(marker),
                        stdin=self.pipes.theirs[0],
                        stdout=self.pipes.theirs[1],
                        stderr=self.pipes.theirs[2],
                        pass_fds=[theirs.fileno(), self._waiting.fd],
                        start_new_session=True,
                    )
            finally:
                self.pipes.close_theirs()
            undo.pop_all()

    def is_waiting(self) -> bool:
        """Return whether it is still there; it may have been killed."""
        return self.process.poll() is None

    def begin(
        self, argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str], linger_s: float, private_dir: str | None
    ) -> None:
        """Give it its command.

        Raises:
            ValueError: An argument or a variable that no program can be started with; the guard has ended.
        """
        try:
            self._waiting.write(argv, cwd=cwd, env=env, linger_s=linger_s, remove=private_dir)
        except ValueError:
            self.discard()
            raise
        try:
            self.control.send(b"\n")
        except OSError:
            return  # it is dead, as the reader of the socket is about to learn

    def discard(self) -> None:
        """End it; it has no command yet."""
        self._waiting.close()
        self.control.close()
        self.pipes.close_ours()
        self.process.kill()
        self.process.wait()


def _environment(marker: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**kept, MARKER: marker} if marker else kept


class SpareGuards:
    """Keeps one guard ready for the next run, once there was a first one.

    Args:
        is_keeping: Whether it does; it is then to be closed.
    """

    def __init__(self, *, is_keeping: bool = False) -> None:
        self._spare: PreparedGuard | None = None
        self._reserved: dict[str, PreparedGuard] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._was_used = False
        self._is_closed = not is_keeping

    @contextmanager
    def marker(self) -> Iterator[str]:
        """Yield the marker for a run: that of a guard which is ready, or starts while the run is prepared."""
        if self._spare is None and not self._is_closed:
            self._start()
        spare, self._spare = self._spare, None
        marker = spare.marker if spare is not None else os.urandom(16).hex()
        if spare is not None:
            self._reserved[marker] = spare
        try:
            yield marker
        finally:
            if unused := self._reserved.pop(marker, None):
                unused.discard()

    def take(self, marker: str) -> PreparedGuard:
        """Return a guard for a run with this marker: the one that was reserved for it, or one that starts now.

        Raises:
            OSError: None could be started.
        """
        guard = self._reserved.pop(marker, None)
        if guard is not None and not guard.is_waiting():
            guard.discard()
            guard = None
        if guard is None:
            guard = PreparedGuard(marker)
        self._later(_NEXT_S if self._was_used else _FIRST_S, self._refill)
        self._was_used = True
        return guard

    def close(self) -> None:
        """End what is kept."""
        self._is_closed = True
        self._drop()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, action)

    def _refill(self) -> None:
        if self._spare is None:
            self._start()
        self._later(_UNUSED_S, self._drop)

    def _start(self) -> None:
        # If there are too many processes or descriptors, the next run will say so, if it has to.
        with suppress(OSError):
            self._spare = PreparedGuard(os.urandom(16).hex())

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.discard()
