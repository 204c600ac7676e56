"""Files placed in somebody's workspace for the time of a run, and everything as it was afterwards.

What was there is kept aside, byte for byte, before anything is written; a journal says what belongs where. Both lie
in this user's state directory. A lock on them is held as long as the run: it keeps a second run with files of its own
out of the workspace, and as it ends with its process, a journal that nobody holds is of a run that was killed. It is
undone by the next run there, or by the next start of an adapter.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import platformdirs
from dragoman.sdk._placement_plan import (
    Journal,
    Original,
    Placed,
    PlacementError,
    Undo,
    check_files,
    decide,
    digest_of,
    journal_text,
    parents_of,
    read_journal,
)
from dragoman.sdk._placement_tree import Tree

_JOURNAL: Final = "journal.json"
_KEPT: Final = "kept"


@dataclass(slots=True)
class Placement:
    """What is to be told about placed files: code and message of warnings."""

    notices: list[tuple[str, str]] = field(default_factory=list)


def default_store() -> Path:
    """Return where journals lie by default."""
    return platformdirs.user_state_path("dragoman") / "placements"


@contextlib.contextmanager
def placed(workspace: Path, files: Mapping[str, bytes], run_id: str, *, store: Path) -> Iterator[Placement]:
    """Have files in a workspace for as long as the context lasts.

    Args:
        workspace: an existing directory.
        files: content by path relative to the workspace.
        run_id: whose they are, for people.
        store: where journals lie.

    Yields:
        What is to be told; complete once the context is over.

    Raises:
        PlacementError: another run has files there, a path leads through a link, or something is in the way. The
            workspace is then as it was.
    """
    told = Placement()
    if not files:
        yield told
        return
    check_files(files)
    real = workspace.resolve()
    with _held(store / _name_of(real)) as home:
        told.notices += _undo_left_over(home, store)
        if (home / _JOURNAL).exists():
            raise PlacementError(told.notices[-1][1])
        try:
            _place(real, files, run_id, home)
            yield told
        finally:
            try:
                told.notices += _undo(home, store)
            except PlacementError as error:  # what the run did must not be lost over it
                told.notices.append(("workspace_files_left", str(error)))


def undo_left_over(store: Path) -> list[str]:
    """Undo what killed runs have left; return what was done, in words. Runs that live are left alone."""
    done: list[str] = []
    for home in sorted(store.glob("*/")):
        if home.name == _KEPT:
            continue
        with contextlib.suppress(PlacementError, OSError), _held(home):
            done += [message for _, message in _undo_left_over(home, store)]
    return done


def _name_of(workspace: Path) -> str:
    return hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]


@contextlib.contextmanager
def _held(home: Path) -> Iterator[Path]:
    """Hold the directory of a workspace's journal; it goes afterwards, unless a journal is left in it."""
    while True:
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise PlacementError(f"nothing can be kept aside in {home}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise PlacementError(
                "another run has files in this workspace; wait for it, or use another workspace",
                code="workspace_busy",
            ) from None
        if _is_still(home, lock):
            break
        os.close(lock)  # its last holder has removed it meanwhile
    try:
        yield home
    finally:
        if not (home / _JOURNAL).exists():
            shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def _is_still(home: Path, lock: int) -> bool:
    try:
        return os.path.samestat(home.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _place(workspace: Path, files: Mapping[str, bytes], run_id: str, home: Path) -> None:
    try:
        with Tree(workspace) as tree:
            directories = tuple(path for path in parents_of(files) if not tree.has_directory(path))
            noted = tuple(_note(tree, path, files[path], home, number) for number, path in enumerate(sorted(files)))
            journal = Journal(str(workspace), run_id, noted, directories)
            _write_safely(home / _JOURNAL, journal_text(journal).encode())
            for directory in directories:
                tree.make_directory(directory)
            for entry in noted:
                mode = entry.original.mode if entry.original else None
                tree.write(entry.path, files[entry.path], mode=mode)
    except OSError as error:
        raise PlacementError(f"files cannot be placed in the workspace: {error.strerror}") from error


def _note(tree: Tree, path: str, content: bytes, home: Path, number: int) -> Placed:
    """Keep aside what is there, and note what will be."""
    found = tree.read(path)
    if found is None:
        return Placed(path, digest_of(content))
    before, status = found
    backup = f"original-{number}"
    _write_safely(home / backup, before)
    original = Original(digest_of(before), status.st_mode & 0o777, status.st_mtime_ns, backup)
    return Placed(path, digest_of(content), original)


def _undo_left_over(home: Path, store: Path) -> list[tuple[str, str]]:
    if not (home / _JOURNAL).exists():
        return []
    message = "Files that an interrupted run had placed in this workspace were taken away again."
    return [("workspace_files_recovered", message), *_undo(home, store)]


def _undo(home: Path, store: Path) -> list[tuple[str, str]]:
    """Undo what the journal tells, as far as nobody has changed it; return what is to be told of the rest."""
    try:
        journal = read_journal((home / _JOURNAL).read_bytes())
    except FileNotFoundError:
        return []
    except PlacementError as error:
        raise PlacementError(f"{home / _JOURNAL} {error}; look at the files beside it, and remove it") from error
    notices: list[tuple[str, str]] = []
    try:
        with Tree(Path(journal.workspace)) as tree:
            for entry in reversed(journal.files):
                notices += _undo_one(tree, entry, home, store / _KEPT / journal.run_id)
            for directory in reversed(journal.directories):
                tree.remove_directory(directory)
    except OSError as error:
        message = (
            f"Files placed in {journal.workspace} could not be taken away ({error.strerror}); it is tried again."
        )
        return [("workspace_files_left", message)]
    (home / _JOURNAL).unlink()
    return notices


def _undo_one(tree: Tree, entry: Placed, home: Path, kept: Path) -> Iterator[tuple[str, str]]:
    original = entry.original
    tree.tidy(entry.path)
    step = decide(entry, tree.digest(entry.path))
    if step is Undo.REMOVE:
        tree.remove(entry.path)
    elif step is Undo.LEAVE:
        message = f"{entry.path}, which was placed for this run, was changed meanwhile; it stays as it is."
        if original is not None:
            message += f" What was there before is kept in {_keep(home / original.backup, kept, entry.path)}."
        yield "workspace_file_changed", message
    elif original is not None and step is not Undo.NOTHING:
        if step is Undo.RESTORE_REMOVED:
            for directory in parents_of([entry.path]):
                tree.make_directory(directory)
            yield "workspace_file_changed", f"{entry.path} was removed during the run; it is as before the run again."
        content = (home / original.backup).read_bytes()
        tree.write(entry.path, content, mode=original.mode, mtime_ns=original.mtime_ns)


def _keep(backup: Path, kept: Path, path: str) -> Path:
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = kept / path.replace("/", "__")
    _write_safely(target, backup.read_bytes())
    return target


def _write_safely(path: Path, content: bytes) -> None:
    """Write a file so that it is whole on the disk, or not there."""
    fresh = path.with_name(f"{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
