"""What the schema of pi's ``config`` is to be: ``python -m tests.adapters.pi.schema`` prints it as it is shipped."""

import json
from typing import Any

from dragoman.sdk import common_properties


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    dangerous = ("dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox")
    properties: dict[str, Any] = dict(common_properties(without=("maxTurns", *dangerous)))
    for name in ("command", "extraArgs", "args"):
        properties[name]["x-dangerous"] = True
    properties["effort"]["enum"] = ["", "off", "minimal", "low", "medium", "high", "xhigh"]
    properties["provider"] = {
        "type": "string",
        "pattern": "^[^-]",
        "description": "Whose models are meant, as pi names them. Absent: as the model or its settings say.",
        "x-common": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


if __name__ == "__main__":
    print(json.dumps(make_schema(), indent=2, ensure_ascii=False))
