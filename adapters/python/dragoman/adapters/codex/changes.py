"""Changes of the model while a turn runs: ``turn/settings/update``, which Codex answers at once. Pure.

It takes only models that it knows, and of those only such as need no other review of the model's actions.
"""

from typing import Final

from dragoman.adapters.codex.thread import ThreadEvents
from dragoman.sdk import Output, Write
from dragoman.sdk.fields import text
from dragoman.sdk.jsonrpc import Peer, Response
from dragoman.sdk.parsing import NotUpdated, Update, Updated

_METHOD: Final = "turn/settings/update"
_APPLIED: Final = "applied"


class Changes:
    """The changes of one attempt.

    Args:
        peer: makes the requests.
        thread: knows the turn, and learns its model.
    """

    def __init__(self, peer: Peer[str], thread: ThreadEvents) -> None:
        self._peer = peer
        self._thread = thread
        self._pending: dict[str, Update] = {}
        """By the tag of the request."""

    def make(self, update: Update) -> Output:
        """Ask Codex for another model: the turn's next call of the model has it."""
        tag = f"{_METHOD} {update.update_id}"
        self._pending[tag] = update
        params = {"threadId": self._thread.thread, "turnId": self._thread.turn, "model": update.model}
        return Write(self._peer.request(_METHOD, params, tag))

    def answered(self, answer: Response[str]) -> list[Output] | None:
        """Handle the answer to a request; None if it is to another one."""
        update = self._pending.pop(answer.tag, None)
        if update is None:
            return None
        if answer.error is not None:
            return [NotUpdated(update.update_id, answer.error.message)]
        if text(answer.fields, "status") != _APPLIED:
            return []  # the turn is over: the change is given again in the next one, if there is any
        return [Updated(update.update_id), *self._thread.session.news(model=update.model)]
