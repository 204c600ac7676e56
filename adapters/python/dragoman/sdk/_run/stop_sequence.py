"""How an agent is asked to stop: step by step within its grace, then the end. Pure: times in, steps out."""

from collections.abc import Sequence

from dragoman.sdk._request.job import CancelStep


class StopSequence:
    """The way to the end of an attempt. Times are seconds of any monotonic clock.

    Args:
        steps: what is tried, in order; each has its share of the grace before the next.
    """

    def __init__(self, steps: Sequence[CancelStep]) -> None:
        self._steps = steps
        self._done = 0
        self._began: float | None = None
        self._deadline = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the agent is being stopped."""
        return self._began is not None

    def begin(self, now: float, deadline: float) -> None:
        """Stop by ``deadline``. Called again, an earlier deadline counts; a later one does not."""
        if self._began is None:
            self._began, self._deadline = now, deadline
        self._deadline = min(self._deadline, deadline)

    def due(self, now: float) -> list[CancelStep]:
        """Return the steps to take now; none once the grace is over."""
        due: list[CancelStep] = []
        while self.has_begun and self._done < len(self._steps) and self.next_time() <= now < self._deadline:
            due.append(self._steps[self._done])
            self._done += 1
        return due

    def is_over(self, now: float) -> bool:
        """Return whether the grace is over, and only killing is left."""
        return self.has_begun and now >= self._deadline

    def next_time(self) -> float:
        """Return when there is something to do next."""
        assert self._began is not None
        if self._done >= len(self._steps):
            return self._deadline
        share = sum(step.share for step in self._steps[: self._done])
        return min(self._deadline, self._began + share * (self._deadline - self._began))
