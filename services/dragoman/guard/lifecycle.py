"""When a guarded command is asked, told and made to end. Decisions only: no clock, no processes.

Phases go forward only::

    RUNNING -> STOPPING -> LINGERING -> KILLING
       |          |            ^           ^
       |          +------------+-----------+    the leader exits; the grace or the linger runs out
       +--------------------------------------  a kill is ordered; the owner of one run is gone

STOPPING: the leader was sent TERM and has its grace. LINGERING: the leader is gone and the rest was
sent TERM. KILLING: KILL for whatever is there. Beside the phases runs the orphan timer: it is set
while no router is connected, and when it runs out the command is asked to stop.

All times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """Where a guarded command is on its way out."""

    RUNNING = 0
    STOPPING = 1
    LINGERING = 2
    KILLING = 3


class Lifecycle:
    """The phase and the deadlines of one guarded command.

    Args:
        linger: Seconds between TERM and KILL for what the leader leaves behind.
        grace: Seconds between TERM to the leader and KILL; None means no end.
    """

    __slots__ = ("_deadline", "_grace", "_linger", "_orphan_deadline", "phase")

    def __init__(self, *, linger: float, grace: float | None) -> None:
        self._linger = linger
        self._grace = grace
        self._deadline: float | None = None
        self._orphan_deadline: float | None = None
        self.phase = Phase.RUNNING

    def stop(self, now: float) -> bool:
        """Ask the command to stop; True if the leader is to be sent TERM now."""
        if self.phase is not Phase.RUNNING:
            return False
        self.phase = Phase.STOPPING
        self._deadline = None if self._grace is None else now + self._grace
        return True

    def leader_exited(self, now: float) -> bool:
        """Note that the leader is gone; True if what it left is to be sent TERM now."""
        if self.phase >= Phase.LINGERING:
            return False
        self.phase = Phase.LINGERING
        self._deadline = now + self._linger
        return True

    def kill(self) -> None:
        """Order the end of everything, at once."""
        self.phase = Phase.KILLING
        self._deadline = None

    def abandon(self, now: float, orphan_after: float) -> None:
        """Start the orphan timer: nobody is connected any more (or yet)."""
        self._orphan_deadline = now + orphan_after

    def claim(self) -> None:
        """Stop the orphan timer: a router is connected."""
        self._orphan_deadline = None

    def tick(self, now: float) -> bool:
        """Act on deadlines that have passed; True if the leader is to be sent TERM now."""
        if self._deadline is not None and now >= self._deadline:
            self.kill()
            return False
        if self._orphan_deadline is not None and now >= self._orphan_deadline:
            self._orphan_deadline = None
            return self.stop(now)
        return False

    def timeout(self, now: float) -> float | None:
        """Return the seconds until `tick` has something to do; None when nothing is pending."""
        pending = [at for at in (self._deadline, self._orphan_deadline) if at is not None]
        return max(0.0, min(pending) - now) if pending else None
