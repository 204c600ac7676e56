"""The table of processes where there is no ``/proc``; the same functions by means of psutil."""

from __future__ import annotations

import os

import psutil
from dragoman.guard.process import Process

_STATES = {
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_RUNNING: "R",
}


def pids() -> list[int]:
    """Return all process ids, in descending order, which is roughly newest first."""
    return sorted(psutil.pids(), reverse=True)


def read(pid: int) -> Process | None:
    """Return the entry of one process; None if there is no such process or it is not readable."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return Process(
                pid,
                ppid=process.ppid(),
                pgrp=os.getpgid(pid),
                session=_session(pid),
                state=_STATES.get(process.status(), "S"),
                # Microseconds: exact enough to distinguish processes that reuse a pid, and an integer.
                started=round(process.create_time() * 1e6),
            )
    except (psutil.Error, OSError):
        return None


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except PermissionError:  # some systems reveal it only within the caller's session
        return 0


def carries(pid: int, entry: bytes) -> bool:
    """Whether the process was started with this ``NAME=value``; False when not to be known."""
    name, _, value = os.fsdecode(entry).partition("=")
    try:
        return psutil.Process(pid).environ().get(name) == value
    except (psutil.Error, OSError):
        return False


def variable(pid: int, name: str) -> str | None:
    """Return what this variable was when the process started, empty if it was not set; None if that is not known."""
    try:
        return psutil.Process(pid).environ().get(name, "")
    except (psutil.Error, OSError):
        return None


def boot_id() -> str:
    """Return what names this boot of the machine: the second it happened."""
    return f"booted-{round(psutil.boot_time())}"


def original_environment() -> dict[bytes, bytes]:
    """Return our own environment; in a C locale it has an LC_CTYPE more than we were given."""
    return dict(os.environb)
