"""Whether the run log was reachable for long enough that expired leases mean dead routers.

While a database is unreachable, the leases of all routers expire. The first router to reach it again would see the
runs of all others without a lease, although they are about to renew it. So it waits for the length of a lease before
it claims runs; a router that has just started does the same, as it cannot know how long the database was reachable.
"""

from typing import Final

from dragoman.router.model.ports import Clock

_MAX_SILENCE: Final = 2 / 3
"""The part of a lease without contact that does not count as an outage. Leases are renewed every third."""


class StoreHealth:
    """The reachability of the run log.

    Args:
        clock: the time, as for leases.
        lease_s: the length of a lease in seconds.
    """

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._last_success: float | None = None
        self._is_failing = False
        self._up_since: float | None = None
        """Since when the log has been reachable; ``None`` if it never was."""

    def record_success(self) -> None:
        """Record that the log was reached."""
        now = self._clock.time()
        if self._is_failing or not self._is_recent(now):
            self._up_since = now
        self._is_failing, self._last_success = False, now

    def record_failure(self) -> None:
        """Record that the log could not be reached."""
        self._is_failing = True

    def is_stable(self) -> bool:
        """Return whether every living router has had the time to renew its lease: the log was there that long."""
        now = self._clock.time()
        if self._is_failing or not self._is_recent(now):
            return False
        return self._up_since is not None and now - self._up_since >= self._lease_s

    def _is_recent(self, now: float) -> bool:
        # A suspended machine or a changed clock is like an outage: leases expired without a failure.
        return self._last_success is not None and 0 <= now - self._last_success <= self._lease_s * _MAX_SILENCE
