"""The schema of ``config``: the seeds' keys as they are, and opencode's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.opencode.schema``.
"""

import json
import sys
from typing import Any, Final

from dragoman.sdk import common_properties

_OWN: Final[dict[str, dict[str, Any]]] = {
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


def config_schema() -> dict[str, Any]:
    """Return the schema."""
    unused = {"effort", "maxTurns", "dangerouslyBypassApprovalsAndSandbox"}
    properties: dict[str, Any] = {
        **common_properties(without=unused),
        **{name: {"x-common": False, **schema} for name, schema in _OWN.items()},
    }
    properties["model"]["description"] = "provider/model, e.g. anthropic/claude-sonnet-4-5. Absent: opencode decides."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(config_schema(), indent=2) + "\n")
