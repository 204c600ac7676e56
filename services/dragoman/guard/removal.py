"""Removing a directory; `shutil` takes longer to import than a guard to start."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable


def remove_tree(path: str) -> None:
    """Remove a directory and all that is in it, as far as that is possible. Links are removed, not followed."""
    if os.path.islink(path):  # noqa: PTH114 - pathlib costs the guard 4 ms of start-up
        return
    pending, folders = [path], []
    while pending:
        folder = pending.pop()
        folders.append(folder)
        for entry in _entries(folder):
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                _try(os.unlink, entry.path)
    for folder in reversed(folders):
        _try(os.rmdir, folder)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _try(remove: Callable[[str], None], path: str) -> None:
    try:
        remove(path)
    except OSError:
        return
