"""The guard's process tree: reaping, signalling and killing it, and proving that it is gone.

On Linux the guard is a *subreaper*: every process that is orphaned beneath it, however often it
forked and whichever session it moved to, becomes the guard's own child. So the process table leads
to all of them by parent pids, and a waitpid that knows no child proves that none is left.

Other systems have no subreaper. There the guard remembers every descendant that it saw in snapshots
while the command ran, adds the processes of the same sessions and those with the run's marker
variable, and regards the tree as gone when none of these is left. A process that was orphaned
between two snapshots, moved to a session of its own and cleared its environment escapes.
"""

from __future__ import annotations

import os
import sys
import time

from dragoman.guard import processes
from dragoman.guard.plain_signal import signal

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

    from dragoman.guard.process import Process

MARKER = "DRAGOMAN_RUN_MARKER"
"""Environment variable that marks all processes of a run; set by the owner."""

KILL_BOUND_S = 5.0
"""Seconds after which the guard gives up killing: another user's process, or one stuck in the kernel."""

KILL_PAUSE_S = 0.01
"""Seconds between two rounds of killing, unless a child's end comes first."""

_REAPED_AT_ONCE = 1000  # a fork bomb must not starve the rest of the loop

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Adopt all orphans beneath this process from now on; False where that does not exist."""
    return sys.platform == "linux" and _prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def _prctl(option: int, value: int) -> int:
    """Call the C library's function, by what `ctypes` itself is made of: its import is a third of a guard's start."""
    try:
        import _ctypes  # noqa: PLC0415 - of use on Linux only

        address = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        result: int = _ctypes.call_cdeclfunction(address, (option, value, 0, 0, 0))
    except (ImportError, AttributeError):  # an interpreter whose ctypes is made otherwise
        import ctypes  # noqa: PLC0415 - as above

        result = ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    return result


class Tree:
    """The processes beneath this one.

    Args:
        is_subreaper: Whether orphans become children of the guard, so that no child means no process.
        marker: ``NAME=value`` that marks the processes of this run; empty if there is none.
    """

    def __init__(self, *, is_subreaper: bool, marker: bytes) -> None:
        self.is_subreaper = is_subreaper
        self.leader: Process | None = None
        self.leader_status: int | None = None
        """Wait status of the leader, once it is reaped."""
        self.terminated: dict[int, None] = {}
        """Pids that were sent TERM or KILL in order to end the tree, in that order."""
        self._marker = marker
        self._childless = False
        self._seen: dict[int, Process] = {}

    def reap(self) -> bool:
        """Reap the children that have ended, including adopted ones; False if there may be more."""
        self._childless = False
        for _ in range(_REAPED_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return True
            if pid == 0:
                return True
            if self.leader is not None and pid == self.leader.pid:
                self.leader_status = status
        return False

    def is_gone(self) -> bool:
        """Whether no process is left: proven on Linux, elsewhere as far as can be observed."""
        return self._childless and (self.is_subreaper or not self.members())

    def members(self) -> list[Process]:
        """Return the living processes of the tree, newest first."""
        table = processes.snapshot()
        if self.is_subreaper:
            return processes.descendants(table, [os.getpid()])
        return self._remembered(table)

    def watch(self) -> None:
        """Take a snapshot for later, without the search for markers, which is expensive and can wait."""
        table = processes.snapshot()
        known = self._still_there(table)
        known |= {process.pid for process in processes.descendants(table, [os.getpid(), *known])}
        self._seen = {pid: table[pid] for pid in known}

    def _still_there(self, table: dict[int, Process]) -> set[int]:
        """Return the processes of earlier snapshots that are still in this one."""
        seen = self._seen.items()
        return {pid for pid, process in seen if pid in table and table[pid].started == process.started}

    def _remembered(self, table: dict[int, Process]) -> list[Process]:
        """Return current and former descendants, processes of their sessions, and those with the marker."""
        known = self._still_there(table)
        known |= {process.pid for process in processes.descendants(table, [os.getpid()])}
        sessions = {table[pid].session for pid in known} | {self._session()}
        sessions -= {0, os.getsid(0)}
        known |= {pid for pid, row in table.items() if row.session in sessions}
        if self._marker:
            known |= set(processes.carriers(self._marker)) & table.keys()
        known -= {os.getpid()}
        beneath = {process.pid for process in processes.descendants(table, known)}
        return [row for pid, row in table.items() if pid in known | beneath and row.is_alive]

    def _session(self) -> int:
        """Return the leader's session, which outlives the leader; -1 matches none."""
        return self.leader.pid if self.leader is not None else -1

    def signal(self, signum: int, to: str) -> None:
        """Signal the leader, its process group, or all members; stopped processes are continued."""
        for process in self._targets(to):
            _send_awake(process, signum)

    def _targets(self, to: str) -> list[Process]:
        if self.leader is None:
            return []
        if to == "leader":
            current = processes.read(self.leader.pid) if self.leader_status is None else None
            return [] if current is None else [current]
        members = self.members()
        return [one for one in members if to == "tree" or one.pgrp == self.leader.pid]

    def terminate(self) -> None:
        """Send TERM to all members."""
        for process in self.members():
            if _send_awake(process, signal.SIGTERM):
                self.terminated[process.pid] = None

    def kill(self, pause: Callable[[float], None]) -> list[Process]:
        """Kill until no process is left; return those that could not be killed, empty on success.

        Args:
            pause: Waits for so many seconds, or until a child ends.
        """
        give_up_at = time.monotonic() + KILL_BOUND_S
        while True:
            self.reap()
            if self.is_gone():
                return []
            if time.monotonic() >= give_up_at:
                return self.members()
            self._kill_round()
            self.reap()
            if not self.is_gone():
                pause(KILL_PAUSE_S)

    def _kill_round(self) -> None:
        """Kill each member and each group of members.

        All these groups belong to the tree: a group lies within one session, and every session here was created
        beneath the guard.
        """
        members = self.members()
        killed = _kill_all(members, {process.pgrp for process in members} - {os.getpgrp()})
        self.terminated.update(dict.fromkeys(killed))

    def sweep_orphans(self, pause: Callable[[float], None]) -> Sweep:
        """Kill orphans and their descendants; leave the leader's own tree alone.

        If the leader starts other guards, orphans are what a killed guard leaves. The proof: only this process reaps
        its children, so each stays in the process table until then, and the parent that forked it is, or was, a child
        too. So a snapshot without any child but the leader cannot have missed an orphan.

        Args:
            pause: As for `kill`.
        """
        killed: dict[int, None] = {}
        give_up_at = time.monotonic() + KILL_BOUND_S
        while self.is_subreaper and self.leader is not None:
            self.reap()
            table = processes.snapshot()
            own = {process.pid for process in table.values() if process.ppid == os.getpid()}
            if self.leader_status is None:
                own.discard(self.leader.pid)
            beneath = {process.pid for process in processes.descendants(table, own)}
            orphans = [row for pid, row in table.items() if pid in own | beneath and row.is_alive]
            if not own or time.monotonic() >= give_up_at:
                return Sweep(confirmed=not own, killed=list(killed), survivors=[row.pid for row in orphans])
            others = {row.pgrp for pid, row in table.items() if pid not in own | beneath}
            killed.update(dict.fromkeys(_kill_all(orphans, {row.pgrp for row in orphans} - others)))
            if orphans:
                pause(KILL_PAUSE_S)
        return Sweep(confirmed=False, killed=[], survivors=[])


