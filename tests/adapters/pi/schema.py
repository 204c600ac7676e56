"""What the schema of pi's ``config`` is to be: ``python -m tests.adapters.pi.schema`` prints it as it is shipped."""

from typing import Any, Final

from dragoman.sdk import adapter_schema, common_properties, print_schema

_WITHOUT: Final = ("maxTurns", "dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox")
_OWN: Final[dict[str, Any]] = {
    "effort": {
        **common_properties()["effort"],
        "enum": ["", "off", "minimal", "low", "medium", "high", "xhigh"],
    },
    "provider": {
        "type": "string",
        "pattern": "^[^-]",
        "description": "Whose models are meant, as pi names them. Absent: as the model or its settings say.",
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_WITHOUT, login=("provider",))


if __name__ == "__main__":
    print_schema(make_schema())
