"""Delays between retries: they grow from one failure to the next, up to a limit."""

from typing import Final

_LARGEST_EXPONENT: Final = 64
"""The exponent is bounded before the power is taken: after a week of failures it would not be a float."""


def backoff_s(failures: int, first_s: float, longest_s: float, *, factor: float = 2.0, chance: float = 1.0) -> float:
    """Return the seconds to wait after so many failures in a row; 0 after none.

    Args:
        failures: how many there were.
        first_s: the delay after the first.
        longest_s: the limit of all delays.
        factor: how much longer each delay is than the one before.
        chance: a random number from 0 up to 1; it spreads the delay over its upper half, so that what failed together
            is not retried together.
    """
    if failures <= 0:
        return 0.0
    delay_s = min(longest_s, first_s * factor ** min(failures - 1, _LARGEST_EXPONENT))
    return delay_s * (0.5 + chance / 2)


class Backoff:
    """Counts failures in a row.

    Args:
        first_s: the delay after the first failure.
        longest_s: the limit of all delays.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0

    def next_s(self) -> float:
        """Count a failure, and return the seconds to wait before the next try."""
        self.failures += 1
        return backoff_s(self.failures, self._first_s, self._longest_s)

    def reset(self) -> None:
        """Count anew, after a success."""
        self.failures = 0
