"""Skills: checked, planned as files in an isolated directory, or made part of a prompt.

A skill is a directory with a ``SKILL.md``. Where an agent finds skills by itself, it gets them in a
directory of their own, never in the workspace. Where it has no notion of skills, the text goes into its
prompt. Skills come from elsewhere: no name, path or link in one may lead out of it.

Only ``read_skill`` and ``lay_out`` touch the disk.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from dragoman.protocol.texts import cut_text
from msgspec import Struct, field

SKILL_FILE: Final = "SKILL.md"
DEFAULT_PROMPT_BYTES: Final = 64 * 1024
"""Bytes of UTF-8 that one skill may take of a prompt."""

_MOST_NAMED: Final = 40
"""Files of a skill that its prompt names."""
_MOST_ENTRIES: Final = 20_000
_MOST_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
_MOST_COPIED_BYTES: Final = 16 * 1024 * 1024
_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REFERENCES: Final = "references/"


class SkillError(ValueError):
    """A skill that cannot be used, and why."""


class SkillSource(Struct, frozen=True):
    """A skill, where it is or as its files."""

    name: str
    directory: Path | None = None
    """Where it is; None if there is nothing but ``files``."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Content by relative path. Of a skill in a directory: its ``SKILL.md`` and its references."""

    laid_out: Path | None = None
    """Where all its files can be read during the attempt; None if it is given as text alone."""

    beside: tuple[str, ...] = ()
    """Relative paths of the files there beside its ``SKILL.md``."""


class Placement(Struct, frozen=True):
    """One thing to put into a directory: a link or a file, exactly one of the two."""

    relative_path: str
    symlink_to: Path | None = None
    content: bytes | None = None


class FrontMatter(Struct, frozen=True):
    """What a ``SKILL.md`` says about itself, and the rest of it."""

    description: str | None
    body: str


def is_skill_name(name: str) -> bool:
    """Return whether ``name`` can be a skill's: one plain component of a path."""
    return _NAME.fullmatch(name) is not None


def plan_skill_directory(skills: Sequence[SkillSource], layout: str) -> list[Placement]:
    """Return what to lay out so that an agent finds the skills.

    Args:
        skills: Those in a directory are linked to, the others are written out.
        layout: Where one skill goes, e.g. ``.claude/skills/{name}``.

    Raises:
        SkillError: A name or path leads elsewhere, two skills have one name, or one has no ``SKILL.md``.
    """
    placements: list[Placement] = []
    seen: set[str] = set()
    for skill in skills:
        _check_name(skill.name)
        if skill.name.casefold() in seen:  # some file systems do not distinguish them
            raise SkillError(f"two skills are named {skill.name}")
        seen.add(skill.name.casefold())
        place = _relative(layout.replace("{name}", skill.name), "the layout")
        if skill.directory is not None:
            placements.append(Placement(place, symlink_to=skill.directory.absolute()))
        else:
            placements += _written_out(skill, place)
    return placements


def _written_out(skill: SkillSource, place: str) -> Iterator[Placement]:
    _check_has_document(skill)
    for path, content in sorted(skill.files.items()):
        inside = _relative(path, f"a file of the skill {skill.name}")
        yield Placement(f"{place}/{inside}", content=content)


def skill_prompt(skill: SkillSource, max_bytes: int = DEFAULT_PROMPT_BYTES) -> str:
    """Return a skill as text for a prompt: its ``SKILL.md`` and the references that this names.

    Front matter is left out: it says when to load the skill, and loaded it is. What is beyond
    ``max_bytes`` of UTF-8 is cut, and a last line says so.

    Raises:
        SkillError: There is no ``SKILL.md``.
    """
    _check_has_document(skill)
    body = parse_front_matter(_text(skill.files[SKILL_FILE])).body.strip()
    parts = [f"# Skill: {skill.name}\n\n{_files_section(skill)}{body}"]
    for path in sorted(skill.files):
        if path.startswith(_REFERENCES) and _is_mentioned(path, body):
            reference = parse_front_matter(_text(skill.files[path])).body.strip()
            parts.append(f"## {skill.name}: {path}\n\n{reference}")
    text, cut = cut_text("\n\n".join(parts), max_bytes)
    return f"{text}\n[... {cut} bytes of the skill {skill.name} left out ...]\n" if cut else f"{text}\n"


def _files_section(skill: SkillSource) -> str:
    """Return where the files are that the skill's text names by relative path; empty if there are none."""
    if skill.laid_out is None:
        return ""
    named = ", ".join(skill.beside[:_MOST_NAMED]) + (", ..." if len(skill.beside) > _MOST_NAMED else "")
    return f"The files of this skill are in {skill.laid_out}: {named}. Its relative paths are meant from there.\n\n"


def _is_mentioned(path: str, body: str) -> bool:
    name = re.escape(PurePosixPath(path).name)
    return (
        re.search(rf"(?<![\w-]){re.escape(path)}(?![\w-])", body) is not None
        or re.search(rf"(?<![\w/.-]){name}(?![\w-])", body) is not None
    )


_FENCE: Final = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY: Final = re.compile(r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*)|)")


