"""Files that are in the workspace for the time of a run: written where nothing is, and removed afterwards.

Nothing of the workspace is overwritten: a path that exists refuses the run. A run that is killed together with its
adapter leaves its files behind, and the next run that needs the same paths is refused until they are removed.
"""

import contextlib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

_MOST_FILES: Final = 2000
_VERSION_CONTROL: Final = frozenset({".git", ".hg", ".svn", ".jj"})
"""Version control runs what is in them, or breaks."""


class PlacementError(Exception):
    """Files cannot be placed, and why."""

    code: Final = "placement_refused"


@contextlib.contextmanager
def placed(workspace: Path, files: Mapping[str, bytes]) -> Iterator[list[tuple[str, str]]]:
    """Have files in a workspace for as long as the context lasts.

    Args:
        workspace: an existing directory.
        files: content by path relative to the workspace.

    Yields:
        Code and message of warnings; complete once the context is over.

    Raises:
        PlacementError: a path exists already, leads through a link, or cannot be written. The workspace is then as it
            was.
    """
    notices: list[tuple[str, str]] = []
    check_files(files)
    root = workspace.resolve() if files else workspace
    written: list[str] = []
    directories: list[Path] = []
    try:
        for path in sorted(files):
            _write(root, path, files[path], written, directories)
        yield notices
    finally:
        for path in reversed(written):
            notices += _remove(root, path, files[path])
        for directory in reversed(directories):
            with contextlib.suppress(OSError):  # the agent has put something into it
                directory.rmdir()


def check_files(files: Mapping[str, bytes]) -> None:
    """Check the paths of files that are to be placed.

    Raises:
        PlacementError: one leads out of the workspace or into version control, or there are too many.
    """
    if len(files) > _MOST_FILES:
        raise PlacementError(f"{len(files)} files are more than the {_MOST_FILES} that may be placed in a workspace")
    for path in files:
        parts = path.split("/")
        if "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts):
            raise PlacementError(f"{path[:80]!r} is not a plain relative path")
        if not _VERSION_CONTROL.isdisjoint(part.lower() for part in parts):
            raise PlacementError(f"{path[:80]!r} is within version control's own files")
        if any(str(parent) in files for parent in PurePosixPath(path).parents):
            raise PlacementError(f"{path[:80]!r} lies below another of the files")


def _write(root: Path, path: str, content: bytes, written: list[str], directories: list[Path]) -> None:
    target = root / path
    try:
        for parent in reversed(PurePosixPath(path).parents[:-1]):
            if _make_directory(root / parent):
                directories.append(root / parent)
        with open(target, "xb") as file:
            written.append(path)
            file.write(content)
    except FileExistsError as error:
        raise PlacementError(
            f"{path} exists already in the workspace; remove it, or leave config.placeInWorkspace unset"
        ) from error
    except OSError as error:
        if path in written:  # in part
            written.remove(path)
            target.unlink()
        raise PlacementError(f"{path} cannot be placed in the workspace: {error.strerror}") from error


def _make_directory(directory: Path) -> bool:
    """Make a directory, and return whether it was missing."""
    try:
        directory.mkdir()
    except FileExistsError:
        if directory.is_symlink() or not directory.is_dir():
            raise
        return False
    return True


def _remove(root: Path, path: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Remove a placed file unless the agent has changed it; yield what is to be reported."""
    target = root / path
    try:
        status = target.lstat()
        is_behind_link = target.parent.resolve() != target.parent
        is_ours = stat.S_ISREG(status.st_mode) and status.st_size == len(content) and not is_behind_link
        if is_ours and target.read_bytes() == content:
            target.unlink()
        else:
            yield "workspace_file_changed", f"{path}, which was placed for this run, was changed; it stays as it is."
    except (FileNotFoundError, NotADirectoryError):
        return  # the agent has removed it
    except OSError as error:
        yield "workspace_files_left", f"{path}, which was placed for this run, cannot be removed: {error.strerror}."
