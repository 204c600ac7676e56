"""The adapter for OpenClaw: a warm gateway per state directory, spoken to in its own protocol."""

from dragoman.adapters.openclaw.adapter import OpenClawAdapter


def adapter() -> OpenClawAdapter:
    """Return the adapter; the entry point ``openclaw`` names this."""
    return OpenClawAdapter()
