"""The schema of ``config``: the seeds' keys as they are, and Copilot's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.copilot.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_OWN: Final[dict[str, dict[str, Any]]] = {
    "effort": {
        "type": "string",
        "enum": ["", "none", "minimal", "low", "medium", "high", "xhigh", "max"],
        "description": "How much the model thinks. Absent or empty: Copilot's own choice.",
    },
    "agent": {
        "type": "string",
        "description": "Custom agent to use, as Copilot names it. Absent or empty: its default.",
    },
    "addDirs": {
        "type": "array",
        "items": {"type": "string", "pattern": "^/"},
        "description": "Further directories that the agent may work in: absolute. Skills and agents in their .github"
        " are trusted.",
    },
    "excludedTools": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Tools that the model is not offered, by Copilot's names.",
    },
}
_MISSING: Final = ("maxTurns", "dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox")
"""What Copilot cannot, or ``permissions`` of the request does better."""


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_MISSING)


if __name__ == "__main__":
    print_schema(make_schema())
