"""The inputs that an agent was given in its present turn, until it says what becomes of each. Pure."""

from collections.abc import Callable

from dragoman.sdk._output.parser import Output, Steering, Untaken


class PendingInputs:
    """Inputs that an agent was given and has not begun with, by the name that its output has for each."""

    def __init__(self) -> None:
        self._waiting: dict[str, Steering] = {}

    @property
    def waits(self) -> bool:
        """Whether the agent has one that it has not begun with: another turn may follow then."""
        return bool(self._waiting)

    def add(self, name: str, steering: Steering) -> None:
        """Note that the agent is given an input."""
        self._waiting[name] = steering

    def first(self, fits: Callable[[Steering], bool]) -> str:
        """Return the name of the oldest one that fits; empty without any."""
        return next((name for name, steering in self._waiting.items() if fits(steering)), "")

    def taken(self, name: str) -> list[Output]:
        """Note that the agent begins with an input; one that is not known is none."""
        steering = self._waiting.pop(name, None)
        return [] if steering is None else [steering.taken]

    def refused(self, name: str) -> list[Output]:
        """Note that the agent rejects an input; one that is not known is none."""
        steering = self._waiting.pop(name, None)
        return [] if steering is None else [Untaken(steering.input_id)]
