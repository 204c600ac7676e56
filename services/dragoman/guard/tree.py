"""Everything beneath the guard: reaping it, signalling it, ending it, and knowing that it is gone.

On Linux the guard is a *subreaper*: whatever is orphaned beneath it, however often it forked and
whatever session it moved to, becomes the guard's own child. So the table of processes finds all of
it by parent pids, and "waitpid knows no child" is proof that nothing is left.

Elsewhere there is no such adoption. The fall-back remembers every descendant it has seen in
snapshots taken while the command runs, adds what lives in the same sessions and what carries the
run's marker variable, and calls the tree gone when none of these is left. A process that was
orphaned between two snapshots, moved to a session of its own and wiped its environment escapes.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from dragoman.guard import processes

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

    from dragoman.guard.process import Process

MARKER = "DRAGOMAN_RUN_MARKER"
"""Environment variable whose value names one run in all its processes; set by the owner."""

KILL_BOUND_S = 5.0
"""Seconds after which killing is given up: another user's process, or one stuck in the kernel."""

KILL_PAUSE_S = 0.01
"""Seconds between two rounds of killing, unless a child's end comes first."""

_REAPED_AT_ONCE = 1000  # a fork bomb must not keep the guard from everything else

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Adopt all orphans beneath this process from now on; False where that does not exist."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - of use on Linux only

        result: int = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return result == 0
    else:  # noqa: RET505 - a type checker sees one of the two branches
        return False


class Tree:
    """The processes beneath this one.

    Args:
        is_subreaper: Whether orphans come to us, so that having no child means being alone.
        marker: ``NAME=value`` that marks the processes of this run; empty when there is none.
    """

    def __init__(self, *, is_subreaper: bool, marker: bytes) -> None:
        self.is_subreaper = is_subreaper
        self.leader: Process | None = None
        self.leader_status: int | None = None
        """Wait status of the leader once it was reaped."""
        self.ended: dict[int, None] = {}
        """Pids that were sent TERM or KILL in order to end the tree, in that order."""
        self._marker = marker
        self._childless = False
        self._seen: dict[int, Process] = {}

    def reap(self) -> bool:
        """Collect the children that have ended, adopted ones included; False if it has to go on."""
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
        """Whether nothing is left: proof on Linux, else as far as anyone can see."""
        return self._childless and (self.is_subreaper or not self.members())

    def members(self) -> list[Process]:
        """Return the living processes beneath us, newest first."""
        table = processes.snapshot()
        if self.is_subreaper:
            return processes.descendants(table, [os.getpid()])
        return self._followed(table)

    def watch(self) -> None:
        """Take a snapshot for later, without the search for markers: that is dear, and can wait."""
        table = processes.snapshot()
        known = self._still_there(table)
        known |= {process.pid for process in processes.descendants(table, [os.getpid(), *known])}
        self._seen = {pid: table[pid] for pid in known}

    def _still_there(self, table: dict[int, Process]) -> set[int]:
        """Return what earlier snapshots saw beneath us and this one holds, too."""
        seen = self._seen.items()
        return {pid for pid, process in seen if pid in table and table[pid].started == process.started}

    def _followed(self, table: dict[int, Process]) -> list[Process]:
        """Return what is beneath us, was beneath us, shares its sessions or bears the marker."""
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
        """Signal the leader, its process group, or all members; the stopped ones are woken."""
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
        """Send TERM to everything that is there."""
        for process in self.members():
            if _send_awake(process, signal.SIGTERM):
                self.ended[process.pid] = None

    def kill(self, pause: Callable[[float], None]) -> list[Process]:
        """Kill until nothing is left; return what could not be killed, empty on success.

        Args:
            pause: Waits for that many seconds or until a child ends, whichever is first.
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

        The oldest go first, and so parents before their children: an agent that sees its tool end goes on, and may be
        done, with a success to tell, before its own turn comes.

        A group is killed as one by the kernel, between two forks of its members: a process that
        forks and exits in a circle is never met by its pid alone. All groups here are ours: a
        group lies within one session, and every session here was begun beneath the guard.
        """
        members = sorted(self.members(), key=lambda process: (process.started, process.pid))
        foreign = (0, os.getpgrp())
        for process in members:
            if processes.send(process, signal.SIGKILL):
                self.ended[process.pid] = None
        for group in {process.pgrp for process in members}.difference(foreign):
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:
                continue  # it is empty by now, or another user's


def _send_awake(process: Process, signum: int) -> bool:
    """Send a signal, and wake a stopped process for it; False if it could not be sent."""
    sent = processes.send(process, signum)
    if process.state == "T" and signum not in (signal.SIGSTOP, signal.SIGTSTP):
        processes.send(process, signal.SIGCONT)
    return sent
