"""The adapter for Qwen Code."""

from dragoman.adapters.qwen.adapter import QwenAdapter


def adapter() -> QwenAdapter:
    """Return the adapter; the entry point ``qwen`` names this."""
    return QwenAdapter()
