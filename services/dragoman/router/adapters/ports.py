"""The interfaces through which adapters are launched."""

from typing import Protocol

from dragoman.router.adapters.registry import LaunchSpec


class LaunchError(Exception):
    """An adapter could not be started; the message is for people and contains no environment."""


class Launched(Protocol):
    """An adapter process that a router launched."""

    @property
    def address(self) -> str:
        """The address that it listens on."""

    @property
    def pid(self) -> int:
        """The adapter's process id."""

    @property
    def guard_pid(self) -> int:
        """The process id of its guard."""

    @property
    def log_path(self) -> str:
        """The file with its output."""

    async def ended(self) -> str:
        """Wait until the process has ended, and return how, e.g. ``exited with code 3``."""

    async def stop(self, grace_s: float) -> None:
        """Terminate it, kill its process tree after ``grace_s`` seconds, and wait until the tree is gone."""

    def leave(self) -> None:
        """Disconnect without stopping it, as another router uses it."""


class Launcher(Protocol):
    """Starts adapters."""

    async def launch(self, name: str, spec: LaunchSpec) -> Launched:
        """Start an adapter under a guard that outlives this process.

        Args:
            name: the adapter's type, for paths and logs.
            spec: the command to start.

        Raises:
            LaunchError: it did not start.
        """

    async def adopt(self, address: str) -> Launched | None:
        """Adopt an adapter of a router that is gone; ``None`` if the adapter is gone, too."""
