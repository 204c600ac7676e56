"""When a guarded command is terminated and killed. Decisions only: no clock, no processes.

Phases go forward only::

    RUNNING -> STOPPING -> LINGERING -> KILLING
       |          |            ^           ^
       |          +------------+-----------+    the leader exits; the grace or the linger expires
       +--------------------------------------  a kill is requested; the owner of one run is gone

STOPPING: the leader got TERM and has its grace. LINGERING: the leader has exited and the remaining
processes got TERM. KILLING: the remaining processes get KILL. Independent of the phases, the orphan
timer runs while no router is connected; when it fires, the phase becomes STOPPING.

All times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations


class Phase:
    """How far the shutdown of a guarded command is; plain numbers, as an enumeration is slow to import."""

    RUNNING = 0
    STOPPING = 1
    LINGERING = 2
    KILLING = 3


class Lifecycle:
    """The phase and the deadlines of one guarded command.

    Args:
        linger: Seconds between TERM and KILL for processes that outlive the leader.
        grace: Seconds between TERM to the leader and KILL; None means no limit.
    """

    __slots__ = ("_deadline", "_grace", "_linger", "_orphan_deadline", "phase")

    def __init__(self, *, linger: float, grace: float | None) -> None:
        self._linger = linger
        self._grace = grace
        self._deadline: float | None = None
        self._orphan_deadline: float | None = None
        self.phase: int = Phase.RUNNING

    def stop(self, now: float) -> bool:
        """Begin to stop the command; True if the caller has to send TERM to the leader now."""
        if self.phase != Phase.RUNNING:
            return False
        self.phase = Phase.STOPPING
        self._deadline = None if self._grace is None else now + self._grace
        return True

    def leader_exited(self, now: float) -> bool:
        """Record that the leader has exited; True if the caller has to send TERM to the rest now."""
        if self.phase >= Phase.LINGERING:
            return False
        self.phase = Phase.LINGERING
        self._deadline = now + self._linger
        return True

    def kill(self) -> None:
        """Begin to kill everything at once."""
        self.phase = Phase.KILLING
        self._deadline = None

    def start_orphan_timer(self, now: float, orphan_after: float) -> None:
        """Start the orphan timer, as no router is connected."""
        self._orphan_deadline = now + orphan_after

    def stop_orphan_timer(self) -> None:
        """Stop the orphan timer, as a router is connected."""
        self._orphan_deadline = None

    def tick(self, now: float) -> bool:
        """Act on expired deadlines; True if the caller has to send TERM to the leader now."""
        if self._deadline is not None and now >= self._deadline:
            self.kill()
            return False
        if self._orphan_deadline is not None and now >= self._orphan_deadline:
            self._orphan_deadline = None
            return self.stop(now)
        return False

    def timeout(self, now: float) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        pending = [at for at in (self._deadline, self._orphan_deadline) if at is not None]
        return max(0.0, min(pending) - now) if pending else None
