"""The adapter for opencode: over the Agent Client Protocol, or with ``opencode run`` where that is wanted."""

from dragoman.adapters.opencode.adapter import OpencodeAdapter


def adapter() -> OpencodeAdapter:
    """Return the adapter; the entry point ``opencode`` names this."""
    return OpencodeAdapter()
