"""The exit codes of commands."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CANCELLED = 130
"""The exit code that shells report for a program that was interrupted."""
