"""One run at a time while a stored login may be renewed.

Several agents renew a login with a refresh token that is good for one use, and write the next one into the file that
they read it from. Two that start at once present the same token twice, by which some services revoke the login. So
a run whose agent may renew its login waits until no other on this host starts with the same one. The lock is an
``flock`` in the user's own state directory: it holds across adapters and routers, and ends with its holder, however
that ends.
"""

import asyncio
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dragoman.protocol.private import user_state_path
from msgspec import Struct

WAIT_LIMIT_S: Final = 120.0
"""Longest wait for other runs. Then a run continues without the lock, with a notice."""
DUE_BEFORE_S: Final = 600.0
"""Agents renew minutes before a login expires; until this long before it, nothing needs a lock."""


class RenewingLogin(Struct, frozen=True):
    """A login in a file that its agent renews by itself."""

    path: Path
    """The file. Links are followed: by different names it is still one login."""
    expires_at: float | None = None
    """Unix seconds; None if it is not known."""

    def is_due(self, now: float) -> bool:
        """Return whether an agent that starts at ``now`` may renew it."""
        return self.expires_at is None or self.expires_at - now <= DUE_BEFORE_S

    @property
    def key(self) -> str:
        """A name for the login that reveals nothing about it."""
        import hashlib  # noqa: PLC0415 - few agents renew a login

        return hashlib.sha256(os.fsencode(os.path.realpath(self.path))).hexdigest()[:32]


def default_folder() -> Path:
    """Return where the locks lie by default."""
    return user_state_path() / "logins"


class HeldLogin:
    """A lock that is held until it is released."""

    def __init__(self, turn: asyncio.Lock, fd: int) -> None:
        self._turn = turn
        self._fd: int | None = fd

    def release(self) -> None:
        """Let the next run start. Harmless if that was done."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._turn.release()


class LoginLocks:
    """The locks of one adapter process. Runs in it take turns first, so that one thread at most waits per login.

    Args:
        folder: where the locks lie. None: ``default_folder``, as it is when first needed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._turns: dict[str, asyncio.Lock] = {}

    async def take(self, login: RenewingLogin, on_wait: Callable[[], None]) -> HeldLogin:
        """Wait for as long as needed until no other run holds a login's lock, and hold it.

        Args:
            login: the login.
            on_wait: called once if another run holds it.

        Raises:
            OSError: there is no lock that could be trusted.
        """
        folder = _private(self._folder or default_folder())
        turn = self._turns.setdefault(login.key, asyncio.Lock())
        callbacks = [on_wait]
        if turn.locked():
            callbacks.pop()()
        await turn.acquire()
        try:
            return HeldLogin(turn, await _lock(folder / f"{login.key}.lock", callbacks))
        except BaseException:
            turn.release()
            raise


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a directory that only its owner can write to")
    return folder


async def _lock(path: Path, callbacks: list[Callable[[], None]]) -> int:
    """Return a descriptor that holds the file's lock until it is closed."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        for callback in callbacks:
            callback()
    except BaseException:
        os.close(fd)
        raise
    else:
        return fd
    locked = _flock_in_thread(fd)
    try:
        await locked
    except BaseException:
        if not locked.cancelled():  # it failed, or was delivered and cancelled in the same moment
            os.close(fd)
        raise
    return fd


def _flock_in_thread(fd: int) -> asyncio.Future[None]:
    """Wait for a lock in a thread, as ``flock`` has no event for its release.

    When the future is cancelled, the thread stays behind, and the descriptor is closed as soon as it has the lock.
    """
    loop = asyncio.get_running_loop()
    locked: asyncio.Future[None] = loop.create_future()

    def deliver(error: OSError | None) -> None:
        if locked.cancelled():
            os.close(fd)
        elif error is not None:
            locked.set_exception(error)
        else:
            locked.set_result(None)

    def wait() -> None:
        error = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(deliver, error)
        except RuntimeError:  # the loop is closed: the waiter is gone
            os.close(fd)

    threading.Thread(target=wait, name="login lock", daemon=True).start()
    return locked
