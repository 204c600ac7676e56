"""Guards that are started before their command is known, so that no run waits for an interpreter.

Such a guard waits for a command; if its owner ends, it ends. Once nothing of a command is left, its guard may be kept
for the next one: the start of an interpreter is the most that a guard costs.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from dragoman.guard.launch import run_options, waiting_arguments, waiting_guard
from dragoman.guard.tree import MARKER
from dragoman.sdk._process.pipes import Pipes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_ANY_RUN = "guard"
"""The marker of a guard that serves runs one after the other: what is beneath it belongs to a run."""
_UNUSED_S = 60.0
"""Seconds after a run in which a guard is kept for the next one."""
_NEXT_S = 1.0
"""Seconds of a run after which another guard is started, as the next run may come while this one has its guard."""


class PreparedGuard:
    """A guard that waits for its command.

    Args:
        marker: The marker of the run that it is for; absent if it serves one command after the other.

    Attributes:
        control: Our end of the socket to the guard.
        process: The guard.

    Raises:
        OSError: It could not be started; nothing is left of the attempt.
    """

    def __init__(self, marker: str | None = None) -> None:
        self._stays = marker is None
        self.control, theirs = socket.socketpair()
        with ExitStack() as undo, theirs:
            undo.callback(self.control.close)
            self._their_fd = theirs.fileno()
            self.process = subprocess.Popen(
                waiting_guard(self._their_fd),
                cwd="/",
                env=_environment(_ANY_RUN if marker is None else marker),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[self._their_fd],
                start_new_session=True,
            )
            undo.pop_all()

    def is_waiting(self) -> bool:
        """Return whether it is still there; it may have been killed."""
        return self.process.poll() is None

    def begin(
        self, argv: tuple[str, ...], *, cwd: str, env: Mapping[str, str], linger_s: float, private_dir: str | None
    ) -> tuple[int, int, int]:
        """Give it a command; return our ends of its stdin, stdout and stderr.

        Raises:
            OSError: There are no descriptors left; the guard has ended.
            ValueError: An argument or a variable that no program can be started with; the guard has ended.
        """
        options = run_options(linger_s, private_dir, stays=self._stays)
        try:
            with waiting_arguments(argv, options, control_fd=self._their_fd, cwd=cwd, env=env) as arguments:
                pipes = Pipes()
                self._send(pipes, arguments)
        except (OSError, ValueError):
            self.discard()
            raise
        return pipes.ours

    def _send(self, pipes: Pipes, arguments: int) -> None:
        try:
            socket.send_fds(self.control, [b"\n"], [*pipes.theirs, arguments])
        except (BrokenPipeError, ConnectionResetError):
            return  # it is dead, as the reader of the socket is about to learn
        except OSError:
            pipes.close_ours()
            raise
        finally:
            pipes.close_theirs()

    def discard(self) -> None:
        """End it; it has no command."""
        self.control.close()
        self.process.kill()
        self.process.wait()


def _environment(marker: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**kept, MARKER: marker} if marker else kept


class SpareGuards:
    """Keeps one guard ready for the next run, once there was a first one. It owns the guards that have no command.

    Args:
        is_keeping: Whether it does; it is then to be closed.
    """

    def __init__(self, *, is_keeping: bool = False) -> None:
        self._spare: PreparedGuard | None = None
        self._reserved: dict[str, PreparedGuard] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = not is_keeping
        self._is_expected = True
        """Whether the next run will probably start a program: the last one did, or there was none yet."""

    def prepare(self) -> None:
        """Have a guard start for a run that begins, unless one is ready.

        Where the last run started no program, as those of a model API do, none starts before it is asked for.
        """
        if self._spare is None and self._is_expected and not self._is_closed:
            self._refill()

    @contextmanager
    def marker(self) -> Iterator[str]:
        """Yield the marker for a run, which has a guard that is ready, or starts while the run is prepared."""
        self.prepare()
        marker = os.urandom(16).hex()
        if self._spare is not None:
            self._reserved[marker], self._spare = self._spare, None
        try:
            yield marker
        finally:
            if unused := self._reserved.pop(marker, None):
                self._is_expected = False
                self.give_back(unused)

    def take(self, marker: str) -> PreparedGuard:
        """Return a guard for a run with this marker: the one reserved for it, one that is ready, or a new one.

        Raises:
            OSError: None could be started.
        """
        self._is_expected = True
        guard = self._reserved.pop(marker, None)
        if guard is None:
            guard, self._spare = self._spare, None
        if guard is not None and not guard.is_waiting():
            guard.discard()
            guard = None
        if guard is None:
            guard = PreparedGuard(marker if self._is_closed else None)
        if not self._is_closed:
            self._later(_NEXT_S, self._refill)
        return guard

    def give_back(self, guard: PreparedGuard) -> None:
        """Keep a guard that waits again for the next run, unless there is one; then end it."""
        if self._is_closed or self._spare is not None:
            guard.discard()
            return
        self._spare = guard
        self._later(_UNUSED_S, self._drop)

    def close(self) -> None:
        """End what is kept."""
        self._is_closed = True
        self._drop()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, action)

    def _refill(self) -> None:
        if self._spare is None:
            self._start()
        self._later(_UNUSED_S, self._drop)

    def _start(self) -> None:
        # If there are too many processes or descriptors, the next run will say so, if it has to.
        with suppress(OSError):
            self._spare = PreparedGuard()

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.discard()
