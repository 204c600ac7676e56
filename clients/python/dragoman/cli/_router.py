"""Routers of our own: the one behind ``dragoman run``, and ``dragoman serve``.

The only place of the command line that knows `dragoman.router`.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from dragoman.cli._failures import Complaint
from dragoman.cli._problem import ProblemError
from dragoman.cli._summary import EXIT_FAILED, EXIT_USAGE
from dragoman.protocol.addresses import AddressError, parse_address
from dragoman.protocol.logs import configure_logs
from dragoman.router.app import Router, RouterConfig, StoreError, run_router

__all__ = ["RouterConfig", "embedded_router", "serve"]

_PREFIX: Final = "dragoman-"
_SOCKET: Final = "router.sock"
_NEW_S: Final = 60.0
"""A folder that is no older may be one whose socket is just being made."""


@contextlib.asynccontextmanager
async def embedded_router(*, debug: bool = False) -> AsyncIterator[str]:
    """Run a router in this process, on a private socket; yields its address.

    Whatever it launched is gone when the block ends.

    Args:
        debug: show its log.

    Raises:
        ProblemError: its directories cannot be made, or the run log cannot be used.
    """
    configure_logs("console", level="info" if debug else "critical")
    async with contextlib.AsyncExitStack() as held:
        try:
            parent = Path(_short_directory() or tempfile.gettempdir())
            _tidy(parent)
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent))
            # It is there for one command only: what other routers have left is for one that stays.
            config = RouterConfig(listen=(f"unix:{Path(folder) / _SOCKET}",), takes_over=False)
            router = await held.enter_async_context(Router(config))
        except OSError as error:
            raise ProblemError(_no_directory(error)) from error
        except StoreError as error:
            raise ProblemError(_no_log(error)) from error
        yield router.addresses[0]


def _tidy(parent: Path) -> None:
    """Remove the folders of routers of ours that were killed: whose socket's lock nobody holds any more."""
    for lock in parent.glob(f"{_PREFIX}*/{_SOCKET}.lock"):
        with contextlib.suppress(OSError):
            made = lock.parent.lstat()
            if stat.S_ISDIR(made.st_mode) and made.st_uid == os.getuid() and time.time() - made.st_mtime > _NEW_S:
                _remove_unless_locked(lock)


def _remove_unless_locked(lock: Path) -> None:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent)
    finally:
        os.close(descriptor)


def _no_directory(error: OSError) -> Complaint:
    return Complaint(
        f"cannot make the directory {error.filename}: {error.strerror}" if error.filename else str(error),
        hint="set XDG_STATE_HOME to a folder that can be written, or give 'dragoman serve' a --state-dir",
        exit_code=EXIT_USAGE,
    )


def _no_log(error: StoreError, run_log: str = "") -> Complaint:
    hint = "set XDG_STATE_HOME to another folder, or give 'dragoman serve' another --run-log or --state-dir"
    if "full" in str(error):
        hint = f"free its disk, or {hint}"
    if "://" in run_log:
        hint = "" if error.is_lasting else "see that the server of --run-log is up and lets this user in"
    return Complaint(str(error), hint=hint, exit_code=EXIT_FAILED)


def _short_directory() -> str | None:
    """Return where temporary directories may be: the usual place, unless its path is too long for a socket."""
    try:
        parse_address(f"unix:{tempfile.gettempdir()}/dragoman-XXXXXXXX/router.sock")
    except AddressError:
        return "/tmp"  # noqa: S108 - a fresh directory of mode 0700 is made in it
    return None


def serve(config: RouterConfig) -> None:
    """Run a router until SIGTERM or SIGINT, and say on standard output where it listens.

    Raises:
        AddressError: an address is taken, or would need TLS.
        ProblemError: its directories cannot be made, or the run log cannot be used.
        OSError: standard output is gone.
    """
    is_ready = False

    def announce(addresses: Sequence[str]) -> None:
        nonlocal is_ready
        is_ready = True
        _announce(addresses)

    try:
        run_router(config, on_ready=announce)
    except OSError as error:
        if is_ready:
            raise
        raise ProblemError(_no_directory(error)) from error
    except StoreError as error:
        raise ProblemError(_no_log(error, config.run_log)) from error


def _announce(addresses: Sequence[str]) -> None:
    sys.stdout.write("".join(f"listening on {address}\n" for address in addresses))
    sys.stdout.flush()
