"""The schema of ``config``: ``python -m dragoman.adapters.cursor.schema`` makes ``config.schema.json`` of it."""

import json
from typing import Any, Final

from dragoman.sdk import common_properties

_MISSING: Final = ("maxTurns", "dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox", "effort")


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    properties: dict[str, Any] = dict(common_properties(without=_MISSING, also=("placeInWorkspace",)))
    properties["sandbox"] = {
        "type": "string",
        "enum": ["", "enabled", "disabled"],
        "description": "Cursor's sandbox around commands. Absent or empty: as its user's settings say.",
        "x-common": False,
        "x-dangerous": True,
    }
    for name in ("command", "extraArgs", "args"):
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
