"""The schema of ``config``: the seeds' keys as they are, and Claude Code's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.claude_code.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_RULES: Final = {"type": "array", "items": {"type": "string", "pattern": "^[^-,][^,]*$"}}
"""They reach Claude Code joined by commas, behind an option that ends where a word begins with a dash."""

_OWN: Final[dict[str, dict[str, Any]]] = {
    "effort": {
        "type": "string",
        "enum": ["", "low", "medium", "high", "xhigh", "max"],
        "description": "How much the model thinks. Absent or empty: Claude Code's own choice.",
    },
    "maxTurnsPerRun": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Turns of the model that a run may take. 0: no limit. maxTurns is another name of it.",
    },
    "maxBudgetUsd": {
        "type": "number",
        "minimum": 0,
        "default": 0,
        "description": "US dollars that a run may spend, by Claude Code's own count. 0: no limit.",
    },
    "fallbackModel": {
        "type": "string",
        "description": "Models to use while the main one is busy or not to be had: names, separated by commas.",
    },
    "allowedTools": {
        **_RULES,
        "description": 'Rules for what needs no question, e.g. "Bash(git status *)", "Edit(src/**)", "WebSearch".',
        "x-dangerous": True,
    },
    "disallowedTools": {
        **_RULES,
        "description": "Rules for what is refused. They win over all others.",
    },
    "addDirs": {
        "type": "array",
        "items": {"type": "string", "pattern": "^/"},
        "description": "Further directories that the agent may work in: absolute.",
    },
    "settingSources": {
        "type": "array",
        "items": {"enum": ["user", "project", "local"]},
        "uniqueItems": True,
        "description": "Settings files that are read. Absent: all of them.",
    },
    "chrome": {
        "type": "boolean",
        "description": "Turn Claude in Chrome on or off. Absent: as the user's settings say.",
    },
    "allowSlashCommands": {
        "type": "boolean",
        "default": False,
        "description": "Let a prompt that begins with / run as a slash command. Else it reaches the model as text.",
    },
    "dangerouslySkipPermissions": {
        "type": "boolean",
        "default": False,
        "description": "DANGEROUS: Claude Code asks nobody before it runs commands and writes files; the"
        " request's permissions decide nothing. Refused by it for root.",
        "x-dangerous": True,
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=("dangerouslyBypassApprovalsAndSandbox",), login=("settingSources",))


if __name__ == "__main__":
    print_schema(make_schema())
