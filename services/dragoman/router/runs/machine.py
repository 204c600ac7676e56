"""What holds a run's state: it takes inputs one after the other, and lets others await a state."""

import abc
from collections.abc import Callable

from dragoman.router.model.tasks import Conditions
from dragoman.router.runs.actions import Action
from dragoman.router.runs.inputs import Input
from dragoman.router.runs.state import Live, State, decide, is_ending


class RunMachine(abc.ABC):
    """A state, and who waits for another one.

    Everything happens in one event loop; a decision and its actions are never interrupted.
    """

    def __init__(self, beginning: Live) -> None:
        self.state: State = beginning
        """How far the router is with the run; ``send`` alone changes it."""
        self._inbox: list[Input] = []
        self._conditions = Conditions()

    @property
    def is_ending(self) -> bool:
        """Whether it is decided how the run ends, if perhaps not published yet."""
        return is_ending(self.state)

    async def until(self, reached: Callable[[State], bool], timeout_s: float | None = None) -> bool:
        """Wait until the run is in such a state, be it for a moment; False if it is not in time.

        It is asked for with each change of the state, and with each event.
        """
        return await self._conditions.until(lambda: reached(self.state), timeout_s)

    def send(self, event: Input) -> None:
        """Say what has happened: the state that follows is entered at once, and its actions are executed.

        Raises:
            ImpossibleInputError: this cannot happen now, which is a fault of the router.
        """
        self._inbox.append(event)
        if len(self._inbox) > 1:
            return  # it is sent by an action, whose decision comes to its end first
        try:
            while self._inbox:
                self.state, actions = decide(self.state, self._inbox[0])
                self._conditions.check()
                for action in actions:
                    self._execute(action)
                self._inbox.pop(0)
        finally:
            self._inbox.clear()

    @abc.abstractmethod
    def _execute(self, action: Action) -> None:
        """Do what a decision asks for, at once; what takes time ends with another input."""
