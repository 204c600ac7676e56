"""The schema of ``config``: the seeds' keys as they are, and Qwen Code's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.qwen.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_NO: Final = ("effort", "maxTurns", "dangerouslyBypassApprovalsAndSandbox")
_OWN: Final[dict[str, dict[str, Any]]] = {
    "transport": {
        "enum": ["acp", "stream-json"],
        "default": "acp",
        "description": "How it is spoken to: the Agent Client Protocol, or its JSON lines, which ask nobody.",
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_NO, also=("placeInWorkspace",))


if __name__ == "__main__":
    print_schema(make_schema())
