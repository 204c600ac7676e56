"""The schema of ``config``: the seeds' keys as they are, and OpenClaw's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.openclaw.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_CANNOT: Final = (
    *("dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox"),
    *("extraArgs", "args", "maxTurns"),
)
"""There is no command line of the user's, OpenClaw has no turn limit, and what it may do ``permissions`` say."""
_LEVELS: Final = ["", "off", "minimal", "low", "medium", "high", "xhigh", "adaptive"]
_OWN: Final[dict[str, dict[str, Any]]] = {
    "agent": {
        "type": "string",
        "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$",
        "default": "main",
        "description": "The agent of openclaw.json that works.",
    },
    "transport": {
        "type": "string",
        "enum": ["gateway", "local"],
        "default": "gateway",
        "description": "gateway: a warm gateway, with deltas and questions. local: a program for each run"
        " (`openclaw agent --local`), whole text only; nobody is asked.",
    },
    "thinking": {
        "type": "string",
        "enum": _LEVELS,
        "description": "How much the model thinks. Absent or empty: as OpenClaw's configuration says.",
    },
    "effort": {"type": "string", "enum": _LEVELS, "description": "Another name of thinking, which wins."},
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_CANNOT, login=("agent",))


if __name__ == "__main__":
    print_schema(make_schema())
