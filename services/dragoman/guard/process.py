"""One entry of the process table.

A process is identified by pid *and* start mark: pids are reused, and a guard must never signal an
unrelated process.
"""

from __future__ import annotations

DEAD_STATES = ("Z", "X", "x")
"""States of processes that have ended but are not reaped yet."""


class Process:
    """One entry of the table.

    Attributes:
        pid: Process id.
        ppid: Process id of the parent.
        pgrp: Process group.
        session: Session; 0 where the system does not reveal it.
        state: One letter as in ``ps``: R, S, D, T (stopped), Z (zombie)...
        started: Opaque start mark; equal for equal processes of one boot.
    """

    __slots__ = ("pgrp", "pid", "ppid", "session", "started", "state")

    def __init__(self, pid: int, ppid: int, pgrp: int, session: int, state: str, started: int) -> None:
        self.pid = pid
        self.ppid = ppid
        self.pgrp = pgrp
        self.session = session
        self.state = state
        self.started = started

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, or could: a zombie does not."""
        return self.state not in DEAD_STATES
