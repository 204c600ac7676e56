"""Inputs for the present turn: ``turn/steer``, and taken once Codex has put them into the conversation. Pure."""

from collections.abc import Iterable
from typing import Final

from dragoman.adapters.codex.plan import input_items
from dragoman.sdk import Output, Write
from dragoman.sdk.fields import Fields, inner, text
from dragoman.sdk.jsonrpc import Peer, Response
from dragoman.sdk.parsing import PendingInputs, Steering

_TAG: Final = "turn/steer"


class Inputs:
    """The inputs of one attempt.

    Args:
        peer: makes the requests.
        run_id: distinguishes them from those of other runs in the thread.
    """

    def __init__(self, peer: Peer[str], run_id: str) -> None:
        self._peer = peer
        self._run_id = run_id
        self._inputs = PendingInputs()

    def give(self, steering: Steering, thread: str, turn: str) -> Output:
        """Give Codex an input for a turn; it rejects one for a turn that is over."""
        name = f"{self._run_id}/{steering.input_id}"
        self._inputs.add(name, steering)
        params = {
            "threadId": thread,
            "expectedTurnId": turn,
            "input": input_items(steering.prompt, steering.images),
            "clientUserMessageId": name,
        }
        return Write(self._peer.request("turn/steer", params, f"{_TAG} {name}"))

    def answered(self, answer: Response[str]) -> list[Output] | None:
        """Handle the answer to a request; None if it is to another one."""
        tag, _, name = answer.tag.partition(" ")
        if tag != _TAG:
            return None
        return self._inputs.refused(name) if answer.error is not None else []

    def noted(self, params: Fields) -> Iterable[Output]:
        """Handle an item of the conversation, which may be an input that Codex has put there."""
        item = inner(params, "item")
        return self._inputs.taken(text(item, "clientId")) if text(item, "type") == "userMessage" else []
