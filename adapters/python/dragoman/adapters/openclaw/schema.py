"""The schema of ``config``: the seeds' keys as they are, and OpenClaw's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.openclaw.schema``.
"""

import json
from typing import Any, Final

from dragoman.sdk import common_properties

_CANNOT: Final = ("dangerouslyBypassApprovalsAndSandbox", "extraArgs", "args", "maxTurns")
"""There is no command line of the user's, and OpenClaw has no turn limit."""
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
        "enum": ["", "off", "minimal", "low", "medium", "high", "xhigh", "adaptive"],
        "description": "How much the model thinks. Absent or empty: as OpenClaw's configuration says.",
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    properties: dict[str, Any] = dict(common_properties(without=_CANNOT))
    properties |= {name: {**schema, "x-common": False} for name, schema in _OWN.items()}
    properties["command"]["x-dangerous"] = True
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def main() -> None:
    """Print the schema as it is shipped."""
    print(json.dumps(make_schema(), indent=2, ensure_ascii=False))  # noqa: T201 - that is what it is for


if __name__ == "__main__":
    main()
