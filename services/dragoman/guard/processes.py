"""The process table: parents, start marks and states.

On Linux it is read from ``/proc``. Elsewhere from `psutil`, imported on first use; the guard's
launcher leaves site-packages visible there.
"""

from __future__ import annotations

import os
import sys

from dragoman.guard.plain_signal import signal
from dragoman.guard.process import Process

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Iterable

if sys.platform == "linux":
    from dragoman.guard._proc_table import boot_id, carries, original_environment, pids, read, variable
else:
    from dragoman.guard._psutil_table import boot_id, carries, original_environment, pids, read, variable

__all__ = [
    "boot_id",
    "carriers",
    "carries",
    "descendants",
    "original_environment",
    "pids",
    "read",
    "send",
    "snapshot",
    "variable",
]


def snapshot() -> dict[int, Process]:
    """Return all processes by pid, highest pid first; processes that end meanwhile are left out."""
    rows = ((pid, read(pid)) for pid in pids())
    return {pid: row for pid, row in rows if row is not None}


def descendants(table: dict[int, Process], roots: Iterable[int]) -> list[Process]:
    """Return the living processes beneath `roots`, in the table's order; roots are not included."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return [process for pid, process in table.items() if pid in found and process.is_alive]


def carriers(entry: bytes) -> list[int]:
    """Return the pids of all processes started with this ``NAME=value``, ourselves excluded."""
    own = os.getpid()
    return [pid for pid in pids() if pid != own and carries(pid, entry)]


def send(process: Process, signum: int) -> bool:
    """Signal exactly this process; False if it is gone or not ours to signal.

    Where the system has pid descriptors, the start mark is checked on the process that gets the
    signal; elsewhere a short race between check and signal remains.
    """
    try:
        fd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError:
        return False
    except OSError:
        fd = -1  # a kernel or sandbox without pid descriptors
    try:
        current = read(process.pid)
        if current is None or current.started != process.started:
            return False
        if fd >= 0 and sys.platform == "linux":
            signal.pidfd_send_signal(fd, signum)
        else:
            os.kill(process.pid, signum)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True
