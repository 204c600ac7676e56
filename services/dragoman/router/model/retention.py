"""Which of the runs that are over stay in memory."""

from collections.abc import Iterator
from typing import Final

from dragoman.protocol.limits import MIB

MOST_BYTES: Final = 256 * MIB
"""The maximum size of the events of all: a run keeps up to 16 MiB that the run log does not have yet."""


class RetainedRuns:
    """The runs that are over and in memory, oldest first, bounded in time, number and size.

    Args:
        seconds: how long one stays.
        most_runs: how many there are, at most.
    """

    def __init__(self, seconds: float, most_runs: int) -> None:
        self._seconds = seconds
        self._most_runs = most_runs
        self._ended: dict[str, tuple[float, int]] = {}
        """By run id: when it ended, and the size of its events then."""
        self._bytes = 0

    def add(self, run_id: str, size: int, now: float) -> None:
        """Add a run that has ended just now, with events of ``size`` bytes in memory."""
        self.discard(run_id)
        self._ended[run_id] = now, size
        self._bytes += size

    def discard(self, run_id: str) -> None:
        """Remove a run, if it is here."""
        self._bytes -= self._ended.pop(run_id, (0.0, 0))[1]

    def expired(self, now: float) -> Iterator[str]:
        """Remove the runs that do not stay any longer, and yield their ids."""
        while self._ended:
            run_id, (ended, _size) = next(iter(self._ended.items()))
            is_bounded = len(self._ended) <= self._most_runs and self._bytes <= MOST_BYTES
            if is_bounded and now - ended < self._seconds:
                return
            self.discard(run_id)
            yield run_id

    def next_end_s(self, now: float) -> float | None:
        """Return after how many seconds the next one expires; ``None`` if there is none."""
        ended = next(iter(self._ended.values()), None)
        return None if ended is None else max(0.0, ended[0] + self._seconds - now)
