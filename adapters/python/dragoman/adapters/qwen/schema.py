"""The schema of ``config``: the seeds' keys as they are, and Qwen Code's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.qwen.schema``.
"""

import json
from typing import Any, Final

from dragoman.sdk import common_properties

_NO: Final = ("effort", "maxTurns", "dangerouslyBypassApprovalsAndSandbox")
_DANGEROUS: Final = ("command", "extraArgs", "args", "dangerouslySkipPermissions")


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    properties: dict[str, Any] = dict(common_properties(without=_NO, also=("placeInWorkspace",)))
    properties["transport"] = {
        "enum": ["acp", "stream-json"],
        "default": "acp",
        "description": "How it is spoken to: the Agent Client Protocol, or its JSON lines, which ask nobody.",
        "x-common": False,
    }
    for name in _DANGEROUS:
        properties[name]["x-dangerous"] = True
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
