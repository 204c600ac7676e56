"""When an attempt's agent is asked to stop, and when it is killed. Pure: times in, decisions out."""

from typing import Final

from dragoman.protocol.clocks import Clock, Clocks
from dragoman.sdk._run.stop_sequence import StopSequence

UNCONFIRMED_S: Final = 60.0
"""How long an agent that has ended its turn may take to say whether it begins another one with an input."""


class Deadlines:
    """The deadlines of one attempt: its clocks, the grace of a stop, and the time after the agent's final message.

    Attributes:
        has_exited: whether the agent has.
        was_killed: whether it was killed; nothing is due then.
        lingers_until: when it is killed although it has reported its end; None before that report.
        stopped_by: the clock that ran out.
        confirmed_by: when the end of its turn stands although it was given an input; None if it was given none.
    """

    def __init__(self, clocks: Clocks, stop_sequence: StopSequence) -> None:
        self._clocks = clocks
        self._stop_sequence = stop_sequence
        self.has_exited = False
        self.was_killed = False
        self.lingers_until: float | None = None
        self.stopped_by: Clock | None = None
        self.confirmed_by: float | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the agent is being stopped, or has reported its end."""
        return self._stop_sequence.has_begun or self.lingers_until is not None

    def next(self) -> float | None:
        """Return when something is due next; None if nothing will be by itself."""
        if self.was_killed:
            return None
        deadlines = [self.lingers_until, None if self.is_ending else self.confirmed_by]
        if self._stop_sequence.has_begun:
            deadlines.append(self._stop_sequence.next_time())
        elif self._clocks_run() and (clock := self._clocks.next()) is not None:
            deadlines.append(clock[0])
        return min((item for item in deadlines if item is not None), default=None)

    def has_expired(self, now: float) -> bool:
        """Note whether a clock has run out, and return it; not while the agent is being stopped."""
        if self._stop_sequence.has_begun or not self._clocks_run():
            return False
        self.stopped_by = self._clocks.expired(now)
        return self.stopped_by is not None

    def defer(self, now: float, *, is_deferred: bool) -> None:
        """Note whether the agent has ended its turn and may begin another one with an input."""
        if not is_deferred:
            self.confirmed_by = None
        elif self.confirmed_by is None:
            self.confirmed_by = now + UNCONFIRMED_S

    def is_unconfirmed(self, now: float) -> bool:
        """Return whether it has had its time for that; not while it is being stopped."""
        return self.confirmed_by is not None and not self.is_ending and now >= self.confirmed_by

    def is_over(self, now: float) -> bool:
        """Return whether only killing is left."""
        return self._stop_sequence.is_over(now) or (self.lingers_until is not None and now >= self.lingers_until)

    def _clocks_run(self) -> bool:
        """Whether the clocks run: not after the agent's final message, nor once it has exited."""
        return self.lingers_until is None and not self.has_exited
