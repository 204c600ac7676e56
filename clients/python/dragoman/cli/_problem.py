"""The exception with which a command ends early."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.cli._failures import Complaint


class ProblemError(Exception):
    """Ends the command; `main` prints what it carries. Light to import, as every command line may need it."""

    def __init__(self, complaint: "Complaint") -> None:
        super().__init__(complaint.what)
        self.complaint = complaint
        """What to print, and the exit code."""
