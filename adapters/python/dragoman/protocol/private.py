"""Paths that no other user of this machine can replace, the router's default address, and the user's token.

A Unix socket is as safe as the directories that lead to it: who can rename or replace one of them can put a socket of
their own there. So both sides check the whole chain, and neither uses a socket that lies directly in a directory that
others can write, sticky or not: it could be taken as soon as its server ends.

The token is one per user. Every server of this user that listens on TCP asks for it; it lies in a file that only the
user can read.
"""

import base64
import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dragoman.protocol.addresses import AddressError, connected

TOKEN_VARIABLE: Final = "DRAGOMAN_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with a token: what a client sends, what a server asks for, instead of the file's."""
ROUTER_VARIABLE: Final = "DRAGOMAN_ROUTER"
"""Environment variable with the router's address, for clients."""

_SOCKET_LIMIT: Final = 103
"""The longest path of a socket on every system."""
_LINKS: Final = 40
"""As many symbolic links are followed, as by Linux."""
_TOKEN_BYTES: Final = 512
_MOST_BYTES: Final = 1 << 20
_SHORTEST_TOKEN: Final = 16


def default_address() -> str:
    """Return where this user's router listens, and clients look for it, if nothing else is said."""
    return f"unix:{_default_directory() / 'router.sock'}"


def make_default_directory() -> None:
    """See to it that the directory of the default address exists and only this user can enter it.

    Raises:
        AddressError: it cannot be made, or is another user's.
    """
    _make_private_directory(_default_directory())


def _make_private_directory(path: Path) -> None:
    try:
        make_private_directory(path)
    except OSError as error:
        raise AddressError(f"cannot make the directory {path}: {error.strerror}") from error


def user_state_path() -> Path:
    """Return the directory of what this user's processes keep from one start to the next."""
    import platformdirs  # noqa: PLC0415 - an adapter that a router starts is given its paths

    return platformdirs.user_state_path("dragoman")


def _default_directory() -> Path:
    candidates = [user_state_path() / "run", Path(f"/tmp/dragoman-{os.geteuid()}")]  # noqa: S108 - checked before it is used
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    # After su, the variable may still name the directory of the user before.
    with contextlib.suppress(OSError):
        if Path(base).is_absolute() and Path(base).stat().st_uid == os.geteuid():
            candidates.insert(0, Path(base) / "dragoman")
    fitting = (path for path in candidates if len(os.fsencode(path / "router.sock")) <= _SOCKET_LIMIT)
    return next(fitting, candidates[-1])


def make_private_directory(path: Path) -> None:
    """See to it that a directory exists, that only this user can enter it, and that no other user can replace it.

    Raises:
        AddressError: it is another user's, or others could replace it. Or it is meant for all, as /tmp is: others may
            have put something into it, and need it as it is.
        OSError: it cannot be made.
    """
    path = path.absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _close_to_others(path)
    make_checked_directory(path)
    if (uid := path.stat().st_uid) != os.geteuid():
        raise AddressError(f"{path} is no directory of yours (it belongs to uid {uid}); remove it, or choose another")


def make_checked_directory(path: Path) -> None:
    """See to it that a directory exists, in which and in whose place no other user can put something.

    One that is made is this user's alone; one that exists keeps its rights, as it may have other uses.

    Raises:
        AddressError: others can write it, or could replace it.
        OSError: it cannot be made.
    """
    path = path.absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_chain(f"{path}/.new", str(path))


def _close_to_others(path: Path) -> None:
    """Take the rights of others away from a directory, unless it is another user's or meant for all."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_uid == os.geteuid() and found.st_mode & 0o077 and not found.st_mode & (stat.S_ISVTX | 0o002):
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)


def check_socket_path(path: str) -> None:
    """Refuse a socket that another user could replace or has made. What does not exist yet is fine.

    Raises:
        AddressError: the text names what is wrong, and what to do.
    """
    try:
        last = _check_chain(path, f"unix:{path}")
    except OSError as error:
        raise AddressError(f"unix:{path} cannot be checked: {error.strerror}: {error.filename}") from error
    if last is not None and not stat.S_ISSOCK(last.st_mode):
        raise AddressError(f"unix:{path}: something is there that is no socket of this server; choose another path")


def _check_chain(path: str, name: str) -> os.stat_result | None:
    """Check each directory and link on the way; return what is at the end, ``None`` if nothing is."""
    here = "/"
    todo = [part for part in path.split("/") if part and part != "."]
    links = 0
    while todo:
        directory = Path(here).stat()
        entry = os.path.normpath(f"{here.rstrip('/')}/{todo[0]}")
        found = _lstat(entry)
        _check_directory(name, here, directory, is_last=len(todo) == 1 or found is None)
        if found is None:
            return None
        if not is_trusted_user(found.st_uid):
            raise AddressError(
                f"{name}: {entry} belongs to uid {found.st_uid}, and not to you (uid {os.geteuid()}) or root; "
                "use a path in a directory of your own"
            )
        todo.pop(0)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                raise AddressError(f"{name}: too many symbolic links")
            target = str(Path(entry).readlink())
            here = "/" if target.startswith("/") else here
            todo[:0] = [part for part in target.split("/") if part and part != "."]
        elif todo:
            here = entry
        else:
            return found
    return Path(here).stat()


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _check_directory(name: str, directory: str, found: os.stat_result, *, is_last: bool) -> None:
    """Check a directory on the way to a path.

    Args:
        name: how the error calls the path.
        directory: the directory.
        found: what is known of it.
        is_last: whether the next name on the way is the last, or is not there: then others must not be able to
            create it.
    """
    is_shared = bool(found.st_mode & 0o022)
    if not is_shared or (found.st_mode & stat.S_ISVTX and not is_last):
        return
    raise AddressError(
        f"{name}: other users can write to {directory} (mode {stat.S_IMODE(found.st_mode):04o}) and could put "
        "something of their own there; use a directory that only you can write, e.g. one made by mktemp -d"
    )


def is_trusted_user(uid: int) -> bool:
    """Return whether this is our own user, or the administrator."""
    return uid in {0, os.geteuid()}


def open_lock(path: str) -> int:
    """Open a lock file, creating it if need be; follows no link and believes no other user's file.

    Raises:
        OSError: it cannot be opened or created.
        AddressError: it is not this user's own file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and is_trusted_user(found.st_uid) and found.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    raise AddressError(f"{path} is no lock file of yours (uid {found.st_uid}, {found.st_nlink} links); remove it")


