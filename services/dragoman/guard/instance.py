"""The instance file: how a router, also one started later, finds an adapter that is running.

The file is JSON. Beside it lies ``FILE.lock``, which the guard holds locked for life: a file whose
lock is free was left by a guard that was killed, and what it names has to be cleaned up (compare
boot id and start marks first) and removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from dragoman.guard.process import Process
from dragoman.guard.processes import boot_id, read

FORMAT = 1
"""Version of the file's content; it grows by addition only."""


class LockedError(Exception):
    """Another guard lives and holds the lock of this instance file."""


class Instance:
    """What an instance file says.

    Attributes:
        instance_id: Chosen by the launcher.
        guard: (pid, start mark) of the guard.
        adapter: (pid, start mark) of the guarded command.
        boot_id: The boot that pids and start marks belong to.
        control: Path of the guard's control socket.
        listen: Address the adapter was told to listen on.
        log: Path of its rotated log.
        started_at: When it was started, seconds since the epoch.
    """

    __slots__ = (
        "adapter",
        "boot_id",
        "control",
        "guard",
        "instance_id",
        "listen",
        "log",
        "started_at",
    )

    def __init__(
        self,
        *,
        instance_id: str,
        guard: tuple[int, int],
        adapter: tuple[int, int],
        boot_id: str,
        control: str,
        listen: str,
        log: str,
        started_at: float,
    ) -> None:
        self.instance_id = instance_id
        self.guard = guard
        self.adapter = adapter
        self.boot_id = boot_id
        self.control = control
        self.listen = listen
        self.log = log
        self.started_at = started_at

    def is_current(self, named: tuple[int, int]) -> bool:
        """Whether the process that the file names by pid and start mark is running now."""
        pid, started = named
        process = read(pid) if self.boot_id == boot_id() else None
        return process is not None and process.started == started and process.is_alive


class InstanceFile:
    """The guard's side: takes the lock, writes the file, takes both away at the end.

    Raises:
        LockedError: Another guard holds the lock.
        OSError: The folder is missing or not ours to write.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = _lock(path)

    def write(self, leader: Process, *, instance_id: str, control: str, listen: str, log: str) -> None:
        """Write the file whole or not at all, readable by this user only."""
        own = read(os.getpid())
        content = {
            "format": FORMAT,
            "instance_id": instance_id,
            "guard": {"pid": os.getpid(), "started": own.started if own else 0},
            "adapter": {"pid": leader.pid, "started": leader.started},
            "boot_id": boot_id(),
            "control": control,
            "listen": listen,
            "log": log,
            "started_at": round(time.time(), 3),
        }
        fresh = f"{self._path}.{os.getpid()}.new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, json.dumps(content, indent=1).encode() + b"\n")
        finally:
            os.close(fd)
        os.replace(fresh, self._path)  # noqa: PTH105 - pathlib costs the guard 4 ms of start-up

    def remove(self) -> None:
        """Take the file away, then the lock."""
        for path in (self._path, _lock_path(self._path)):
            try:
                os.unlink(path)  # noqa: PTH108 - as above
            except OSError:
                continue  # somebody cleaned up before us; ending is what matters
        os.close(self._lock)


def read_instance(path: str) -> Instance | None:
    """Read an instance file; None when it is missing, cut, or of no format known here."""
    try:
        with open(path, "rb") as file:
            content = json.load(file)
        return Instance(
            instance_id=content["instance_id"],
            guard=(content["guard"]["pid"], content["guard"]["started"]),
            adapter=(content["adapter"]["pid"], content["adapter"]["started"]),
            boot_id=content["boot_id"],
            control=content["control"],
            listen=content["listen"],
            log=content["log"],
            started_at=content["started_at"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_guarded(path: str) -> bool:
    """Whether a living guard holds the lock of this instance file."""
    try:
        fd = os.open(_lock_path(path), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _lock_path(path: str) -> str:
    return f"{path}.lock"


def _lock(path: str) -> int:
    """Return a descriptor that holds the lock."""
    lock_path = _lock_path(path)
    while True:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file between our two calls: a lock on a file
            # that no longer has a name keeps nobody out.
            if os.path.samestat(os.fstat(fd), os.stat(lock_path)):  # noqa: PTH116 - as above
                return fd
        except BlockingIOError:
            os.close(fd)
            raise LockedError(f"another guard holds {lock_path}") from None
        except FileNotFoundError:
            pass
        os.close(fd)
