"""When an adapter that failed may be started again."""

from dataclasses import dataclass

FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 60.0
STEADY_AFTER_S = 30.0
"""An adapter that was ready for this long and then dies starts a new count."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row, and when the next start may be. Times are seconds on one monotonic clock."""

    failures: int = 0
    not_before: float = 0.0

    def failed(self, now: float, chance: float, *, ready_since: float | None = None) -> "Backoff":
        """Return the state after a failure.

        Args:
            now: the time.
            chance: a random number from 0 up to 1; spreads the delay over its upper half, so that what failed
                together is not tried together.
            ready_since: since when the adapter had been ready; ``None`` if it never was.
        """
        was_steady = ready_since is not None and now - ready_since >= STEADY_AFTER_S
        failures = 1 if was_steady else self.failures + 1
        # The exponent is bounded before the power is taken: after a week of failures it would not be a float.
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 16))
        return Backoff(failures, now + delay * (0.5 + chance / 2))

    def wait_s(self, now: float) -> float:
        """Return how many seconds are left; 0 if it may start."""
        return max(0.0, self.not_before - now)
