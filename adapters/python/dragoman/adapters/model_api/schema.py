"""The schema of ``config``: the seeds' keys as they are, and the loop's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.model_api.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_OWN: Final[dict[str, dict[str, Any]]] = {
    "provider": {
        "type": "string",
        "enum": ["", "anthropic", "openai"],
        "description": "Whose wire format is spoken. Absent or empty: whose key is found first, the caller's before"
        " the adapter's own.",
    },
    "maxTokens": {
        "type": "integer",
        "minimum": 1,
        "maximum": 1_000_000,
        "description": "Tokens that one answer may take, thinking included. Absent: 32000, or what the service says.",
    },
    "maxRetries": {
        "type": "integer",
        "minimum": 0,
        "maximum": 10,
        "default": 3,
        "description": "How often an answer is asked for again after a failure that may pass.",
    },
    "maxTurns": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Answers of the model that a run may take. 0: 100.",
    },
    "thinking": {
        "type": "boolean",
        "default": False,
        "description": "Let the model think before it answers, and show it. Anthropic only.",
    },
    "wholeFilesOnly": {
        "type": "boolean",
        "default": False,
        "description": "Offer no Edit: files are written as a whole, as by permissions.native_mode wholeFiles.",
    },
}
_WITHOUT: Final = (
    *("command", "args", "extraArgs"),
    *("dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox"),
)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_WITHOUT, login=("provider",))


if __name__ == "__main__":
    print_schema(make_schema())
