"""Skills in an agent's own directory: installed, marked, repaired and removed.

What is there belongs to the agent's user. A list beside the skills says which of them are ours and how they looked;
nothing else is ever changed, and not even ours once it was changed. A skill is made ready out of sight and
moved into place, so that an agent never sees half of one. A lock on the directory keeps two of us apart; it ends with
its holder, and what a killed one left is put right by the next.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman.sdk._encoding.json_text import JsonValue, compact, parse_json_object
from dragoman.sdk._skills.source import (
    SKILL_FILE,
    SkillError,
    SkillSource,
    lay_out,
    parse_front_matter,
    plan_skill_directory,
)
from dragoman.v1 import adapter_pb2 as pb
from msgspec import Struct, field

MARKS_DIR: Final = ".dragoman"
"""Below the directory of skills; gone when nothing there is ours."""

_MARKS: Final = "skills.json"
_FRESH: Final = "new"
_OLD: Final = "old"
_LEFT_BY_PROGRAMS: Final = frozenset({"__pycache__", ".DS_Store"})
_FRONT_MATTER_CHARACTERS: Final = 16 * 1024
_MOST_MARKS_BYTES: Final = 4 * 1024 * 1024


class Mark(Struct, frozen=True):
    """How a skill of ours looked when it was put there: exactly one of the two is set."""

    link: str = ""
    """Where the link leads."""
    digest: str = ""
    """Of the names and contents of its files."""


class Synced(Struct):
    """What a directory holds now, and what could not be done."""

    skills: list[pb.SkillEntry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def sync_directory(root: Path, skills: Sequence[SkillSource]) -> Synced:
    """Make ``root`` hold these skills of ours; what is not ours stays as it is. Waits for its turn.

    Args:
        root: the agent's directory of skills. Made if it is needed.
        skills: checked; those in a directory are linked to, the others are written out.
    """
    if not skills and not (root / MARKS_DIR).is_dir():
        return Synced(list_directory(root))
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(root):
            warnings = _Sync(root, skills).go()
    except OSError as error:
        return Synced(list_directory(root), [f"{root} cannot be used: {error.strerror}"])
    there = list_directory(root)
    names = {entry.name for entry in there}
    there += [_missing(root, skill.name) for skill in skills if skill.name not in names]
    return Synced(there, warnings)


def list_directory(root: Path) -> list[pb.SkillEntry]:
    """Return the skills in ``root``, by name, each with where it stands. What cannot be read is left out."""
    marks = _read_marks(root)
    found: dict[str, pb.SkillEntry] = {}
    for document in sorted(root.glob(f"*/{SKILL_FILE}")):
        name = document.parent.name
        with contextlib.suppress(OSError):
            head = document.read_text(encoding="utf-8", errors="replace")[:_FRONT_MATTER_CHARACTERS]
            description = parse_front_matter(head).description or ""
            found[name] = pb.SkillEntry(name=name, description=description, path=str(document.parent))
            found[name].state = pb.SKILL_STATE_EXTERNAL
            if name in marks:
                is_ours = _is_as_marked(root / name, marks[name])
                found[name].state = pb.SKILL_STATE_INSTALLED if is_ours else pb.SKILL_STATE_STALE
    for name in marks.keys() - found.keys():
        found[name] = _missing(root, name)
    return [found[name] for name in sorted(found)]


def _missing(root: Path, name: str) -> pb.SkillEntry:
    return pb.SkillEntry(name=name, path=str(root / name), state=pb.SKILL_STATE_MISSING)


class _Sync:
    """One synchronisation, under the lock."""

    def __init__(self, root: Path, skills: Sequence[SkillSource]) -> None:
        self._root = root
        self._home = root / MARKS_DIR
        self._skills = {skill.name: skill for skill in skills}
        self._marks = _read_marks(root)
        self._warnings: list[str] = []

    def go(self) -> list[str]:
        """Do it; return what could not be done."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        for rest in (_FRESH, _OLD):  # of one that was killed
            _remove(self._home / rest)
        for name in sorted(self._marks.keys() - self._skills.keys()):
            self._guarded(name, self._take_away)
        for name in sorted(self._skills):
            self._guarded(name, self._put)
        if not self._marks:
            shutil.rmtree(self._home, ignore_errors=True)
        return self._warnings

    def _guarded(self, name: str, work: Callable[[str], None]) -> None:
        try:
            work(name)
        except (OSError, SkillError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._warnings.append(f"{name}: {reason}")

    def _take_away(self, name: str) -> None:
        path = self._root / name
        if os.path.lexists(path) and not _is_as_marked(path, self._marks[name]):
            self._warnings.append(f"{name} is no longer wanted, but was changed since it was put there; it stays")
            return
        self._move_out(path)
        del self._marks[name]
        self._write_marks()

    def _put(self, name: str) -> None:
        path, skill = self._root / name, self._skills[name]
        mark = self._marks.get(name)
        if os.path.lexists(path):
            if mark is None and not self._may_replace(path, skill):
                return
            if mark is not None and not _is_as_marked(path, mark):
                self._warnings.append(f"{name} was changed since it was put there; it stays as it is")
                return
        fresh = self._home / _FRESH
        _remove(fresh)
        fresh.mkdir(mode=0o700)
        lay_out(fresh, plan_skill_directory([skill], "{name}"))
        new_mark = _mark_of(fresh / name)
        if mark != new_mark or not path.exists():
            self._move_out(path)
            # Marked before it is there: one that was marked and is missing is put there next time, while one that
            # is there without a mark would be taken for the user's.
            self._marks[name] = new_mark
            self._write_marks()
            (fresh / name).rename(path)
        _remove(fresh)

    def _may_replace(self, path: Path, skill: SkillSource) -> bool:
        """Return whether what is there, which is not ours, may be replaced: a dangling link."""
        if path.is_symlink() and not path.exists():
            self._warnings.append(f"{skill.name} was a link to {path.readlink()}, which is not there; replaced")
            return True
        if skill.directory is None or path.resolve() != skill.directory.resolve():
            self._warnings.append(f"{skill.name} is there already and is not ours; it stays as it is")
        return False

    def _move_out(self, path: Path) -> None:
        old = self._home / _OLD
        _remove(old)
        if os.path.lexists(path):
            path.rename(old)
            _remove(old)

    def _write_marks(self) -> None:
        marks: dict[str, JsonValue] = {
            name: {"link": mark.link} if mark.link else {"digest": mark.digest} for name, mark in self._marks.items()
        }
        fresh = self._home / f"{_MARKS}.new"
        fresh.write_text(compact({"version": 1, "skills": marks}), encoding="utf-8")
        fresh.replace(self._home / _MARKS)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _read_marks(root: Path) -> dict[str, Mark]:
    """Return our marks; none if they cannot be read: then nothing there is ours."""
    try:
        with (root / MARKS_DIR / _MARKS).open("rb") as file:
            content = parse_json_object(file.read(_MOST_MARKS_BYTES))
    except OSError:
        return {}
    skills = (content or {}).get("skills")
    items: Mapping[str, JsonValue] = skills if isinstance(skills, dict) else {}
    marks = {name: _mark_from(value) for name, value in items.items()}
    return {name: mark for name, mark in marks.items() if mark is not None}


def _mark_from(value: JsonValue) -> Mark | None:
    if not isinstance(value, dict):
        return None
    link, digest = value.get("link"), value.get("digest")
    if isinstance(link, str) and link:
        return Mark(link=link)
    return Mark(digest=digest) if isinstance(digest, str) and digest else None


def _is_as_marked(path: Path, mark: Mark) -> bool:
    try:
        return os.path.lexists(path) and _mark_of(path) == mark
    except OSError:
        return False


def _mark_of(path: Path) -> Mark:
    if path.is_symlink():
        return Mark(link=str(path.readlink()))
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in _LEFT_BY_PROGRAMS)
        for name in sorted(files):
            if name not in _LEFT_BY_PROGRAMS:
                inside = Path(folder, name)
                digest.update(json.dumps([str(inside.relative_to(path)), _content_digest(inside)]).encode())
    return Mark(digest=digest.hexdigest())


def _content_digest(path: Path) -> str:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return "no file"  # ours has none of these
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
