"""The adapter for Gemini CLI: the Agent Client Protocol where something is to be decided, else its JSON lines."""

from dragoman.adapters.gemini_cli.adapter import GeminiCliAdapter


def adapter() -> GeminiCliAdapter:
    """Return the adapter; the entry point ``gemini_cli`` names this."""
    return GeminiCliAdapter()
