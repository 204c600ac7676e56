"""A program that outlives runs and serves several of them, and the end of what one of these has left in it.

It has a guard of its own, so what its runs leave behind is found beneath that guard, whatever it did to its session
and its environment. The marker in its environment says whose a process is (``dragoman.guard.tree.MARKER``): the
program and its helpers carry one of their own, the tools of a run that of the run, if the program gives it to them.
What carries none, or was orphaned, is attributed to a run only if it began after the run and no other run is there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Self

from dragoman.guard import processes
from dragoman.guard.tree import MARKER
from dragoman.sdk._process.child import Child, ChildSpec, Stream
from dragoman.sdk._process.processes import kill_remaining, kill_until_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dragoman.guard.process import Process

_TAIL_BYTES = 256 * 1024
_MOMENT_S = 0.05

Earlier = frozenset[tuple[int, int]]
"""Pids and start marks."""


class _Watch:
    """What the guard of a program reports.

    Attributes:
        is_alive: whether it runs.
        tail: the last of what it said, on both streams, or why it could not be started.
    """

    def __init__(self) -> None:
        self.is_alive = False
        self.tail = bytearray()

    def spawned(self, pid: int, pgid: int) -> None:
        """Note that it runs."""
        del pid, pgid
        self.is_alive = True

    def spawn_failed(self, errno_name: str, message: str) -> None:
        """Keep why not."""
        self.tail += f"{errno_name}: {message}".encode("utf-8", "replace")

    def data(self, stream: Stream, data: bytes) -> None:
        """Keep the last of it."""
        del stream
        self.tail += data
        del self.tail[:-_TAIL_BYTES]

    def eof(self, stream: Stream) -> None:
        """Note nothing."""

    def exited(self, code: int | None, signal: int | None) -> None:
        """Note that it has ended."""
        del code, signal
        self.is_alive = False


class SharedProgram:
    """A program that runs under a guard of its own. Made by ``start``.

    Everything beneath it is ended when it ends, when ``stop`` is called, and when this process dies.
    """

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._watch = _Watch()
        self._child: Child | None = None

    @classmethod
    async def start(cls, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], private_dir: str) -> Self:
        """Start a program without input; it need not have come far. What could not be started is not ``is_alive``.

        Args:
            argv: The command.
            cwd: Its working directory.
            env: Its whole environment but for the marker.
            private_dir: A directory that is removed when all is gone.
        """
        marker = f"shared-{os.urandom(16).hex()}"
        program = cls(marker)
        spec = ChildSpec(tuple(argv), cwd, {**env, MARKER: marker}, private_dir=private_dir)
        program._child = await Child.start(spec, program._watch)
        program._child.close_stdin()
        return program

    @property
    def is_alive(self) -> bool:
        """Whether it runs. The system is asked, as its guard's report of its end comes a little later."""
        if not self._watch.is_alive or self.pid is None:
            return False
        now = processes.read(self.pid)
        return now is not None and now.is_alive

    @property
    def pid(self) -> int | None:
        """Its pid; None if it never ran."""
        return None if self._child is None else self._child.pid

    def words(self) -> str:
        """Return the last of what it said, on both streams, or why it could not be started."""
        return self._watch.tail.decode("utf-8", "replace").strip()

    async def stop(self, grace_s: float) -> bool:
        """Ask it to end, kill it and all beneath it after that time; return whether all is confirmed dead."""
        if self._child is None:
            return True
        self._child.signal(signal.SIGTERM)
        ended = asyncio.create_task(self._child.wait())
        try:
            await asyncio.wait([ended], timeout=grace_s)
        finally:
            self._child.kill()  # harmless when it has ended
        return (await ended).tree_confirmed_dead

    async def begin_run(self) -> Earlier:
        """Return what is there before a run begins, and so is not the run's."""
        return await asyncio.to_thread(lambda: frozenset(map(_identity, self._beneath())))

    async def end_run(self, marker: str, earlier: Earlier, *, is_alone: bool) -> bool:
        """End what a run has left in it, whose work it has ended; return whether all of that is confirmed dead.

        Args:
            marker: The run's.
            earlier: What ``begin_run`` returned.
            is_alone: Whether no other run is there, nor will be until this returns.
        """
        if self._child is None:
            return True
        if not self._watch.is_alive:  # it has taken everything with it
            return (await self._child.wait()).tree_confirmed_dead
        _, survivors = await asyncio.to_thread(kill_remaining, marker, None)
        if not is_alone:
            return not survivors and not await asyncio.to_thread(self._strays, earlier)
        _, hidden = await asyncio.to_thread(kill_until_none, lambda: self._hidden(earlier))
        swept = await self._child.sweep()
        return swept and not survivors and not hidden

    def _beneath(self) -> list[Process]:
        """Return the program, and all that is beneath it or was orphaned beneath it."""
        guard = None if self._child is None else self._child.guard_pid
        return [] if guard is None else processes.descendants(processes.snapshot(), [guard])

    def _hidden(self, earlier: Earlier) -> list[Process]:
        """Return what is beneath the program itself and carries no marker, with all beneath it."""
        table = {row.pid: row for row in self._beneath()}
        later = [row for row in processes.descendants(table, [self.pid or -1]) if _identity(row) not in earlier]
        roots = _without_marker(later)
        return roots + processes.descendants(table, [row.pid for row in roots])

    def _strays(self, earlier: Earlier) -> list[Process]:
        """Return processes whose owner is unknown: without a marker, and without a parent of another run."""
        table = {row.pid: row for row in self._beneath()}
        owned = [pid for pid in table if processes.variable(pid, MARKER) not in {None, "", self._marker}]
        of_others = {row.pid for row in processes.descendants(table, owned)}
        later = (row for pid, row in table.items() if pid not in of_others and _identity(row) not in earlier)
        return _without_marker(later)


def _without_marker(rows: Iterable[Process]) -> list[Process]:
    """Return those that carry no marker, and carry none a moment later: who executes another program has nothing."""
    found = [row for row in rows if not processes.variable(row.pid, MARKER)]
    if not found:
        return []
    time.sleep(_MOMENT_S)
    again = [(row, processes.read(row.pid)) for row in found]
    return [
        row
        for row, now in again
        if now is not None and now.started == row.started and now.is_alive and not processes.variable(row.pid, MARKER)
    ]


def _identity(row: Process) -> tuple[int, int]:
    return row.pid, row.started
