"""Inputs for the present turn: sent as further user messages, and taken once Claude Code says so. Pure.

Claude Code reads them between two calls of its model. One that comes after the last call begins another turn of the
same process, whose end is then the end.
"""

import uuid
from typing import Final

from dragoman.adapters.claude_code import control
from dragoman.sdk import Output, Write
from dragoman.sdk.fields import Fields, text
from dragoman.sdk.parsing import PendingInputs, Steering

_TAKEN: Final = frozenset({"started", "completed"})
_REFUSED: Final = frozenset({"cancelled", "discarded", "refused"})


class Inputs:
    """The inputs of one attempt.

    Args:
        run_id: distinguishes them from those of other runs in the session: Claude Code ignores a known name.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._inputs = PendingInputs()

    @property
    def waits(self) -> bool:
        """Whether Claude Code has one that it has not begun with: another turn follows then."""
        return self._inputs.waits

    def give(self, steering: Steering) -> Output:
        """Give it an input; a slash at its beginning is text, as in a prompt."""
        name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._run_id}/{steering.input_id}"))
        self._inputs.add(name, steering)
        prompt = steering.prompt
        words = f" {prompt}" if prompt.startswith("/") else prompt
        return Write(control.user_message(words, name, images=steering.images))

    def changed(self, frame: Fields) -> list[Output]:
        """Handle ``command_lifecycle``: an input is queued, begun with, or done."""
        name, state = text(frame, "command_uuid"), text(frame, "state")
        if state in _TAKEN:
            return self._inputs.taken(name)
        return self._inputs.refused(name) if state in _REFUSED else []
