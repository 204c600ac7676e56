"""The adapter for GitHub Copilot CLI: its session protocol (as Copilot's own SDK speaks it), on standard output."""

from dragoman.adapters.copilot.adapter import CopilotAdapter


def adapter() -> CopilotAdapter:
    """Return the adapter; the entry point ``copilot`` names this."""
    return CopilotAdapter()
