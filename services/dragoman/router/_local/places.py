"""Where a router keeps its files.

The *state directory* outlives it: logs of adapters, the cache of detections. The *runtime directory* is its own
while it runs: sockets, and the guards' instance files. It lies in a folder shared by this user's routers, so that
the next one can clear up after one that was killed.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import structlog
from dragoman.guard import processes
from dragoman.guard.instance import Instance, is_guarded, read_instance

_SOCKET_LIMIT = 103
"""macOS's limit for a socket's path; Linux allows 107."""
_ROOM = len("/r-00000000/") + 40
"""What is added to the shared folder's path, at most."""
_LOCK = "lock"

_log = structlog.get_logger("dragoman.router")


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of one router; all exist and are open to this user only."""

    runtime: Path
    """For sockets; its path is short enough for them."""
    logs: Path
    detections: Path
    """The file with cached detections."""
    runs: Path
    """The file with the run log, where no database is configured."""


@contextlib.contextmanager
def hold_places(state_dir: Path | None) -> Iterator[Places]:
    """Make the directories, and take the runtime directory away again.

    Args:
        state_dir: the state directory; ``None`` for the user's own. The runtime directory lies in it, if it was
            given and its path is short enough.

    Raises:
        OSError: a directory cannot be made.
    """
    state = state_dir or platformdirs.user_state_path("dragoman")
    logs = state / "logs"
    _private_directory(state)
    _private_directory(logs)
    with _runtime(_shared_runtime(state_dir)) as runtime:
        yield Places(runtime, logs, state / "detections.json", state / "runs.db")


def _users_runtime() -> list[Path]:
    # Where there is none of the user's own, platformdirs warns and names one that anybody may make first.
    return [platformdirs.user_runtime_path("dragoman")] if os.environ.get("XDG_RUNTIME_DIR") else []


@contextlib.contextmanager
def _runtime(shared: Path | None) -> Iterator[Path]:
    """Own a runtime directory, held by a lock that ends with the process."""
    if shared is None:
        path = _temporary()
    else:
        clear_up(shared)
        path = shared / f"new-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if shared is not None:
            # Only now is it found by others that start, who would take it for one that a dead router has left.
            path = path.rename(shared / path.name.replace("new-", "r-"))
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _temporary() -> Path:
    path = Path(tempfile.mkdtemp(prefix="dragoman-"))
    if len(os.fsencode(path)) + _ROOM > _SOCKET_LIMIT:
        path.rmdir()
        path = Path(tempfile.mkdtemp(prefix="dragoman-", dir="/tmp"))
    return path


def _shared_runtime(state_dir: Path | None) -> Path | None:
    """Return a folder for runtime directories; ``None`` if there is none that is private and short enough."""
    if state_dir is not None:
        candidates = [state_dir / "run"]
    else:
        candidates = [*_users_runtime(), platformdirs.user_state_path("dragoman") / "run"]
    for path in candidates:
        if len(os.fsencode(path)) + _ROOM > _SOCKET_LIMIT:
            continue
        try:
            _private_directory(path)
        except OSError:
            continue  # the next one, or one of our own in the end
        return path
    return None


def _private_directory(path: Path) -> None:
    """See to it that this directory exists and only this user can enter it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def clear_up(shared: Path) -> None:
    """Remove what routers that were killed have left here, but for adapters whose guards still live.

    A guard ends its adapter by itself; an adapter whose guard was killed too is killed here.
    """
    for path in sorted(shared.glob("r-*")):
        with _abandoned(path) as is_abandoned:
            if not is_abandoned:
                continue
            instances = sorted(path.glob("*.json"))
            if any(is_guarded(str(instance)) for instance in instances):
                continue
            for instance in instances:
                _end_unguarded(read_instance(str(instance)))
            shutil.rmtree(path, ignore_errors=True)
            _log.info("runtime directory of a dead router removed", directory=path.name)


def _end_unguarded(instance: Instance | None) -> None:
    if instance is None or not instance.is_current(instance.adapter):
        return
    process = processes.read(instance.adapter[0])
    if process is not None and process.started == instance.adapter[1]:
        processes.send(process, signal.SIGKILL)
        _log.warning("adapter without guard killed", pid=process.pid)


@contextlib.contextmanager
def _abandoned(path: Path) -> Iterator[bool]:
    """Tell whether nobody holds a runtime directory; it is held while the block runs, if so."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False  # just being made, or not a router's at all
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
