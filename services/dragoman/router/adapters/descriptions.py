"""The cache of adapters' descriptions, for the time when none of their processes runs.

A description is stored under the *identity* of the adapter: for an installed one its distribution, the Python that
runs it and the state of its package's files; for a manifest its content and the state of the files that its command
names. An upgrade changes the identity, so that the router asks the adapter again.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Final, TypeAlias

from dragoman.protocol.logs import Logger

_FORMAT: Final = 2
_MOST_FILES: Final = 5000
_MOST_KEPT: Final = 256

Packages: TypeAlias = dict[tuple[Distribution | None, Path], str]
"""Digests of the state of packages, by their distribution and their folder."""

_log = Logger("dragoman.router")


class DescriptionFolder:
    """Caches descriptions: one file for each identity, readable by this user only.

    Args:
        path: the folder; created on first use.
        most: maximum number of descriptions; the oldest are removed.
    """

    def __init__(self, path: Path, *, most: int = _MOST_KEPT) -> None:
        self._path = path
        self._most = most

    def load(self, identity: str) -> bytes | None:
        """Return the description that was saved last under this identity."""
        if not identity:
            return None
        try:
            return (self._path / identity).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("description cache not readable", errno=error.errno)
            return None

    def save(self, identity: str, description: bytes) -> None:
        """Save a description. A failure is logged, not raised, as this is only a cache."""
        if not identity:
            return
        fresh = self._path / f".{identity}.{os.getpid()}.new"
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(description)
            fresh.replace(self._path / identity)
            self._remove_oldest()
        except OSError as error:
            _log.warning("description cache not writable", errno=error.errno)

    def _remove_oldest(self) -> None:
        by_age = sorted(self._path.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        for file in by_age[: -self._most]:
            file.unlink(missing_ok=True)


def installed_identity(entry: EntryPoint, packages: Packages) -> str:
    """Return the identity of an installed adapter; empty if its files cannot be found.

    The module is located by its path and never imported. All files of its top-level package count, because a
    description also depends on code that adapters share.

    Args:
        entry: the adapter.
        packages: the state of the packages seen so far; adapters of one package share it, and it is read once.
    """
    top, _, _ = entry.module.partition(".")
    folders = [Path(base or ".") / top for base in sys.path]
    sources = [folder for folder in folders if (folder / Path(*entry.module.split(".")[1:])).exists()]
    sources += [file for folder in folders if (file := folder.with_suffix(".py")).is_file()]
    if not sources:
        return ""
    package = entry.dist, sources[0]
    if package not in packages:
        distribution = [entry.dist.name, entry.dist.version] if entry.dist is not None else []
        packages[package] = _digest([*distribution, *_marks(_files(sources[0]))])
    return _digest(["installed", entry.name, entry.value, sys.prefix, packages[package]])


def manifest_identity(content: str, command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the identity of an adapter that a manifest names.

    Args:
        content: the manifest as JSON.
        command: its command, with absolute paths.
        env: its variables.
    """
    import shutil  # noqa: PLC0415 - few routers have manifests, and an adapter may be waited for

    program = shutil.which(command[0], path=env.get("PATH"))
    return _digest(["manifest", content, *_marks(word for word in (program or "", *command[1:]) if word)])


def _files(source: Path) -> Iterator[str]:
    if source.is_file():
        yield str(source)
        return
    for folder, names, files in os.walk(source):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for file in sorted(files):
            yield f"{folder}/{file}"


def _marks(paths: Iterator[str]) -> Iterator[object]:
    for number, path in enumerate(paths):
        if number == _MOST_FILES:
            return
        try:
            status = os.stat(path)  # noqa: PTH116 - hundreds of files at every start; a Path for each takes as long again
        except (OSError, ValueError):
            continue  # not a file: an option, or a file that was just removed
        yield [path, status.st_mtime_ns, status.st_size]


def _digest(parts: Sequence[object]) -> str:
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, and an adapter may be waited for

    text = json.dumps([_FORMAT, *parts])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
