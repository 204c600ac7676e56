"""What the router needs of the machine it runs on; ``dragoman.router._local`` has it."""

from collections.abc import Mapping
from typing import Protocol

from dragoman.router._domain.detection import CachedDetection, FileMark
from dragoman.router._domain.directory import LaunchSpec


class LaunchError(Exception):
    """An adapter could not be started; the text is for people and quotes no environment."""


class Launched(Protocol):
    """An adapter's process, started by us."""

    @property
    def address(self) -> str:
        """Where it was told to listen."""

    @property
    def pid(self) -> int:
        """The adapter's process."""

    @property
    def guard_pid(self) -> int:
        """The process that watches it."""

    @property
    def log_path(self) -> str:
        """Where its output goes."""

    async def ended(self) -> str:
        """Wait until the process has ended, and say how, e.g. ``ended with exit code 3``."""

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, kill it and all it started after ``grace_s`` seconds, and wait until all that is gone."""

    def leave(self) -> None:
        """Let go of it while it lives: another router has it."""


class Launcher(Protocol):
    """Starts adapters."""

    async def launch(self, name: str, spec: LaunchSpec) -> Launched:
        """Start one, under a watch that outlives this process.

        Args:
            name: the adapter's type; for paths and logs.
            spec: what to start.

        Raises:
            LaunchError: it did not start.
        """

    async def adopt(self, address: str) -> Launched | None:
        """Take over one that a router started which is gone; ``None`` if it is not there any more.

        Args:
            address: where it listens.
        """


class Processes(Protocol):
    """The processes of this machine, as far as they can be seen from here."""

    def started(self, pid: int) -> int | None:
        """Return what tells a living process from a later one with its pid; ``None`` if there is none."""

    def own_name(self) -> str:
        """Return a name for this process that no other has, here or elsewhere."""

    def is_gone(self, name: str) -> bool:
        """Tell whether the process with this name was one of this machine and is surely gone."""


class Clock(Protocol):
    """Time and chance."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def time(self) -> float:
        """Return seconds since the epoch."""

    def chance(self) -> float:
        """Return a random number from 0 up to, and without, 1."""


class DetectionStore(Protocol):
    """Keeps detections while no router runs."""

    def load(self) -> Mapping[str, CachedDetection]:
        """Return what is kept, by the adapter's type; what cannot be read is left out."""

    def save(self, entries: Mapping[str, CachedDetection]) -> None:
        """Keep this and nothing else. Not being able to is logged, not raised: it is only a cache."""

    def mark(self, path: str) -> FileMark | None:
        """Look at a file; ``None`` if it is not there."""

    def surroundings(self, config_dir: str) -> str:
        """Return what changes when somebody installs an agent, logs in, or sets a variable.

        Args:
            config_dir: the agent's; empty if it has none.
        """