@contextlib.contextmanager
def hold_socket_path(path: str) -> Iterator[None]:
    """Own a socket's path while the block runs; no other user can take it.

    A second bind on the same path would silently unlink a live server's socket; so an flock on ``path.lock``
    comes first. The lock file stays: removing it would let two owners lock different files.

    Raises:
        AddressError: another server has it, other users can write its directory, or this user cannot.
    """
    check_socket_path(path)
    lock_path = f"{path}.lock"
    try:
        descriptor = open_lock(lock_path)
    except OSError as error:
        why = "it is a symbolic link; remove it" if error.errno == errno.ELOOP else error.strerror
        raise AddressError(f"cannot create {lock_path}: {why}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _process_at(path)
            is_it = f"; it is process {pid}" if pid else ""
            message = f"another server listens on unix:{path}{is_it}. Use it, stop it, or choose another path"
            raise AddressError(message) from error
        yield
    finally:
        os.close(descriptor)


def _process_at(path: str) -> int:
    """Return the ID of the process that listens at a Unix socket; 0 if none does, or where that is not known."""
    if hasattr(socket, "SO_PEERCRED"):
        with contextlib.suppress(OSError), connected(path) as probe:
            return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
    return 0


def read_protected(path: Path) -> bytes:
    """Return what is in a file, of 1 MiB at most, that says who may do what.

    Raises:
        AddressError: it cannot be read, or other users can write it.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not is_trusted_user(found.st_uid) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise AddressError(f"{path} can be written by other users")
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise AddressError(f"{path} cannot be read: {error.strerror}") from error


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what differs once a file was replaced or written; ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def token_path() -> Path:
    """Return the file with this user's token."""
    return user_state_path() / "token"


def environment_token() -> str:
    """Return the token in ``DRAGOMAN_TOKEN``, without the newline that a file may have added; empty if there is none.

    Raises:
        AddressError: no call can carry it.
    """
    return check_token(os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE)


def check_token(token: str, where: object) -> str:
    """Return a token, or nothing, if calls can carry it as metadata.

    Args:
        token: the token.
        where: where it was found, for the error.

    Raises:
        AddressError: it holds something else than visible ASCII characters.
    """
    if all("!" <= character <= "~" for character in token):
        return token
    raise AddressError(
        f"the token in {where} holds characters that no call can carry; only visible ASCII ones can be"
    )


def read_token() -> str:
    """Return this user's token: what ``DRAGOMAN_TOKEN`` says, else the file's; empty if there is none.

    Raises:
        AddressError: the file is not one that only this user can read, or no call can carry the token.
    """
    return environment_token() or check_token(_read(token_path()), token_path())


def make_token() -> str:
    """Return this user's token, making it if there is none.

    Raises:
        AddressError: it is too short, or the file cannot be made, or others can read it.
    """
    token = read_token()
    if not token:
        path = token_path()
        _make_private_directory(path.parent)
        try:
            _write_new(path, base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode())
        except OSError as error:
            raise AddressError(
                f"cannot keep a token in {path}: {error.strerror}; set XDG_STATE_HOME to a folder that can be "
                f"written, or {TOKEN_VARIABLE} to a token"
            ) from error
        token = _read(path)
    if len(token) < _SHORTEST_TOKEN:
        raise AddressError(
            f"the token has fewer than {_SHORTEST_TOKEN} characters; set {TOKEN_VARIABLE} to a longer one"
        )
    return token


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise AddressError(f"the token in {path} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if not is_own:
            raise AddressError(f"{path} can be read by others; remove it, and a new token is made")
        return os.read(descriptor, _TOKEN_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def _write_new(path: Path, token: str) -> None:
    """Write a file whole, unless another process was faster."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{token}\n".encode())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.close(descriptor)
        fresh.unlink()
