"""What holds a run's state: it takes inputs one after the other, and lets others await a state."""

import abc
import asyncio
from collections import deque
from collections.abc import Callable

from dragoman.router.runs.actions import Action
from dragoman.router.runs.inputs import Input
from dragoman.router.runs.state import Live, State, decide, is_ending


class RunMachine(abc.ABC):
    """A state, and who waits for another one.

    Everything happens in one event loop; a decision and its actions are never interrupted.

    Args:
        beginning: the first state.
    """

    def __init__(self, beginning: Live) -> None:
        self._state: State = beginning
        self._inbox: deque[Input] = deque()
        self._is_deciding = False
        self._waiting: dict[asyncio.Future[None], Callable[[State], bool]] = {}

    @property
    def state(self) -> State:
        """How far the router is with the run."""
        return self._state

    @property
    def is_ending(self) -> bool:
        """Whether it is decided how the run ends, if perhaps not published yet."""
        return is_ending(self._state)

    async def until(self, reached: Callable[[State], bool], timeout_s: float | None = None) -> bool:
        """Wait until the run is in such a state, be it for a moment; False if it is not in time."""
        if reached(self._state):
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = reached
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            del self._waiting[waiter]
        return waiter.done()

    def send(self, event: Input) -> None:
        """Say what has happened: the state that follows is entered at once, and its actions are executed.

        Raises:
            ImpossibleInputError: this cannot happen now, which is a fault of the router.
        """
        self._inbox.append(event)
        if self._is_deciding:
            return  # it is sent by an action, whose decision comes to its end first
        self._is_deciding = True
        try:
            while self._inbox:
                self._state, actions = decide(self._state, self._inbox.popleft())
                for waiter, reached in self._waiting.items():
                    if not waiter.done() and reached(self._state):
                        waiter.set_result(None)
                for action in actions:
                    self._execute(action)
        finally:
            self._is_deciding = False
            self._inbox.clear()

    @abc.abstractmethod
    def _execute(self, action: Action) -> None:
        """Do what a decision asks for, at once; what takes time ends with another input."""
