"""Files of ours in somebody's workspace: which may be placed, what is noted of them, and how they go again. Pure."""

import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from dragoman.sdk._json import JsonObject, JsonValue, compact, parse_json_object

_MOST_FILES: Final = 2000
_NO_PLACE: Final = frozenset({".git", ".hg", ".svn", ".jj"})
"""What is in them is run, or breaks them."""


class PlacementError(Exception):
    """Files cannot be placed, and why."""

    def __init__(self, message: str, *, code: str = "placement_refused") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Original:
    """A file that was there before ours."""

    digest: str
    mode: int
    """Permission bits."""
    mtime_ns: int
    backup: str
    """The name of its copy beside the journal."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A file of ours."""

    path: str
    """Relative to the workspace."""
    digest: str
    original: Original | None = None


@dataclass(frozen=True, slots=True)
class Journal:
    """What a run has placed, or is about to: enough to undo it, however far it came."""

    workspace: str
    run_id: str
    files: tuple[Placed, ...]
    directories: tuple[str, ...]
    """Those that had to be made, outer ones first."""


class Undo(enum.Enum):
    """What becomes of a file of ours."""

    NOTHING = "nothing"
    """It was never placed, or is gone as it should be."""
    REMOVE = "remove"
    RESTORE = "restore"
    """The original comes back."""
    RESTORE_REMOVED = "restore_removed"
    """So it does, though somebody has removed ours; that is told."""
    LEAVE = "leave"
    """Somebody has changed it: it stays, that is told, and an original is kept elsewhere."""


CHANGED: Final = "changed"
"""The digest of what is no regular file."""


def digest_of(content: bytes) -> str:
    """Return what tells one content from another."""
    return hashlib.sha256(content).hexdigest()


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
            raise PlacementError(f"{path[:80]!r} is no plain relative path")
        if not _NO_PLACE.isdisjoint(part.lower() for part in parts):
            raise PlacementError(f"{path[:80]!r} is within version control's own files")
        if any(str(parent) in files for parent in PurePosixPath(path).parents):
            raise PlacementError(f"{path[:80]!r} lies below another of the files")


def parents_of(paths: Iterable[str]) -> list[str]:
    """Return the directories that hold the files, below the workspace, outer ones first."""
    found = {str(parent) for path in paths for parent in PurePosixPath(path).parents[:-1]}
    return sorted(found, key=lambda path: (path.count("/"), path))


def decide(placed: Placed, there: str | None) -> Undo:
    """Return what becomes of a file of ours.

    Args:
        placed: what was noted of it.
        there: the digest of what is there now; None if nothing is.
    """
    if there is None:
        return Undo.NOTHING if placed.original is None else Undo.RESTORE_REMOVED
    if placed.original is not None and there == placed.original.digest:
        return Undo.NOTHING if placed.digest != there else Undo.RESTORE
    if there != placed.digest:
        return Undo.LEAVE
    return Undo.REMOVE if placed.original is None else Undo.RESTORE


def journal_text(journal: Journal) -> str:
    """Return a journal as text."""
    return compact(
        {
            "version": 1,
            "workspace": journal.workspace,
            "run_id": journal.run_id,
            "files": [_placed_json(placed) for placed in journal.files],
            "directories": list(journal.directories),
        }
    )


def _placed_json(placed: Placed) -> JsonValue:
    made: JsonObject = {"path": placed.path, "digest": placed.digest}
    if (kept := placed.original) is not None:
        made |= {"original": kept.digest, "mode": kept.mode, "mtime_ns": str(kept.mtime_ns), "backup": kept.backup}
    return made


def read_journal(text: bytes) -> Journal:
    """Read a journal.

    Raises:
        PlacementError: it is none.
    """
    content = parse_json_object(text) or {}
    try:
        journal = Journal(
            str(content["workspace"]),
            str(content["run_id"]),
            tuple(_placed_from(item) for item in _list(content["files"])),
            tuple(map(str, _list(content["directories"]))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlacementError("is no journal") from error
    check_files({placed.path: b"" for placed in journal.files})
    check_files({f"{directory}/x": b"" for directory in journal.directories})
    return journal


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _placed_from(item: JsonValue) -> Placed:
    if not isinstance(item, dict):
        raise TypeError
    path, digest = str(item["path"]), str(item["digest"])
    if "original" not in item:
        return Placed(path, digest)
    mode, mtime_ns = int(str(item["mode"])) & 0o777, int(str(item["mtime_ns"]))
    backup = PurePosixPath(str(item["backup"])).name
    return Placed(path, digest, Original(str(item["original"]), mode, mtime_ns, backup))
