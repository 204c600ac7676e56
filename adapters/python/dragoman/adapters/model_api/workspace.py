"""The files that the model may touch: those below one directory, whatever it asks for.

Every path is walked component by component from a descriptor of the root, and no component may be a link, so
neither ``..`` nor a link, nor one that is exchanged meanwhile, leads out. What an answer to the model may say is
raised as `RefusedError`.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

MOST_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a file that can be read or edited; more is no text for a model."""
MOST_WRITTEN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of UTF-8 that one call may write."""

_LONGEST_PATH: Final = 4096
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE: Final = 0o666  # less the umask, as everywhere
_SHUT: Final = ".git"
"""What lies in there git runs: who writes it runs commands."""


class RefusedError(Exception):
    """A file that cannot be touched, and why, in words for the model."""


class Written(Struct, frozen=True):
    """What a write did."""

    before: str | None
    """The text before. None: there was no file, or none with text."""
    created: bool


class Workspace:
    """The files below a directory.

    Args:
        root: absolute. It may itself be reached by links: it is the caller's choice.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._roots = tuple(dict.fromkeys((os.path.normpath(root), os.path.realpath(root))))

    def parts(self, path: str) -> tuple[str, ...]:
        """Return the components of a path below the root, which may be given relative or absolute.

        Raises:
            RefusedError: it is outside of the root, or is no path.
        """
        if not path or "\0" in path or len(path) > _LONGEST_PATH or not path.isprintable():
            raise RefusedError("That is no path of a file.")
        parts = path.split("/")
        if ".." in parts:
            raise RefusedError("Paths with '..' are refused; name the file from the working directory.")
        if path.startswith("/"):
            inside = next((root for root in self._roots if _is_below(path, root)), None)
            if inside is None:
                raise RefusedError(f"{path} is outside the working directory.")
            parts = path[len(inside) :].split("/")
        found = tuple(part for part in parts if part not in {"", "."})
        if not found:
            raise RefusedError("That is the working directory itself, not a file.")
        return found

    def absolute(self, path: str) -> str:
        """Return a path for people: absolute, below the root as the request names it.

        Raises:
            RefusedError: it is outside of the root, or is no path.
        """
        return os.path.join(self.root, *self.parts(path))  # noqa: PTH118 - it returns a string

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            RefusedError: there is no such file, it is not text, too large, or cannot be read.
        """
        parts = self.parts(path)
        with _refusals(path), self._folder(parts[:-1]) as folder:
            descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with open(descriptor, "rb") as file:
                _check_regular(os.fstat(file.fileno()), path)
                data = file.read(MOST_READ_BYTES + 1)
        if len(data) > MOST_READ_BYTES:
            raise RefusedError(f"{path} has more than {MOST_READ_BYTES} bytes.")
        return _text(data, path)

    def write(self, path: str, content: str) -> Written:
        """Write a file as a whole; missing directories are created, an existing file keeps its mode.

        The file is replaced atomically: a new one is written beside it, then renamed.

        Raises:
            RefusedError: it cannot be written, or may not.
        """
        parts = self.parts(path)
        if any(part.casefold() == _SHUT for part in parts):
            raise RefusedError(f"Nothing is written in {_SHUT}: git runs what lies there.")
        data = content.encode("utf-8", "replace")
        if len(data) > MOST_WRITTEN_BYTES:
            raise RefusedError(f"The text has more than {MOST_WRITTEN_BYTES} bytes.")
        with _refusals(path), self._folder(parts[:-1], create=True) as folder:
            return _replace(folder, parts[-1], data, path)

    @contextlib.contextmanager
    def _folder(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """Open a directory below the root, without following links."""
        # Only the root may be a link: the model does not choose it.
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, _DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def _is_below(path: str, root: str) -> bool:
    return path.startswith(f"{root.rstrip('/')}/")


@contextlib.contextmanager
def _refusals(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, FileNotFoundError):
            raise RefusedError(f"{path} does not exist.") from error
        raise RefusedError(f"A part of {path} is no directory, or is a link; links are not followed.") from error
    except OSError as error:
        raise RefusedError(f"{path} cannot be used: {_reason(error)}.") from error


def _reason(error: OSError) -> str:
    if error.errno in {errno.ELOOP, errno.EMLINK}:
        return "it is a link, and links are not followed"
    return error.strerror or type(error).__name__


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise RefusedError(f"{path} is a directory.")
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError(f"{path} is no regular file.")


def _text(data: bytes, path: str) -> str:
    if b"\0" not in data:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("utf-8")
    raise RefusedError(f"{path} is a binary file of {len(data)} bytes, not text.")


def _replace(folder: int, name: str, data: bytes, path: str) -> Written:
    before, mode = _existing(folder, name, path)
    beside = f".{name[:100]}.{secrets.token_hex(6)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, _NEW_FILE_MODE, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise
    return Written(before=before, created=mode is None)


def _existing(folder: int, name: str, path: str) -> tuple[str | None, int | None]:
    """Return text and mode of the file to replace; None and None if there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None, None
    if stat.S_ISLNK(status.st_mode):
        raise RefusedError(f"{path} is a link; links are not followed.")
    _check_regular(status, path)
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise RefusedError(f"{path} is read-only.")
    mode = stat.S_IMODE(status.st_mode)
    if status.st_size > MOST_READ_BYTES:
        return None, mode
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        data = file.read(MOST_READ_BYTES)
    with contextlib.suppress(RefusedError):
        return _text(data, path), mode
    return None, mode
