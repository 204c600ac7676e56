"""The processes of the machine."""

import os
import secrets

from dragoman.guard import processes


class SystemProcesses:
    """Processes as the system tells of them."""

    def started(self, pid: int) -> int | None:
        """Return the start mark of a living process; ``None`` if there is none with this pid."""
        found = processes.read(pid)
        return found.started if found is not None and found.is_alive else None

    def own_name(self) -> str:
        """Return a name for this process that no other has, here or elsewhere."""
        return f"{_place()}/{os.getpid()}/{self.started(os.getpid()) or 0}/{secrets.token_hex(4)}"

    def is_gone(self, name: str) -> bool:
        """Tell whether the process with this name was one of this machine and is surely gone."""
        place, _, rest = name.partition("/")
        pid, _, rest = rest.partition("/")
        started = rest.partition("/")[0]
        return place == _place() and pid.isdecimal() and not _lives(self, int(pid), started)


def _place() -> str:
    """Return what pids belong to: containers share a machine's boot, and number their processes alike."""
    try:
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")  # noqa: PTH115 - it leads to no path
    except OSError:
        namespace = ""
    return f"{processes.boot_id()}:{namespace}"


def _lives(system: SystemProcesses, pid: int, started: str) -> bool:
    now = system.started(pid)
    return str(now) == started if now is not None else _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Tell whether there is such a process that may not be looked at, as where /proc hides those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False  # it may be looked at, and was not there just now
