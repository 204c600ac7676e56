"""Changes of the model or permission mode while it works: requests of ours, which Claude Code answers. Pure."""

from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.plan import BYPASS_MODE, SKIPS
from dragoman.sdk import Output, Write
from dragoman.sdk.fields import Fields, inner, text
from dragoman.sdk.parsing import NotUpdated, Update, Updated, notice_event


class Changes:
    """The changes of one attempt."""

    def __init__(self) -> None:
        self._pending: dict[str, Update] = {}

    def make(self, update: Update) -> Output:
        """Ask for a change."""
        self._pending[update.update_id] = update
        if update.model:
            return Write(control.request(update.update_id, {"subtype": "set_model", "model": update.model}))
        mode = {"subtype": "set_permission_mode", "mode": update.permission_mode}
        return Write(control.request(update.update_id, mode))

    def answered(self, frame: Fields) -> list[Output]:
        """Handle ``control_response``: the answer to a request of ours, which need not be one for a change."""
        response = inner(frame, "response")
        update_id = text(response, "request_id")
        update = self._pending.pop(update_id, None)
        if update is None:
            return []
        if text(response, "subtype") != "success":
            return [NotUpdated(update_id, text(response, "error"))]
        skips = update.permission_mode == BYPASS_MODE
        return [Updated(update_id), notice_event(*SKIPS)] if skips else [Updated(update_id)]
