"""Any agent behind an HTTP endpoint: synchronous, streamed, polled, or calling back."""

from dragoman.adapters.http.adapter import HttpAdapter


def adapter() -> HttpAdapter:
    """Return the adapter; the entry point ``http`` names this."""
    return HttpAdapter()
