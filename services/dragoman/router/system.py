"""The machine: clocks, random numbers, processes."""

import os
import random
import secrets
import time

from dragoman.guard import processes


class SystemClock:
    """The system's clocks and random numbers."""

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock."""
        return time.monotonic()

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def chance(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()  # noqa: S311 - jitter for retries, not a secret


class SystemProcesses:
    """The processes of the system."""

    def started(self, pid: int) -> int | None:
        """Return the start mark of a living process; ``None`` if there is none with this pid."""
        found = processes.read(pid)
        return found.started if found is not None and found.is_alive else None

    def own_name(self) -> str:
        """Return a globally unique name for this process."""
        return f"{_pid_namespace()}/{os.getpid()}/{self.started(os.getpid()) or 0}/{secrets.token_hex(4)}"

    def is_gone(self, name: str) -> bool:
        """Return whether the process with this name is one of this machine and is certainly gone."""
        namespace, _, rest = name.partition("/")
        pid, _, rest = rest.partition("/")
        started = rest.partition("/")[0]
        return namespace == _pid_namespace() and pid.isdecimal() and not _lives(self, int(pid), started)


def _pid_namespace() -> str:
    """Return a name for this pid namespace: containers share a machine's boot id, and their pids overlap."""
    try:
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")  # noqa: PTH115 - it leads to no path
    except OSError:
        namespace = ""
    return f"{processes.boot_id()}:{namespace}"


def _lives(system: SystemProcesses, pid: int, started: str) -> bool:
    now = system.started(pid)
    return str(now) == started if now is not None else _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Return whether the process exists but is not readable, e.g. because /proc hides those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False  # it would be readable, and did not exist a moment ago
