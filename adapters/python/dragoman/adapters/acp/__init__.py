"""The adapter for any agent that speaks the Agent Client Protocol."""

from dragoman.adapters.acp.adapter import AnyAcpAdapter


def adapter() -> AnyAcpAdapter:
    """Return the adapter; the entry point ``acp`` names this."""
    return AnyAcpAdapter()
