"""The schema of ``config``: what all command lines have, and what is told of the agent's ways.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.acp.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_NO: Final = ("effort", "maxTurns", "dangerouslySkipPermissions", "dangerouslyBypassApprovalsAndSandbox")
_OWN: Final[dict[str, dict[str, Any]]] = {
    "command": {
        "type": "string",
        "minLength": 1,
        "description": "The agent's program: a name on PATH or an absolute path. Never passed through a shell.",
        "x-dangerous": True,
    },
    "args": {
        "type": "array",
        "items": {"type": "string"},
        "description": 'The command\'s arguments, e.g. ["acp"]. extraArgs wins.',
        "x-dangerous": True,
    },
    "mode": {
        "type": "string",
        "description": "Session mode: the agent's id of it. Absent: the agent's own. permissions.native_mode wins.",
    },
    "configOptions": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Values of the session's options, by the option's id or category, e.g. thought_level.",
    },
    "authMethod": {
        "type": "string",
        "description": "Id of the auth method to use before a session begins. Absent: none is used.",
    },
    "fileAccess": {
        "enum": ["none", "read", "write"],
        "default": "none",
        "description": "Files of the workspace that the agent may have read or written for it. Writing is subject to"
        " the request's permissions.",
    },
    "terminals": {
        "type": "boolean",
        "default": False,
        "description": "Run commands for the agent, subject to the request's permissions.",
        "x-dangerous": True,
    },
    "promptUsage": {
        "enum": ["turn", "lastCall", "session"],
        "default": "turn",
        "description": "What the token numbers count with which the agent answers a prompt: the prompt, its last call"
        " of the model, or the whole session.",
    },
    "allowSlashCommands": {
        "type": "boolean",
        "default": False,
        "description": "Let a prompt that begins with / run as the agent's command. Else the model gets it.",
    },
    "askVersion": {
        "type": "boolean",
        "default": False,
        "description": "Detect may run the command with --version. Say so only if it then does nothing else.",
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=_NO, required=("command",), login=("authMethod", "configOptions"))


if __name__ == "__main__":
    print_schema(make_schema())