class Sweep:
    """The outcome of killing the orphans beneath a guard.

    Attributes:
        confirmed: Whether it is proven that no orphan is left.
        killed: The pids that were killed.
        survivors: The pids that are known to be alive.
    """

    __slots__ = ("confirmed", "killed", "survivors")

    def __init__(self, *, confirmed: bool, killed: list[int], survivors: list[int]) -> None:
        self.confirmed = confirmed
        self.killed = killed
        self.survivors = survivors


def _kill_all(members: list[Process], groups: set[int]) -> list[int]:
    """Kill processes and process groups; return the pids that were sent the signal.

    The oldest are killed first, and so parents before their children: an agent that sees its tool end continues, and
    might report success before it is killed itself.

    The kernel kills a group atomically with regard to forks of its members; a process that forks and exits without
    end cannot be killed by its pid alone.
    """
    in_order = sorted(members, key=lambda process: (process.started, process.pid))
    killed = [process.pid for process in in_order if processes.send(process, signal.SIGKILL)]
    for group in groups - {0}:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue  # it is empty by now, or another user's
    return killed


def _send_awake(process: Process, signum: int) -> bool:
    """Send a signal, and continue a stopped process for it; False if it could not be sent."""
    sent = processes.send(process, signum)
    if process.state == "T" and signum not in (signal.SIGSTOP, signal.SIGTSTP):
        processes.send(process, signal.SIGCONT)
    return sent
