"""The adapter for pi, the coding agent."""

from dragoman.adapters.pi.adapter import PiAdapter


def adapter() -> PiAdapter:
    """Return the adapter; the entry point ``pi`` names this."""
    return PiAdapter()
