"""The processes of the machine."""

from dragoman.guard import processes


class SystemProcesses:
    """Processes as the system tells of them."""

    def started(self, pid: int) -> int | None:
        """Return the start mark of a living process; ``None`` if there is none with this pid."""
        found = processes.read(pid)
        return found.started if found is not None and found.is_alive else None
