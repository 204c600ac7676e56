"""The schema of ``config``: the seeds' keys as they are, and opencode's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.opencode.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_OWN: Final[dict[str, dict[str, Any]]] = {
    "model": {
        "type": "string",
        "description": "provider/model, e.g. anthropic/claude-sonnet-4-5. Absent: opencode decides.",
    },
    "variant": {
        "type": "string",
        "description": "How much the model thinks, in opencode's words, e.g. low, high. Absent: opencode's choice.",
    },
    "agent": {
        "type": "string",
        "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        "description": "opencode's agent (its mode), e.g. plan. permissions.native_mode wins. Absent: its default.",
    },
    "steps": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Calls of the model after which opencode has it sum up instead of working on. 0: no limit.",
    },
    "enabledProviders": {
        "type": "array",
        "items": {"type": "string"},
        "default": [],
        "description": "Providers that the run may use besides that of its model, e.g. for nested agents.",
    },
    "opencodeConfig": {
        "type": "object",
        "default": {},
        "description": "More of opencode's own configuration, as in opencode.json, for this run. Can run programs.",
        "x-dangerous": True,
    },
    "ownPermissions": {
        "type": "boolean",
        "default": False,
        "description": "DANGEROUS: opencode's own settings, and the project's, decide what is asked about.",
        "x-dangerous": True,
    },
    "projectConfig": {
        "type": "boolean",
        "default": True,
        "description": "Whether opencode reads what the project brings: settings, agents, plugins, which run code.",
    },
    "transport": {
        "type": "string",
        "enum": ["acp", "run"],
        "default": "acp",
        "description": "acp: streaming, questions, cancelling. run: `opencode run`, which refuses what it would ask.",
    },
    "allowSlashCommands": {
        "type": "boolean",
        "default": False,
        "description": "Let a prompt that begins with / run as a command of opencode. Else the model gets it.",
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(
        _OWN,
        without=("effort", "maxTurns", "dangerouslyBypassApprovalsAndSandbox"),
        login=("agent", "enabledProviders", "opencodeConfig"),
    )


if __name__ == "__main__":
    print_schema(make_schema())
