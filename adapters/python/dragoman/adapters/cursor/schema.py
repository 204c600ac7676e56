"""The schema of ``config``: ``python -m dragoman.adapters.cursor.schema`` makes ``config.schema.json`` of it."""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_MISSING: Final = ("maxTurns", "dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox", "effort")
_OWN: Final[dict[str, dict[str, Any]]] = {
    "sandbox": {
        "type": "string",
        "enum": ["", "enabled", "disabled"],
        "description": "Cursor's sandbox around commands. Absent or empty: as its user's settings say.",
        "x-dangerous": True,
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_MISSING, also=("placeInWorkspace",))


if __name__ == "__main__":
    print_schema(make_schema())
