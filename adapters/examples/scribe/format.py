"""What the scripted agent of the conformance kit prints in place of scribe: see `docs/guides/conformance.md`."""

import json
from typing import Any


def line(frame: dict[str, Any]) -> str:
    """Return what scribe prints for an object of the script; an empty text for nothing.

    Raises:
        NotImplementedError: scribe has nothing like it.
    """
    match frame["type"]:
        case "assistant" if frame.get("delta"):
            raise NotImplementedError
        case "assistant":
            return json.dumps({"type": "text", "text": frame["text"]})
        case "tool_call":
            return json.dumps({**frame, "type": "tool_start"})
        case "tool_result":
            is_ok = not frame.get("isError")
            return json.dumps({"type": "tool_end", "id": frame["toolUseId"], "ok": is_ok, "output": frame["content"]})
        case "result" if frame["isError"]:
            return json.dumps({"type": "error", "message": frame["text"]})
        case "result":
            counts = {"input": frame.get("inputTokens"), "output": frame.get("outputTokens")}
            tokens = {name: count for name, count in counts.items() if count is not None}
            return json.dumps({"type": "done", "summary": "", "tokens": tokens})
    return ""
