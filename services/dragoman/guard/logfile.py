"""A log file rotated by size: ``name``, then ``name.1`` (newest) to ``name.K`` (oldest)."""

from __future__ import annotations

import os


class RotatedLog:
    """Append-only bytes on disk, bounded in size. Writing never fails and never blocks for long.

    Output that cannot be written (disk full, folder gone) is dropped and counted, and the count is
    written as soon as writing succeeds again: a full disk must not block the program.

    Args:
        path: The current file; created with mode 0600.
        limit: Bytes a file may hold; it is rotated before it would grow beyond.
        keep: How many rotated files stay beside the current one; 0 keeps none.
    """

    def __init__(self, path: str, *, limit: int, keep: int) -> None:
        self._path = path
        self._limit = limit
        self._keep = keep
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Append output; rotate between lines when the file is full."""
        try:
            if self._dropped:
                note = b"dragoman-guard: %d bytes of output could not be logged\n" % self._dropped
                self._append(note)
                self._dropped = 0
            while data:
                data = data[self._append_some(data) :]
        except OSError:
            self._dropped += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append_some(self, data: bytes) -> int:
        """Append what fits into the current file, or rotate a full one; return the bytes appended."""
        room = self._limit - self._size
        if len(data) <= room:
            return self._append(data)
        cut = data.rfind(b"\n", 0, max(room, 0)) + 1
        if cut:
            return self._append(data[:cut])
        if self._size:
            self._rotate()
            return 0
        return self._append(data[:room])

    def _append(self, data: bytes) -> int:
        written = os.write(self._fd, data)
        self._size += written
        return written

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            older = f"{self._path}.{number}"
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            if os.path.exists(newer):  # noqa: PTH110 - pathlib costs the guard 4 ms of start-up
                os.replace(newer, older)  # noqa: PTH105 - as above
        if not self._keep:
            os.truncate(self._fd, 0)
        fd = self._open()
        os.close(self._fd)
        self._fd = fd
        self._size = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
