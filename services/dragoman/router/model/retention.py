"""Which of the runs that are over stay in memory."""

from collections.abc import Iterator


class RetainedRuns:
    """The runs that are over and in memory, oldest first, bounded in time and number, and so in size.

    Args:
        seconds: how long one stays.
        most_runs: how many there are, at most.
    """

    def __init__(self, seconds: float, most_runs: int) -> None:
        self._seconds = seconds
        self._most_runs = most_runs
        self._ended: dict[str, float] = {}
        """By run id: when it ended."""

    def add(self, run_id: str, now: float) -> None:
        """Add a run that has ended just now."""
        self._ended[run_id] = now

    def discard(self, run_id: str) -> None:
        """Remove a run, if it is here."""
        self._ended.pop(run_id, None)

    def expired(self, now: float) -> Iterator[str]:
        """Remove the runs that do not stay any longer, and yield their ids."""
        while self._ended:
            run_id, ended = next(iter(self._ended.items()))
            if len(self._ended) <= self._most_runs and now - ended < self._seconds:
                return
            del self._ended[run_id]
            yield run_id

    def next_end_s(self, now: float) -> float | None:
        """Return after how many seconds the next one expires; ``None`` if there is none."""
        ended = next(iter(self._ended.values()), None)
        return None if ended is None else max(0.0, ended + self._seconds - now)