def parse_front_matter(text: str) -> FrontMatter:
    """Split ``SKILL.md`` into what it says about itself and its body.

    Understands the part of YAML that skills use: ``key: value``, quotes, and values that go on over
    indented lines. What it does not understand it skips; without front matter all of it is body.
    """
    fence = _FENCE.match(text)
    if fence is None:
        return FrontMatter(None, text.removeprefix("\ufeff"))
    values: dict[str, str] = {}
    key = ""
    for line in fence[1].splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry:
            key = entry[1].lower()
            values[key] = (entry[2] or "").strip()
        elif key and line[:1] in {" ", "\t", ""}:
            values[key] = f"{values[key]} {line.strip()}".strip()
    return FrontMatter(_value(values.get("description", "")), text[fence.end() :])


def _value(written: str) -> str | None:
    value = re.sub(r"\A[|>][+-]?[0-9]?(?=\s|\Z)\s*", "", written)  # the mark of a block of lines
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return value or None


def read_skill(directory: Path, *, name: str | None = None) -> SkillSource:
    """Look a skill's directory over and read its documents: ``SKILL.md`` and all in ``references``.

    Args:
        directory: Where it is.
        name: What it is to be called; the directory's name if None.

    Raises:
        SkillError: It is no skill, a link in it leads out of it, or it is too large.
    """
    skill_name = directory.name if name is None else name
    _check_name(skill_name)
    try:
        root = directory.resolve(strict=True)
        files = {
            path: _read_document(root / path)
            for path in _regular_files(root, skill_name)
            if path == SKILL_FILE or path.startswith(_REFERENCES)
        }
    except OSError as error:
        raise SkillError(f"the skill {skill_name} cannot be read: {error.strerror}") from error
    skill = SkillSource(skill_name, directory, files)
    _check_has_document(skill)
    if sum(map(len, files.values())) > _MOST_DOCUMENT_BYTES:
        raise SkillError(f"the documents of the skill {skill_name} have more than {_MOST_DOCUMENT_BYTES} bytes")
    return skill


def _regular_files(root: Path, name: str) -> Iterator[str]:
    entries = 0
    for folder, folders, files in os.walk(root, onerror=_raise):
        for entry in (*folders, *files):
            entries += 1
            if entries > _MOST_ENTRIES:
                raise SkillError(f"the skill {name} has more than {_MOST_ENTRIES} files")
            path = Path(folder, entry)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise SkillError(f"{path.relative_to(root)} in the skill {name} is a link that leads out of it")
            if entry in files and path.is_file():  # no pipes: reading one may never end
                yield path.relative_to(root).as_posix()


def _raise(error: OSError) -> None:
    raise error


def all_files(skill: SkillSource) -> dict[str, bytes]:
    """Return all files of a skill, by relative path, to copy it.

    Raises:
        SkillError: it cannot be read, a link in it leads out of it, or it is too large.
    """
    if skill.directory is None:
        return dict(skill.files)
    found: dict[str, bytes] = {}
    try:
        root = skill.directory.resolve(strict=True)
        for path in _regular_files(root, skill.name):
            found[path] = _read_document(root / path)
            if sum(map(len, found.values())) > _MOST_COPIED_BYTES:
                raise SkillError(f"the skill {skill.name} has more than {_MOST_COPIED_BYTES} bytes to copy")
    except OSError as error:
        raise SkillError(f"the skill {skill.name} cannot be read: {error.strerror}") from error
    return found


def _read_document(path: Path) -> bytes:
    # Opened without waiting and looked at again: what was a file a moment ago may be a pipe now.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return b""
        return file.read(_MOST_DOCUMENT_BYTES + 1)


def lay_out(root: Path, placements: Sequence[Placement]) -> None:
    """Put files and links into ``root``, readable by this user alone.

    Args:
        root: An existing directory.
        placements: What to put there; scripts (``#!``) become executable.

    Raises:
        SkillError: A path leads out of ``root``, also by a link laid out before.
        OSError: Something is there already, or cannot be written.
    """
    for placement in placements:
        relative = PurePosixPath(_relative(placement.relative_path, "a placement"))
        target = root / relative
        for parent in reversed(relative.parents[:-1]):
            if (root / parent).is_symlink():
                raise SkillError(f"{placement.relative_path} would be written through a link")
            (root / parent).mkdir(mode=0o700, exist_ok=True)
        if placement.symlink_to is not None:
            target.symlink_to(placement.symlink_to)
        else:
            _write(target, placement.content or b"")


def _write(target: Path, content: bytes) -> None:
    mode = 0o700 if content.startswith(b"#!") else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(target, flags, mode), "wb") as file:
        file.write(content)


def _check_name(name: str) -> None:
    if not is_skill_name(name):
        rule = "at most 128 letters, digits, '.', '_' and '-', the first a letter or a digit"
        raise SkillError(f"{name[:80]!r} cannot be the name of a skill: {rule}")


def _check_has_document(skill: SkillSource) -> None:
    if SKILL_FILE not in skill.files:
        raise SkillError(f"the skill {skill.name} has no {SKILL_FILE}")


def _relative(path: str, what: str) -> str:
    parts = path.split("/")
    if not path or "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts):
        raise SkillError(f"{what} has a path that is not plain and relative: {path[:80]!r}")
    return path


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
