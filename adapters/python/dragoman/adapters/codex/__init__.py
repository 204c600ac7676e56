"""The adapter for Codex: its app server over JSON-RPC, or its ``exec`` command, its approvals, its threads."""

from dragoman.adapters.codex.adapter import CodexAdapter


def adapter() -> CodexAdapter:
    """Return the adapter; the entry point ``codex`` names this."""
    return CodexAdapter()
