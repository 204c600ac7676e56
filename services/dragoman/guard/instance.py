"""The instance file, by which a router finds a running adapter, also one that another router started.

The file is JSON. The guard holds a lock on ``FILE.lock`` beside it as long as it lives. A free lock
means that the guard was killed: clean up the processes that the file names (after comparing boot id
and start marks) and remove it.
"""

from __future__ import annotations

import fcntl
import os
import time

from dragoman.guard.control import encode
from dragoman.guard.process import Process
from dragoman.guard.processes import boot_id, read

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

FORMAT = 1
"""Version of the file's content; fields are only added."""


class LockedError(Exception):
    """Another guard holds the lock of this instance file."""


class Instance:
    """The content of an instance file.

    Attributes:
        instance_id: Chosen by the launcher.
        guard: (pid, start mark) of the guard.
        adapter: (pid, start mark) of the guarded command.
        boot_id: The boot that pids and start marks belong to.
        control: Path of the guard's control socket.
        listen: Address that the adapter was started to listen on.
        log: Path of its rotated log.
        started_at: When it was started, seconds since the epoch.

    Raises:
        KeyError: A field is missing.
        TypeError: One is not what it should be.
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

    def __init__(self, content: dict[str, Any]) -> None:
        self.instance_id: str = content["instance_id"]
        self.guard: tuple[int, int] = (content["guard"]["pid"], content["guard"]["started"])
        self.adapter: tuple[int, int] = (content["adapter"]["pid"], content["adapter"]["started"])
        self.boot_id: str = content["boot_id"]
        self.control: str = content["control"]
        self.listen: str = content["listen"]
        self.log: str = content["log"]
        self.started_at: float = content["started_at"]

    def is_current(self, named: tuple[int, int]) -> bool:
        """Whether the process that the file names by pid and start mark is running now."""
        pid, started = named
        process = read(pid) if self.boot_id == boot_id() else None
        return process is not None and process.started == started and process.is_alive


class InstanceFile:
    """The guard's side: acquires the lock, writes the file, removes both at the end.

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
            os.write(fd, encode(content))
        finally:
            os.close(fd)
        os.replace(fresh, self._path)  # noqa: PTH105 - pathlib costs the guard 4 ms of start-up

    def remove(self) -> None:
        """Remove the file, then the lock."""
        for path in (self._path, _lock_path(self._path)):
            try:
                os.unlink(path)  # noqa: PTH108 - as above
            except OSError:
                continue  # another process removed it; the guard has to end in any case
        os.close(self._lock)


def read_instance(path: str) -> Instance | None:
    """Read an instance file; None if it is missing, truncated, or of an unknown format."""
    import json  # noqa: PLC0415 - the guard only writes such files, and starts sooner without it

    try:
        with open(path, "rb") as file:
            return Instance(json.load(file))
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
            # The previous holder may have removed the file between the two calls: a lock on an
            # unlinked file excludes no other guard.
            if os.path.samestat(os.fstat(fd), os.stat(lock_path)):  # noqa: PTH116 - as above
                return fd
        except BlockingIOError:
            os.close(fd)
            raise LockedError(f"another guard holds the lock {lock_path}") from None
        except FileNotFoundError:
            pass
        os.close(fd)
