"""The adapter for any command: prompt by standard input, file or argument; the exit code decides."""

from dragoman.adapters.process.adapter import ProcessAdapter


def adapter() -> ProcessAdapter:
    """Return the adapter; the entry point ``process`` names this."""
    return ProcessAdapter()
