"""The interfaces of the machine that several packages need; ``dragoman.router.system`` implements them."""

from typing import Protocol


class Processes(Protocol):
    """The visible processes of this machine."""

    def started(self, pid: int) -> int | None:
        """Return the start mark of a living process, which distinguishes uses of one pid; ``None`` if it is gone."""

    def own_name(self) -> str:
        """Return a globally unique name for this process."""

    def is_gone(self, name: str) -> bool:
        """Return whether the process with this name is one of this machine and is certainly gone."""


class Clock(Protocol):
    """Time and randomness."""

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock."""

    def time(self) -> float:
        """Return seconds since the epoch."""

    def chance(self) -> float:
        """Return a random number in [0, 1)."""
