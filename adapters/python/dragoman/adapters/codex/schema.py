"""The schema of ``config``: the seeds' keys as they are, and Codex's own.

It is shipped as ``config.schema.json``, which is made by ``python -m dragoman.adapters.codex.schema``.
"""

from typing import Any, Final

from dragoman.sdk import adapter_schema, print_schema

_EFFORTS: Final = ["", "none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]

_OWN: Final[dict[str, dict[str, Any]]] = {
    "transport": {
        "type": "string",
        "enum": ["app-server", "exec"],
        "default": "app-server",
        "description": "How Codex is driven. exec is the fall-back: whole items only, no questions, no MCP servers.",
    },
    "effort": {
        "type": "string",
        "enum": _EFFORTS,
        "description": "How much the model thinks; which values it knows depends on the model. Empty: its own.",
    },
    "modelReasoningEffort": {
        "type": "string",
        "enum": _EFFORTS,
        "description": "Another name of effort, which it wins over.",
    },
    "reasoningSummary": {
        "type": "string",
        "enum": ["", "auto", "concise", "detailed", "none"],
        "description": "How its reasoning is summed up; without it most models show none. Empty: Codex's own choice.",
    },
    "search": {
        "type": "boolean",
        "description": "Live web search on or off. Absent: as the user's config.toml says.",
    },
    "sandbox": {
        "type": "string",
        "enum": ["read-only", "workspace-write", "danger-full-access"],
        "description": "What commands may do without being asked about. danger-full-access is DANGEROUS: no sandbox."
        " Absent: read-only, or danger-full-access if the request approves everything.",
        "x-dangerous": True,
    },
    "networkAccess": {
        "type": "boolean",
        "default": False,
        "description": "DANGEROUS: commands in the workspace-write sandbox reach the network unasked.",
        "x-dangerous": True,
    },
    "outputSchema": {
        "type": "object",
        "description": "JSON Schema of the answer, as OpenAI takes it; the answer then comes as structured output.",
    },
    "dangerouslyBypassApprovalsAndSandbox": {
        "type": "boolean",
        "default": False,
        "description": "DANGEROUS: Codex asks nobody and has no sandbox; the request's permissions decide nothing.",
        "x-dangerous": True,
    },
}


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``config``."""
    return adapter_schema(_OWN, without=("dangerouslySkipPermissions", "maxTurns"))


if __name__ == "__main__":
    print_schema(make_schema())
