"""The end of the history of a loaded session, which Gemini CLI repeats after the session is loaded. Pure.

It writes each piece when the one before is written, between its other output. If its output is read slowly, or the
history is long, the answer to the prompt would come in between, and look the same. So the prompt is deferred until no
history is left: Gemini CLI gets requests to set the mode that it has, which change nothing, until it answers one
without a piece of history before the answer. As long as any is left, a piece waits to be written.
"""

import json
from typing import Final

from dragoman.sdk import Output, Write, fields
from dragoman.sdk.fields import Fields, parse_json_object

_REQUEST_ID: Final = "history"
_COMMANDS: Final = "available_commands_update"


class History:
    """Follows the history of one attempt.

    Args:
        session_id: the session that is loaded. Empty: there is no history.
    """

    def __init__(self, session_id: str) -> None:
        self.is_on = bool(session_id)
        """Whether messages are history, and not this run's."""
        self._session_id = session_id
        self._mode = ""
        self._has_moved = False
        self._prompt: Write | None = None

    def take(self, frame: Fields, kind: str) -> list[Output] | None:
        """Handle a frame; None if it is not about the history.

        Args:
            frame: the frame.
            kind: of the update that it is; empty if it is none.
        """
        if frame.get("id") == _REQUEST_ID and "method" not in frame:
            return self._answered()
        if not self.is_on:
            return None
        self._mode = self._mode or fields.text(fields.inner(fields.inner(frame, "result"), "modes"), "currentModeId")
        self._has_moved = self._has_moved or bool(kind)
        if kind == _COMMANDS:
            self.is_on = bool(self._mode)  # without a mode to set, nothing else marks the end
            return None
        return [] if kind else None

    def defer(self, output: Output) -> Output:
        """Return what to write in place of ``output``: if that is the prompt, it is deferred."""
        if not (self.is_on and self._mode and isinstance(output, Write)):
            return output
        message = parse_json_object(output.data)
        if message is None or fields.text(message, "method") != "session/prompt":
            return output
        self._prompt = output
        return self._ask()

    def drop_prompt(self) -> bool:
        """Drop the deferred prompt, as the agent is to stop; return whether there was one."""
        was_deferred, self._prompt = self._prompt is not None, None
        return was_deferred

    def _ask(self) -> Output:
        self._has_moved = False
        params = {"sessionId": self._session_id, "modeId": self._mode}
        request = {"jsonrpc": "2.0", "id": _REQUEST_ID, "method": "session/set_mode", "params": params}
        return Write(json.dumps(request).encode() + b"\n")

    def _answered(self) -> list[Output]:
        if self._prompt is None:
            return []
        if self._has_moved:
            return [self._ask()]
        prompt, self._prompt, self.is_on = self._prompt, None, False
        return [prompt]
