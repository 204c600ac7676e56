"""Discovery of adapters: entry points, manifests, configured addresses, directories of sockets.

An **entry point** of group ``dragoman.adapters`` is launched by ``python -m dragoman.sidecar``, never imported by the
router. Entry points of group ``dragoman.adapter_aliases`` (``alias = "type"``) declare its aliases, so that they are
known before the adapter is started.

A **manifest** names any command, in any language. TOML or JSON::

    type = "my_agent"                      # [a-z][a-z0-9_]*, the name that callers use
    command = ["./bin/my-agent", "serve"]  # paths like ./x are relative to the manifest's folder
    aliases = ["my-agent"]                 # optional; further aliases in Describe take effect once it has started
    env = { MY_AGENT_MODE = "quiet" }      # optional; overrides the router's own variables

The command reads its address (``unix:/path``) from ``DRAGOMAN_LISTEN``, serves ``AdapterService`` and health there,
and ends on SIGTERM. ``ListAdapters`` reports what is wrong with a manifest; other adapters are not affected.

In a **directory of sockets** each Unix socket is an adapter that runs already. Directories, hidden files and lock
files are passed over; ``ListAdapters`` reports what else is there.
"""

import functools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from dragoman.protocol.addresses import AddressError, check_local
from dragoman.protocol.identity import is_adapter_type
from dragoman.router.adapters.descriptions import Packages, installed_identity, manifest_identity
from dragoman.router.adapters.launch_spec import OURS, SERVE, LaunchSpec, installed_launch
from dragoman.router.adapters.specs import AdapterSpec, Source
from msgspec import Meta, Struct, field

GROUP = "dragoman.adapters"
"""The group of entry points that name adapters."""
ALIASES = "dragoman.adapter_aliases"
"""The group of entry points whose names are aliases and whose values are types."""

DETECT_VARIABLE = "DRAGOMAN_DETECT_ADAPTERS"
"""As ``ADAPTER_VARIABLE``, for several: ``type=module:attribute``; only Describe and Detect are served."""

_SUFFIXES = {".toml", ".json"}
_LOCK: Final = ".lock"
"""How the names of the files end that servers lock beside their sockets."""
_LARGEST_MANIFEST: Final = 1 << 20
_TOML_PLACE: Final = re.compile(r"\(at (line \d+, column \d+|end of document)\)$")


class FileState(Struct, frozen=True):
    """What changes when a file is replaced or written."""

    kind: int
    inode: int
    modified_ns: int
    size: int
    owner: int


class _ManifestError(ValueError):
    """The manifest is invalid; the message says why."""


_Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Manifest(Struct, forbid_unknown_fields=True):
    type: str
    command: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    aliases: tuple[_Text, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def entry_point_specs(
    adapters: Iterable[EntryPoint] | None = None, aliases: Iterable[EntryPoint] | None = None
) -> list[AdapterSpec]:
    """Return the adapters that are installed as entry points.

    Args:
        adapters: entry points to use instead of the installed ones.
        aliases: entry points to use instead of the installed ones.
    """
    found = entry_points() if adapters is None or aliases is None else EntryPoints()
    installed = found.select(group=GROUP) if adapters is None else adapters
    declared = found.select(group=ALIASES) if aliases is None else aliases
    by_type: dict[str, set[str]] = {}
    for alias in declared:
        by_type.setdefault(alias.value, set()).add(alias.name)
    packages: Packages = {}
    return [
        _entry_point_spec(entry, tuple(sorted(by_type.get(entry.name, ()))), packages)
        for entry in sorted(installed, key=lambda one: one.name)
    ]


def _entry_point_spec(entry: EntryPoint, aliases: tuple[str, ...], packages: Packages) -> AdapterSpec:
    name = entry.name
    problem = (
        "" if is_adapter_type(name) else "the name of its entry point is not a valid adapter type: [a-z][a-z0-9_]*"
    )
    reference = f"{entry.module}:{entry.attr}"
    return AdapterSpec(
        name,
        Source.ENTRY_POINT,
        aliases,
        installed_launch(reference),
        problem=problem,
        # Others must not be able to disturb each other, or these.
        reference=reference if reference.startswith(OURS) and not problem else "",
        identity=functools.partial(installed_identity, entry, packages),
    )


def detection_launch(specs: Iterable[AdapterSpec]) -> LaunchSpec:
    """Return how to start one process that detects the agents of all adapters with a ``reference``."""
    references = " ".join(f"{spec.name}={spec.reference}" for spec in specs if spec.reference)
    return LaunchSpec(SERVE, {DETECT_VARIABLE: references})


class Manifests:
    """Manifests.

    Args:
        paths: files, or folders whose ``.toml`` and ``.json`` files are read in order of their names.
        user_folder: one more folder, which need not exist.
    """

    kind = Source.MANIFEST

    def __init__(self, paths: Iterable[Path], user_folder: Path | None = None) -> None:
        self._paths = [path.absolute() for path in paths]
        self._user_folder = user_folder

    def files(self) -> Mapping[Path, FileState]:
        """Return the manifests that there are now. A file that was named counts even if it is missing."""
        found: dict[Path, FileState] = {}
        for path in self._paths:
            mark = _mark(path)
            if mark is not None and mark.kind == stat.S_IFDIR:
                found.update(_manifests_in(path))
            else:
                found[path] = mark or FileState(0, 0, 0, 0, 0)
        if self._user_folder is not None:
            found.update(_manifests_in(self._user_folder))
        return found

    def spec(self, path: Path) -> AdapterSpec:
        """Return the adapter that a manifest names; an invalid one becomes a specification with a problem."""
        file = str(path)
        try:
            content = _read(path)
            launch = LaunchSpec(_command(content.command, path.parent), content.env)
            identity = manifest_identity(msgspec.json.encode(content).decode(), launch.command, launch.env)
            return AdapterSpec(
                content.type, self.kind, content.aliases, launch, origin=file, file=file, identity=identity
            )
        except _ManifestError as error:
            return AdapterSpec(path.stem, self.kind, origin=file, file=file, problem=f"manifest {path}: {error}")


def _manifests_in(folder: Path) -> Iterator[tuple[Path, FileState]]:
    for path in _listed(folder):
        if path.suffix in _SUFFIXES and (mark := _mark(path)) is not None:
            yield path, mark


class SocketDirectories:
    """Directories of sockets.

    Args:
        paths: the directories, which need not exist yet.
    """

    kind = Source.SOCKET_DIRECTORY

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = [path.absolute() for path in paths]

    def files(self) -> Mapping[Path, FileState]:
        """Return what there is that is a socket, or should be."""
        found: dict[Path, FileState] = {}
        for folder in self._paths:
            for path in _listed(folder):
                mark = _mark(path)
                if mark is not None and mark.kind != stat.S_IFDIR and path.suffix != _LOCK:
                    found[path] = mark
        return found

    def spec(self, path: Path) -> AdapterSpec:
        """Return the adapter behind a socket; its name is known once it was reached."""
        file, origin, mark = str(path), str(path.parent), _mark(path)
        try:
            address = str(check_local(f"unix:{path}"))
        except AddressError as error:
            return AdapterSpec(file, self.kind, origin=origin, file=file, problem=str(error))
        if mark is not None and mark.kind != stat.S_IFSOCK:
            problem = f"{path} is no socket, and only sockets may be in that directory; remove it"
            return AdapterSpec(file, self.kind, origin=origin, file=file, problem=problem)
        inode = mark.inode if mark is not None else 0
        return AdapterSpec(address, self.kind, address=address, origin=origin, file=file, inode=inode)


FileSource: TypeAlias = Manifests | SocketDirectories
"""Files of which each is an adapter."""


def specs_of(source: FileSource) -> list[AdapterSpec]:
    """Return the adapters of all files that there are now."""
    return [source.spec(path) for path in source.files()]


def _listed(folder: Path) -> Sequence[Path]:
    """Return what is in a folder and not hidden, in order; nothing if it cannot be read, or is missing."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError:
        return ()


def _mark(path: Path) -> FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return FileState(stat.S_IFMT(found.st_mode), found.st_ino, found.st_mtime_ns, found.st_size, found.st_uid)


def _read(path: Path) -> _Manifest:
    import tomllib  # noqa: PLC0415 - few routers have manifests, and an adapter may be waited for

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_MANIFEST:
            raise _ManifestError(f"is no regular file of at most {_LARGEST_MANIFEST} bytes")
        data = path.read_bytes()
        content = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except OSError as error:
        raise _ManifestError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _ManifestError(f"is not UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise _ManifestError(f"is not valid JSON at line {error.lineno}, column {error.colno}") from error
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        raise _ManifestError(f"is not valid TOML{f' at {place[1]}' if place else ''}") from error
    except RecursionError as error:
        raise _ManifestError("is nested too deeply") from error
    try:
        manifest = msgspec.convert(content, _Manifest)
    except msgspec.ValidationError as error:
        raise _ManifestError(f"{error}; its keys are {', '.join(_Manifest.__struct_fields__)}") from error
    if not is_adapter_type(manifest.type):
        raise _ManifestError("type must be a string such as my_agent: [a-z][a-z0-9_]*, at most 64 characters")
    return manifest


def _command(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    # PATH resolves a bare program name; joining keeps a path that is already absolute.
    return tuple(
        str(folder.absolute() / part) if part.startswith(("./", "../")) or (number == 0 and "/" in part) else part
        for number, part in enumerate(command)
    )


def address_specs(addresses: Iterable[str]) -> list[AdapterSpec]:
    """Return the adapters at configured addresses."""
    return [_address_spec(text) for text in addresses]


def _address_spec(text: str) -> AdapterSpec:
    source = Source.ADDRESS
    try:
        address = str(check_local(text))
    except AddressError as error:
        return AdapterSpec(text, source, problem=str(error))
    return AdapterSpec(address, source, address=address)
