"""The three clocks of a run: start-up, silence, the whole. Pure: times in, the next deadline out."""

from dataclasses import dataclass
from typing import Literal

from dragoman.v1 import event_pb2 as pb

Clock = Literal["start_up", "idle", "wall"]

FAILURE_BY_CLOCK: dict[Clock, pb.FailureKind.ValueType] = {
    "start_up": pb.FAILURE_KIND_START_TIMEOUT,
    "idle": pb.FAILURE_KIND_IDLE_TIMEOUT,
    "wall": pb.FAILURE_KIND_WALL_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class ClockLimits:
    """Seconds; None is no limit."""

    start_up_s: float | None = None
    idle_s: float | None = None
    wall_s: float | None = None


@dataclass(slots=True)
class Clocks:
    """When a run runs out of time.

    Times are seconds of any monotonic clock. Any byte of the agent counts as activity; heartbeats and what the
    adapter itself says do not. While a question waits for its answer, silence is not the agent's.
    """

    limits: ClockLimits
    accepted_at: float
    spawned_at: float | None = None
    last_activity_at: float | None = None
    is_waiting: bool = False

    def spawned(self, now: float) -> None:
        """The agent was started; a further attempt starts these clocks anew."""
        self.spawned_at = now
        self.last_activity_at = None

    def activity(self, now: float) -> None:
        """The agent did something."""
        self.last_activity_at = now

    def waiting(self, now: float, *, is_waiting: bool) -> None:
        """A question was asked, or the last one was answered."""
        if self.is_waiting and not is_waiting:
            self.last_activity_at = now
        self.is_waiting = is_waiting

    def next(self) -> tuple[float, Clock] | None:
        """Return the next deadline and whose it is; None if there is none."""
        deadlines: list[tuple[float, Clock]] = []
        if self.limits.wall_s is not None:
            deadlines.append((self.accepted_at + self.limits.wall_s, "wall"))
        if self.spawned_at is not None and not self.is_waiting:
            if self.last_activity_at is None and self.limits.start_up_s is not None:
                deadlines.append((self.spawned_at + self.limits.start_up_s, "start_up"))
            if self.limits.idle_s is not None:
                since = self.last_activity_at if self.last_activity_at is not None else self.spawned_at
                deadlines.append((since + self.limits.idle_s, "idle"))
        return min(deadlines, default=None)

    def expired(self, now: float) -> Clock | None:
        """Return the clock that has run out, if any."""
        deadline = self.next()
        return deadline[1] if deadline is not None and now >= deadline[0] else None
