"""The machine's clocks."""

import random
import time


class SystemClock:
    """Time and chance as they are."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def chance(self) -> float:
        """Return a random number from 0 up to, and without, 1."""
        return random.random()  # noqa: S311 - spreads retries; nothing is kept secret by it
