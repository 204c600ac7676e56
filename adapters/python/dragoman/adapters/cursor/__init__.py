"""The adapter for Cursor's agent in the terminal: stream-json, as its documentation describes it."""

from dragoman.adapters.cursor.adapter import CursorAdapter


def adapter() -> CursorAdapter:
    """Return the adapter; the entry point ``cursor`` names this."""
    return CursorAdapter()
