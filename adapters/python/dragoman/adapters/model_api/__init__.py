"""The agent loop of last resort: a model's API, and three tools for files."""

from dragoman.adapters.model_api.adapter import ModelApiAdapter


def adapter() -> ModelApiAdapter:
    """Return the adapter; the entry point ``model_api`` names this."""
    return ModelApiAdapter()
