"""Whether the run log was there all the time lately: who comes back after an outage takes nobody's runs at once.

While a database is out of reach, every router's lease runs out. The first one to reach it again would find the runs
of all others without a lease, though they are about to renew it; so it lets a lease's time pass first. So does one
that has just been started, which cannot know how long the database was there.
"""

from typing import Final

_UNSEEN: Final = 2 / 3
"""The part of a lease that may pass unseen. Leases are renewed each third; nobody's runs out in less than this."""


class Contact:
    """What is known of a log's reach. Times are seconds since the epoch, as leases are.

    Args:
        lease_s: how long a lease lasts.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: float | None = None
        self._fails = False
        self._since: float | None = None
        """Since when it is there again; ``None`` before it was ever reached."""

    def worked(self, now: float) -> None:
        """Take note that the log was reached."""
        if self._fails or not self._is_recent(now):
            self._since = now
        self._fails, self._seen = False, now

    def failed(self) -> None:
        """Take note that the log could not be reached."""
        self._fails = True

    def lasts(self, now: float) -> bool:
        """Tell whether every router that lives has had the time to renew its lease."""
        if self._fails or not self._is_recent(now):
            return False
        return self._since is not None and now - self._since >= self._lease_s

    def _is_recent(self, now: float) -> bool:
        # A machine that slept, or a clock that was set, is as good as an outage: leases are gone without a failure.
        return self._seen is not None and 0 <= now - self._seen <= self._lease_s * _UNSEEN
