"""The exception with which a command ends early."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.cli.error_report import ErrorReport


class CommandError(Exception):
    """Ends the command; `main` prints its report. It imports nothing, because every command loads it."""

    def __init__(self, report: "ErrorReport") -> None:
        super().__init__(report.what)
        self.report = report
        """The text to print, and the exit code."""
