"""The table of processes on Linux, read from ``/proc``."""

from __future__ import annotations

import os

from dragoman.guard.process import Process


def pids() -> list[int]:
    """Return all process ids of this pid namespace, in descending order, which is roughly newest first."""
    names = os.listdir("/proc")  # noqa: PTH208 - pathlib costs the guard 4 ms of start-up
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def read(pid: int) -> Process | None:
    """Return the entry of one process; None if there is no such process."""
    stat = _read_bytes(f"/proc/{pid}/stat")
    if not stat:
        return None
    # The command's name stands in parentheses and may hold any byte, parentheses included.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(
        pid,
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        state=chr(fields[0][0]),
        started=int(fields[19]),
    )


def carries(pid: int, entry: bytes) -> bool:
    """Whether the process was started with this ``NAME=value`` in its environment.

    False when that cannot be known: it is gone, belongs to another user, or is just starting.
    """
    environment = _read_bytes(f"/proc/{pid}/environ")
    return entry in environment and entry in environment.split(b"\0")


def variable(pid: int, name: str) -> str | None:
    """Return what this variable was when the process started, empty if it was not set; None if that is not known.

    A process that is just starting seems to have no variables for a moment.
    """
    try:
        environment = _read(f"/proc/{pid}/environ")
    except OSError:
        return None
    found = (entry for entry in environment.split(b"\0") if entry.startswith(os.fsencode(name) + b"="))
    return os.fsdecode(next(found, b"").partition(b"=")[2])


def boot_id() -> str:
    """Return what names this boot of the machine; start marks are worth nothing beyond it."""
    return _read_bytes("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def original_environment() -> dict[bytes, bytes]:
    """Return the environment this process was started with.

    ``os.environ`` will not do: in a C locale the interpreter adds LC_CTYPE to it (PEP 538),
    and what a guarded command sees must not depend on the guard.
    """
    entries = _read_bytes("/proc/self/environ").split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry[1:])
    return {name: value for name, _, value in pairs} or dict(os.environb)


def _read_bytes(path: str) -> bytes:
    """Read a whole small file of the kernel; empty if it is gone or not ours to read."""
    try:
        return _read(path)
    except OSError:
        return b""


def _read(path: str) -> bytes:
    """Read a whole small file of the kernel."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
