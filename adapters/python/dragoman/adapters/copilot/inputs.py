"""Inputs for the present turn: sent in mode ``immediate``, taken once they are in the conversation. Pure.

Copilot reads them between two calls of its model. One that comes after the last call begins another turn of the same
process, whose end is then the end.
"""

from collections.abc import Callable, Mapping
from typing import Final

from dragoman.adapters.copilot.plan import attached
from dragoman.sdk import Output, Write
from dragoman.sdk.fields import Fields, text
from dragoman.sdk.jsonrpc import Response
from dragoman.sdk.parsing import Steering, Untaken

_TAG: Final = "steer"


class Inputs:
    """The inputs of one attempt.

    Args:
        request: makes a request of a method, parameters and a tag.
    """

    def __init__(self, request: Callable[[str, Mapping[str, object], str], Write]) -> None:
        self._request = request
        self._sent: dict[str, Steering] = {}
        """By its own ID: those that Copilot has not answered."""
        self._pending: dict[str, Steering] = {}
        """By Copilot's ID of the message: those that are not in the conversation."""
        self._early: set[str] = set()
        """IDs of messages in the conversation that no answer was about."""

    @property
    def waits(self) -> bool:
        """Whether Copilot has one that it has not begun with: another turn follows then."""
        return bool(self._sent or self._pending)

    def give(self, steering: Steering) -> Output:
        """Give Copilot an input."""
        self._sent[steering.input_id] = steering
        params = {"prompt": steering.prompt, "mode": "immediate", **attached(steering.images)}
        return self._request("session.send", params, f"{_TAG} {steering.input_id}")

    def answered(self, answer: Response[str]) -> list[Output] | None:
        """Handle the answer to a request; None if it is to another one."""
        tag, _, input_id = answer.tag.partition(" ")
        if tag != _TAG:
            return None
        steering = self._sent.pop(input_id, None)
        if steering is None:
            return []
        if answer.error is not None:
            return [Untaken(input_id)]
        name = text(answer.fields, "messageId")
        if name in self._early or not name:
            return [steering.taken]
        self._pending[name] = steering
        return []

    def noted(self, data: Fields, agent: str) -> list[Output]:
        """Handle ``user.message``: the prompt, an input, or what Copilot adds itself."""
        name = text(data, "messageId")
        if agent or not name:
            return []
        if self._sent:
            self._early.add(name)
        steering = self._pending.pop(name, None)
        return [] if steering is None else [steering.taken]
