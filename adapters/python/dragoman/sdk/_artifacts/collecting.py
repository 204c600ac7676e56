"""Finding the files that an agent left, and keeping a copy of each.

The agent chose everything here: names, links, kinds of files, and it may still be writing. So directories are opened
one in the other, no link is followed, nothing but a regular file is read, and what is kept is a copy that the agent
does not know.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

MOST_FILES: Final = 256
LARGEST_FILE: Final = 64 * 1024 * 1024
"""Bytes."""
MOST_BYTES: Final = 256 * 1024 * 1024
"""Bytes of all files of a run together."""
_MOST_ENTRIES: Final = 10_000
"""Entries of directories that are looked at."""
_DEEPEST: Final = 16
_LONGEST_NAME: Final = 1024
"""Bytes of a path."""
_MOST_NAMED: Final = 5
"""Files that were left out and are named."""
_PIECE: Final = 1024 * 1024
_NO_LINK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Bounds(Struct, frozen=True):
    """How much is kept of a run."""

    files: int = MOST_FILES
    file_bytes: int = LARGEST_FILE
    total_bytes: int = MOST_BYTES
    entries: int = _MOST_ENTRIES


class KeptFile(Struct, frozen=True):
    """One file that is kept."""

    artifact: pb.Artifact
    path: Path
    """Of the copy."""


class Collected(Struct):
    """What was found."""

    kept: list[KeptFile] = field(default_factory=list)
    left_out: int = 0
    """Files that are not kept."""
    reasons: list[str] = field(default_factory=list)
    """Of the first of them: name and why."""

    def leave_out(self, name: str, why: str) -> None:
        """Count a file that is not kept."""
        self.left_out += 1
        if len(self.reasons) < _MOST_NAMED:
            self.reasons.append(f"{shown_name(name)} {why}")

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(file.artifact.size for file in self.kept)


class _LeftOutError(Exception):
    """A file is not kept; the text says why."""


def collect(source: Path, target: Path, bounds: Bounds | None = None) -> Collected:
    """Copy the files below a directory, ordered by path.

    Args:
        source: where the agent left them.
        target: an empty directory for the copies, which the agent does not know.
        bounds: how much is kept.

    Raises:
        OSError: the directory itself cannot be read, or a copy not be written.
    """
    limits = bounds or Bounds()
    found = Collected()
    left = [limits.entries]
    top = os.open(source, _NO_LINK | os.O_DIRECTORY)
    try:
        for folder, name, path in _regular_files(top, found, left):
            _keep(folder, name, path, target, found, limits)
    finally:
        os.close(top)
    found.kept.sort(key=lambda file: file.artifact.name)
    return found


def shown_name(name: str) -> str:
    """Return a name without what is not printable, cut."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name[:200])


def _regular_files(
    folder: int, found: Collected, left: list[int], prefix: str = "", depth: int = 0
) -> Iterator[tuple[int, str, str]]:
    """Yield an open directory, a name in it, and the path from the top on, of each regular file that can have one."""
    with os.scandir(folder) as entries:
        names = []
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                found.leave_out(prefix or "the directory", f"has more than {_MOST_ENTRIES} entries with all others")
                break
            names.append(entry.name)
    for name in sorted(names):
        path = f"{prefix}{name}"
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except OSError:  # gone meanwhile
            continue
        if stat.S_ISDIR(mode):
            yield from _inner_files(folder, name, path, found, left, depth)
        elif not stat.S_ISREG(mode):
            found.leave_out(path, "is a link" if stat.S_ISLNK(mode) else "is no regular file")
        elif not path.isprintable() or "\\" in path or len(os.fsencode(path)) > _LONGEST_NAME:
            found.leave_out(path, "has a name that is not safe")
        else:
            yield folder, name, path


def _inner_files(
    folder: int, name: str, path: str, found: Collected, left: list[int], depth: int
) -> Iterator[tuple[int, str, str]]:
    if depth >= _DEEPEST:
        found.leave_out(path, "is too deep")
        return
    try:
        inner = os.open(name, _NO_LINK | os.O_DIRECTORY, dir_fd=folder)
    except OSError:
        found.leave_out(path, "may not be entered")
        return
    try:
        yield from _regular_files(inner, found, left, f"{path}/", depth + 1)
    finally:
        os.close(inner)


def _keep(folder: int, name: str, path: str, target: Path, found: Collected, limits: Bounds) -> None:
    most = min(limits.file_bytes, limits.total_bytes - found.size)
    copy = target / str(len(found.kept))
    if len(found.kept) >= limits.files:
        found.leave_out(path, f"is one more than {limits.files} files")
        return
    try:
        size, digest = _copy(folder, name, copy, most)
    except _LeftOutError as error:
        copy.unlink(missing_ok=True)
        found.leave_out(path, str(error))
        return
    artifact = pb.Artifact(name=path, media_type=media_type(path), size=size, sha256=digest)
    found.kept.append(KeptFile(artifact, copy))


def _copy(folder: int, name: str, copy: Path, most: int) -> tuple[int, str]:
    """Copy a file, and return its size and digest."""
    import hashlib  # noqa: PLC0415 - few runs leave files

    try:
        file = os.open(name, _NO_LINK, dir_fd=folder)
    except OSError:
        raise _LeftOutError("may not be read, or is none any more") from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):  # replaced since it was looked at
        os.close(file)
        raise _LeftOutError("is no regular file")
    digest, size = hashlib.sha256(), 0
    with open(file, "rb", buffering=0) as reader, open(copy, "xb", buffering=0) as writer:
        if status.st_size > most:
            raise _LeftOutError("is too large")
        try:
            while piece := reader.read(min(_PIECE, most - size + 1)):
                size += len(piece)
                if size > most:  # it grows
                    raise _LeftOutError("is too large")
                digest.update(piece)
                _write_all(writer.fileno(), piece)
        except OSError:
            raise _LeftOutError("could not be copied") from None
    copy.chmod(0o400)
    return size, digest.hexdigest()


def _write_all(file: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(file, view) :]


def media_type(name: str) -> str:
    """Return what a file is by its name's ending; empty if that is not known."""
    import mimetypes  # noqa: PLC0415 - as above

    # Only what Python itself knows: a machine's own tables differ.
    return mimetypes.MimeTypes().guess_type(name)[0] or ""
