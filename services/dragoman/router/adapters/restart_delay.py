"""The backoff between starts of a failing adapter."""

from dragoman.protocol.backoff import backoff_s
from msgspec import Struct

FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 60.0
STEADY_AFTER_S = 30.0
"""An exit after the adapter was ready for this long resets the count of failures."""


class RestartDelay(Struct, frozen=True):
    """The number of consecutive failures and the earliest next start, in seconds of a monotonic clock."""

    failures: int = 0
    not_before: float = 0.0

    def failed(self, now: float, chance: float, *, ready_since: float | None = None) -> "RestartDelay":
        """Return the state after a failure.

        Args:
            now: the time.
            chance: a random number in [0, 1), for jitter: it spreads the delay over its upper half, so that adapters
                that failed together do not restart together.
            ready_since: since when the adapter had been ready; ``None`` if it never was.
        """
        was_steady = ready_since is not None and now - ready_since >= STEADY_AFTER_S
        failures = 1 if was_steady else self.failures + 1
        return RestartDelay(failures, now + backoff_s(failures, FIRST_DELAY_S, LONGEST_DELAY_S, chance=chance))

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next start; 0 if it is due."""
        return max(0.0, self.not_before - now)
