"""Files that a run's instructions and skills come with, laid out in the run's own directory for its agent to read.

They are copies: an agent that writes to them changes nothing of their owner's, and they are gone after the run. Their
directory becomes one of the run's additional directories, which every adapter opens to its agent in the agent's way.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk._request.settings import Instructions, Settings
from dragoman.sdk._skills.source import SKILL_FILE, Placement, SkillError, SkillSource, all_files, lay_out
from dragoman.sdk._skills.strategy import SkillStrategy
from msgspec.structs import replace

MOST_FILES: Final = 256
"""Entries below the directory of an instructions file; a directory with more is no bundle."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of all files beside an instructions file together."""
_READING: Final = "reading"
_LEFT_OUT: Final = "reading_left_out"
_FROM_TEXT: Final = frozenset({SkillStrategy.PROMPT, SkillStrategy.PLAN})
"""Ways by which an agent gets the text of a skill and nothing else of it."""


class _TooMuchError(Exception):
    """A directory is no bundle; the text says why."""


def with_bundled_files(settings: Settings, strategy: SkillStrategy, run_dir: Path) -> Settings:
    """Lay out the files to be read, and return the settings of an attempt with their directory."""
    root = run_dir / _READING
    root.mkdir(mode=0o700)
    notes: list[str] = []
    notices: list[tuple[str, str]] = []
    instructions = _with_files(settings, root, notes, notices)
    skills = settings.skills
    if strategy in _FROM_TEXT:
        skills = tuple(_laid_out(skill, root, notices) for skill in settings.skills)
    if not any(root.iterdir()):
        return replace(settings, notices=tuple(notices))
    return replace(
        settings,
        instructions=instructions,
        skills=skills,
        additional_directories=(*settings.additional_directories, str(root)),
        notes=tuple(notes),
        notices=tuple(notices),
    )


def _with_files(
    settings: Settings, root: Path, notes: list[str], notices: list[tuple[str, str]]
) -> Instructions | None:
    """Return the instructions, with a copy of their bundle as their directory if there is more to it than a file."""
    instructions = settings.instructions
    if instructions is None or not instructions.directory or _is_open(instructions.directory, settings):
        return instructions
    try:
        files = _beside(Path(instructions.directory))
    except (_TooMuchError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        message = f"The files beside the instructions in {instructions.directory} are not given to the agent: {why}."
        notices.append((_LEFT_OUT, message))
        return instructions
    if len(files) < 2:  # the instructions alone
        return instructions
    _lay_out(root, "instructions", files)
    notes.append(f"{len(files)} files of {instructions.directory} copied for the time of the run")
    return replace(instructions, directory=str(root / "instructions"))


def _is_open(directory: str, settings: Settings) -> bool:
    """Return whether the agent may already read a directory."""
    real = Path(os.path.realpath(directory))
    roots = (settings.cwd, *settings.additional_directories)
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots if root)


def _beside(directory: Path) -> dict[str, bytes]:
    """Return the files of a bundle by relative path: regular ones, none hidden, none behind a link."""
    files: dict[str, bytes] = {}
    entries = size = 0
    for path in _walk(directory):
        entries += 1
        if entries > MOST_FILES:
            raise _TooMuchError(f"there are more than {MOST_FILES}")
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                continue
            data = file.read(MOST_BYTES - size + 1)
        size += len(data)
        if size > MOST_BYTES:
            raise _TooMuchError(f"they have more than {MOST_BYTES} bytes")
        files[path.relative_to(directory).as_posix()] = data
    return files


def _walk(directory: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(folders) > MOST_FILES:
            raise _TooMuchError(f"there are more than {MOST_FILES} directories")
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not path.is_symlink():
                yield path


def _laid_out(skill: SkillSource, root: Path, notices: list[tuple[str, str]]) -> SkillSource:
    """Return a skill that knows where its files can be read, if it has others than its text."""
    try:
        files = all_files(skill)
        if set(files) == {SKILL_FILE}:
            return skill
        _lay_out(root, f"skills/{skill.name}", files)
    except SkillError as error:
        notices.append((_LEFT_OUT, f"The files beside {SKILL_FILE} are not given to the agent: {error}."))
        return skill
    return replace(skill, laid_out=root / "skills" / skill.name, beside=tuple(sorted({*files} - {SKILL_FILE})))


def _lay_out(root: Path, folder: str, files: Mapping[str, bytes]) -> None:
    lay_out(root, [Placement(f"{folder}/{path}", content=content) for path, content in sorted(files.items())])
