"""A directory in which no link is followed: every step is taken from an open directory, not by a path.

An agent works in the same place at the same time. What was a directory when it was looked at may be a link to
somewhere else a moment later; by paths, one would then write there.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from dragoman.sdk._placement_plan import CHANGED, PlacementError, digest_of

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of one file that is kept aside."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Tree:
    """The files below a directory. A context manager: it holds the directory open."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def has_directory(self, path: str) -> bool:
        """Tell whether there is a directory.

        Raises:
            PlacementError: there is something else, a link for example, or on the way there.
        """
        try:
            with self._directory(path):
                return True
        except FileNotFoundError:
            return False

    def make_directory(self, path: str) -> None:
        """Make a directory; that it is there already is fine."""
        with self._parent(path) as (parent, name), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)

    def remove_directory(self, path: str) -> None:
        """Remove a directory if it is empty; else leave it."""
        with contextlib.suppress(OSError, PlacementError), self._parent(path) as (parent, name):
            os.rmdir(name, dir_fd=parent)

    def read(self, path: str) -> tuple[bytes, os.stat_result] | None:
        """Return a file's content and status; None if there is none.

        Raises:
            PlacementError: there is something that is no regular file, or it is too large.
        """
        try:
            with self._parent(path) as (parent, name):
                handle = os.open(name, _READ, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refusal(path, error) from error
        with open(handle, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MOST_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
        if not stat.S_ISREG(status.st_mode):
            raise PlacementError(f"{path} is there already, and is no regular file")
        if len(content) > MOST_BYTES:
            raise PlacementError(f"{path} is there already, and has more than {MOST_BYTES} bytes")
        return content, status

    def digest(self, path: str) -> str | None:
        """Return the digest of what is there; None if nothing is, CHANGED if it is no regular file."""
        try:
            found = self.read(path)
        except PlacementError:
            return CHANGED
        return None if found is None else digest_of(found[0])

    def write(self, path: str, content: bytes, *, mode: int | None = None, mtime_ns: int | None = None) -> None:
        """Put a file there at once, in place of what is there: nobody sees half of it.

        Args:
            path: relative.
            content: its content.
            mode: its permission bits; None: for all to read, as far as the umask allows.
            mtime_ns: its time of change; None: now.
        """
        with self._parent(path) as (parent, name):
            fresh = _fresh_name(name)
            with contextlib.suppress(FileNotFoundError):  # of one that was killed
                os.unlink(fresh, dir_fd=parent)
            with open(os.open(fresh, _WRITE, 0o666 if mode is None else 0o600, dir_fd=parent), "wb") as file:
                file.write(content)
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                if mtime_ns is not None:
                    os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
            os.replace(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)

    def remove(self, path: str) -> None:
        """Remove a file, and what a killed write has left of it; that there is none is fine."""
        self.tidy(path)
        with contextlib.suppress(FileNotFoundError), self._parent(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def tidy(self, path: str) -> None:
        """Remove what a killed write has left of a file."""
        with contextlib.suppress(OSError, PlacementError), self._parent(path) as (parent, name):
            os.unlink(_fresh_name(name), dir_fd=parent)

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        folder, _, name = path.rpartition("/")
        with self._directory(folder) as directory:
            yield directory, name

    @contextlib.contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        handle = os.dup(self._root)
        try:
            for part in filter(None, path.split("/")):
                try:
                    inner = os.open(part, _DIRECTORY, dir_fd=handle)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    raise _refusal(path, error) from error
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)


def _fresh_name(name: str) -> str:
    return f".{name[:200]}.dragoman-new"


def _refusal(path: str, error: OSError) -> PlacementError:
    # A link is ELOOP, and for a directory on some systems ENOTDIR.
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return PlacementError(f"{path} is a link or lies behind one, or behind a file; neither is followed")
    return PlacementError(f"{path} cannot be used: {error.strerror}")
