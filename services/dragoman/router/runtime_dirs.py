"""The directories of a router.

The *state directory* outlives it: adapter logs, caches of detections and descriptions, the run log. The *runtime
directory* belongs to one running router: sockets, and the guards' instance files. It lies in a folder that the
user's routers share, so that the next router can clean up after one that was killed.
"""

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import platformdirs
from dragoman.guard import processes
from dragoman.guard.instance import Instance, is_guarded, read_instance
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.logs import Logger
from dragoman.protocol.private import make_private_directory

_SOCKET_LIMIT = 103
"""macOS's limit for a socket's path; Linux allows 107."""
_RESERVED_BYTES = len("/r-00000000/") + 40
"""The most bytes that are added to the shared folder's path."""
_LOCK = "lock"

_log = Logger("dragoman.router")


class RuntimeDirs(NamedTuple):
    """Directories of one router; all exist and are accessible to this user only."""

    runtime: Path
    """For sockets, whose paths have to be short."""
    logs: Path
    detections: Path
    """The file with cached detections."""
    descriptions: Path
    """The folder with cached descriptions of adapters; created on first use."""
    runs: Path
    """The file with the run log, unless another database is configured."""


@contextlib.contextmanager
def open_runtime_dirs(state_dir: Path | None) -> Iterator[RuntimeDirs]:
    """Create the directories; remove the runtime directory at the end of the block.

    Args:
        state_dir: the state directory; ``None`` for the user's default. If it is given and its path is short enough,
            the runtime directory lies in it.

    Raises:
        OSError: a directory cannot be created.
        AddressError: a directory belongs to another user, or other users could replace it.
    """
    state = state_dir or platformdirs.user_state_path("dragoman")
    logs = state / "logs"
    make_private_directory(state)
    make_private_directory(logs)
    with _runtime(_shared_runtime(state_dir)) as runtime:
        yield RuntimeDirs(runtime, logs, state / "detections.json", state / "descriptions", state / "runs.db")


def _users_runtime() -> list[Path]:
    # Without XDG_RUNTIME_DIR platformdirs warns, and returns a path that another user could create first.
    return [platformdirs.user_runtime_path("dragoman")] if os.environ.get("XDG_RUNTIME_DIR") else []


@contextlib.contextmanager
def _runtime(shared: Path | None) -> Iterator[Path]:
    """Create a runtime directory and lock it for as long as the process lives."""
    if shared is None:
        path = _temporary()
    else:
        remove_stale(shared)
        path = shared / f"new-{os.urandom(4).hex()}"
        path.mkdir(mode=0o700)
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if shared is not None:
            # Visible to other routers only once it is locked; they would remove an unlocked one as stale.
            path = path.rename(shared / path.name.replace("new-", "r-"))
        yield path
    finally:
        _remove(path)
        os.close(lock)


def _remove(path: Path) -> None:
    import shutil  # noqa: PLC0415 - an adapter may be waited for

    shutil.rmtree(path, ignore_errors=True)


def _temporary() -> Path:
    import tempfile  # noqa: PLC0415 - of use only here

    path = Path(tempfile.mkdtemp(prefix="dragoman-"))
    if len(os.fsencode(path)) + _RESERVED_BYTES > _SOCKET_LIMIT:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix="dragoman-", dir="/tmp"))
    return path


def _shared_runtime(state_dir: Path | None) -> Path | None:
    """Return a folder for runtime directories; ``None`` if no private one has a short enough path."""
    if state_dir is not None:
        candidates = [state_dir / "run"]
    else:
        candidates = [*_users_runtime(), platformdirs.user_state_path("dragoman") / "run"]
    for path in candidates:
        if len(os.fsencode(path)) + _RESERVED_BYTES > _SOCKET_LIMIT:
            continue
        try:
            make_private_directory(path)
        except (OSError, AddressError):
            continue  # try the next one, finally a temporary directory
        return path
    return None


def remove_stale(shared: Path) -> None:
    """Remove the runtime directories of killed routers, except those of adapters whose guards are alive.

    A guard stops its adapter by itself; this kills an adapter whose guard was killed, too.
    """
    for path in sorted(shared.glob("r-*")):
        with _abandoned(path) as is_abandoned:
            if not is_abandoned:
                continue
            instances = sorted(path.glob("*.json"))
            if any(is_guarded(str(instance)) for instance in instances):
                continue
            for instance in instances:
                _kill_unguarded(read_instance(str(instance)))
            _remove(path)
            _log.info("stale runtime directory removed", directory=path.name)


def _kill_unguarded(instance: Instance | None) -> None:
    if instance is None or not instance.is_current(instance.adapter):
        return
    process = processes.read(instance.adapter[0])
    if process is not None and process.started == instance.adapter[1]:
        processes.send(process, signal.SIGKILL)
        _log.warning("unguarded adapter killed", pid=process.pid)


@contextlib.contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Yield whether a runtime directory is abandoned; if it is, lock it while the block runs."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False  # not locked yet, or not a router's directory
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
