"""Changes of the model or mode while the agent works, as far as it offers them. Pure."""

from dragoman.sdk._encoding.fields import Fields
from dragoman.sdk._encoding.jsonrpc import Peer, RpcError
from dragoman.sdk._output.parser import FailureInfo, NotUpdated, Output, Update, Updated, Write
from dragoman.sdk.acp._session import AcpOptions, Adjustment, Choices, adjusted, chosen_mode, chosen_model

TAG = "update/"
"""Begins the tags of the requests for changes."""


class Changes:
    """The changes of one attempt.

    Args:
        peer: our side of the conversation.
        choices: what can be chosen in the session, and what is.
        options: the agent's ways.
    """

    def __init__(self, peer: Peer[str], choices: Choices, options: AcpOptions) -> None:
        self._peer = peer
        self._options = options
        self._choices = choices
        self._pending: dict[str, tuple[str, Adjustment]] = {}

    def make(self, update: Update, session_id: str) -> Output:
        """Ask the agent for a change; what it does not offer is rejected in its place."""
        if update.model:
            found = chosen_model(update.model, self._options, self._choices)
        else:
            found = chosen_mode(update.permission_mode, self._choices)
        if isinstance(found, FailureInfo):
            return NotUpdated(update.update_id, found.message)
        method, params = found
        tag = f"{TAG}{update.update_id}"
        self._pending[tag] = (update.update_id, found)
        return Write(self._peer.request(method, {"sessionId": session_id, **params}, tag))

    def answered(self, tag: str, result: Fields, error: RpcError | None) -> Output | None:
        """Handle the answer to a request for a change; None if it was for none."""
        if tag not in self._pending:
            return None
        update_id, adjustment = self._pending.pop(tag)
        if error is not None:
            return NotUpdated(update_id, error.message)
        adjusted(self._choices, adjustment, result)
        return Updated(update_id)
