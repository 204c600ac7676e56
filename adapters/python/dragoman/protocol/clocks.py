"""The clocks of a run: start-up, silence, one tool call, the whole. Pure: times in, the next deadline out."""

from typing import Final, Literal

from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

Clock = Literal["start_up", "idle", "tool_call", "wall", "unread"]

FAILURE_BY_CLOCK: dict[Clock, pb.FailureKind.ValueType] = {
    "start_up": pb.FAILURE_KIND_START_TIMEOUT,
    "idle": pb.FAILURE_KIND_IDLE_TIMEOUT,
    "tool_call": pb.FAILURE_KIND_TOOL_TIMEOUT,
    "wall": pb.FAILURE_KIND_WALL_TIMEOUT,
    "unread": pb.FAILURE_KIND_UNPARSEABLE_OUTPUT,
}

_MOST_CALLS: Final = 1024
"""Open tool calls that are tracked; of more, the oldest are forgotten."""


class ClockLimits(Struct, frozen=True):
    """Seconds; None is no limit."""

    start_up_s: float | None = None
    idle_s: float | None = None
    wall_s: float | None = None
    tool_call_s: float | None = None
    unread_s: float | None = None
    """Silence after a line that the parser failed on: the agent may have asked something in it."""


class Clocks(Struct):
    """When a run runs out of time.

    Times are seconds of any monotonic clock. Any byte of the agent counts as activity; heartbeats and what the
    adapter itself says do not. Silence is not the agent's while a question waits for its answer or a tool call is
    open; a tool call has a limit of its own, which also pauses for questions. The call of a nested agent is not
    counted as one: what happens in it is reported separately.
    """

    limits: ClockLimits
    accepted_at: float
    spawned_at: float | None = None
    last_activity_at: float | None = None
    is_waiting: bool = False
    _waiting_since: float = 0.0
    _calls: dict[str, float] = field(default_factory=dict)
    """When each open tool call began, oldest first."""
    _has_unread: bool = False

    def spawned(self, now: float) -> None:
        """The agent was started; a further attempt starts these clocks anew."""
        self.spawned_at = now
        self.last_activity_at = None
        self._calls.clear()
        self._has_unread = False

    def activity(self, now: float) -> None:
        """The agent did something."""
        self.last_activity_at = now

    def waiting(self, now: float, *, is_waiting: bool) -> None:
        """A question was asked, or the last one was answered."""
        if is_waiting and not self.is_waiting:
            self._waiting_since = now
        if self.is_waiting and not is_waiting:
            self.last_activity_at = now
            for call, began_at in self._calls.items():  # their time stood still
                self._calls[call] = began_at + now - max(began_at, self._waiting_since)
        self.is_waiting = is_waiting

    def observe(self, event: pb.AgentEvent, now: float) -> bool:
        """Note the beginning and the end of tool calls; return whether a deadline may have changed."""
        kind = event.WhichOneof("body")
        if kind == "tool_result":
            return self._ended(event.tool_result.tool_call_id, now)
        if kind != "tool_call":
            return False
        call = event.tool_call
        if call.status > pb.TOOL_STATUS_RUNNING:
            return self._ended(call.id, now)
        if call.status != pb.TOOL_STATUS_RUNNING or call.kind == pb.TOOL_KIND_SUBAGENT or call.id in self._calls:
            return False
        if len(self._calls) >= _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[call.id] = now
        return True

    def _ended(self, call: str, now: float) -> bool:
        if self._calls.pop(call, None) is None:
            return False
        self.last_activity_at = now
        return True

    def unread(self, *, is_unread: bool) -> None:
        """The agent's last line could not be read, or was read again."""
        self._has_unread = is_unread

    def next(self) -> tuple[float, Clock] | None:
        """Return the next deadline and whose it is; None if there is none."""
        deadlines: list[tuple[float, Clock]] = []
        limits = self.limits
        if limits.wall_s is not None:
            deadlines.append((self.accepted_at + limits.wall_s, "wall"))
        if self.spawned_at is not None and not self.is_waiting:
            if self.last_activity_at is None and limits.start_up_s is not None:
                deadlines.append((self.spawned_at + limits.start_up_s, "start_up"))
            since = self.last_activity_at if self.last_activity_at is not None else self.spawned_at
            if self._calls:
                if limits.tool_call_s is not None:
                    deadlines.append((next(iter(self._calls.values())) + limits.tool_call_s, "tool_call"))
            else:
                if limits.idle_s is not None:
                    deadlines.append((since + limits.idle_s, "idle"))
                if limits.unread_s is not None and self._has_unread:
                    deadlines.append((since + limits.unread_s, "unread"))
        return min(deadlines, default=None)

    def expired(self, now: float) -> Clock | None:
        """Return the clock that has run out, if any."""
        deadline = self.next()
        return deadline[1] if deadline is not None and now >= deadline[0] else None
