"""A private git repository beside a workspace: its own index and objects, and the user's objects to read.

The user's repository is only read: git runs with the private one as ``GIT_DIR``, so that no index, reference, hook,
filter, or configuration of the user's takes part. A copy of the user's index spares the reading of files that have
not changed; see gitformat-index(5) for what it may consist of. The user's objects are at hand only while trees are
compared: where git writes an object that it finds there, it changes that file's time.
"""

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from dragoman.sdk._changes.errors import GitError
from msgspec import Struct

TIMEOUT_S: Final = 30.0
"""Seconds that one call of git may take."""
_SETTINGS: Final = (
    *("core.fsmonitor=false", "core.untrackedCache=false", "core.hooksPath=/dev/null", "core.safecrlf=false"),
    *("gc.auto=0", "core.quotePath=false", "core.looseCompression=1", "core.fsync=none"),
)
_TAKEN_OVER: Final = (
    r"^core\.(autocrlf|eol|filemode|ignorecase|symlinks|precomposeunicode|sparsecheckout|sparsecheckoutcone)$"
)
"""Settings of the user's repository that decide whether a file counts as changed."""
_INFO_FILES: Final = ("exclude", "attributes", "sparse-checkout")


class UserRepository(Struct, frozen=True):
    """The repository of a workspace."""

    top: Path
    index: Path
    objects: Path
    info: Path
    object_format: str
    settings: tuple[str, ...]
    """``name=value`` each."""


def find_repository(directory: Path) -> UserRepository | None:
    """Return the repository that a directory belongs to; None if it belongs to none, or is ignored in it."""
    asked = ("--show-toplevel", "--show-object-format")
    paths = ("index", "objects", "info")
    named = [word for path in paths for word in ("--git-path", path)]
    try:
        found = _run(["-C", str(directory), "rev-parse", *asked, *named]).decode(errors="surrogateescape")
        top, object_format, *places = found.splitlines()
    except (GitError, ValueError):
        return None
    if len(places) != len(paths) or not top:
        return None
    if Path(top) != directory and _ignores(top, directory):
        return None
    index, objects, info = (Path(directory, place).resolve() for place in places)
    return UserRepository(Path(top), index, objects, info, object_format, _settings(directory))


def _ignores(top: str, directory: Path) -> bool:
    try:
        _run(["-C", top, "check-ignore", "--quiet", str(directory)])
    except GitError:
        return False
    return True


def _settings(directory: Path) -> tuple[str, ...]:
    try:
        found = _run(["-C", str(directory), "config", "-z", "--get-regexp", _TAKEN_OVER])
    except GitError:  # none is set
        return ()
    entries = (entry.partition("\n") for entry in found.decode(errors="surrogateescape").split("\0") if entry)
    return tuple(f"{name}={value or 'true'}" for name, _, value in entries)


class PrivateRepository:
    """Knows the files of a work tree by its own index.

    Args:
        path: an existing, empty, private directory.
        top: the work tree.
        user: the repository that the work tree belongs to; None if there is none.
    """

    def __init__(self, path: Path, top: Path, user: UserRepository | None) -> None:
        self._path = path / ".git"
        self._top = top
        self._user_objects = user.objects if user else None
        self._settings = user.settings if user else ()
        object_format = user.object_format if user else "sha1"
        _run(["init", "--quiet", "--template=", f"--object-format={object_format}", str(path)])
        if user is not None:
            self._take_over(user)

    def _take_over(self, user: UserRepository) -> None:
        info = self._path / "info"
        info.mkdir(exist_ok=True)
        for name in _INFO_FILES:
            if (user.info / name).is_file():
                shutil.copyfile(user.info / name, info / name)
        if user.index.is_file():
            # With its time of change: by that git finds files that changed while the index was written.
            shutil.copy2(user.index, self._path / "index")
            for shared in user.index.parent.glob("sharedindex.*"):
                shutil.copy2(shared, self._path / shared.name)

    def changed_paths(self, most_bytes: int) -> list[bytes] | None:
        """Return the paths, from the work tree on, that differ from the index or are new, and not ignored.

        Args:
            most_bytes: how long the list may be; None is returned for a longer one.
        """
        options = ("-z", "--others", "--modified", "--exclude-standard", "--full-name")
        listed = _read(self._arguments("ls-files", *options), self._environment(), self._top, most_bytes)
        if len(listed) == most_bytes:
            return None
        return list(dict.fromkeys(path for path in listed.split(b"\0") if path))  # a conflict has a path thrice

    def record(self, paths: Iterable[bytes], left_out: Iterable[bytes]) -> str:
        """Put the present state of paths into the index, and take others out; return the name of its tree."""
        self._update_index(paths, "--add", "--remove", "--replace")
        self._update_index(left_out, "--force-remove")
        return self._git("write-tree", "--missing-ok").decode().strip()

    def differences(self, old: str, new: str, *options: str) -> bytes:
        """Return what ``git diff-tree`` says of two trees."""
        arguments = self._arguments("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", *options, old, new)
        return _call(arguments, self._reading_environment(), self._top, b"")

    def diff(self, old: str, new: str, most_bytes: int) -> bytes:
        """Return the unified diff of two trees, or its beginning.

        Raises:
            GitError: it cannot be made, as where objects are missing.
        """
        options = ("-r", "-M", "--patch", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index")
        return _read(
            self._arguments("diff-tree", *options, old, new), self._reading_environment(), self._top, most_bytes
        )

    def _update_index(self, paths: Iterable[bytes], *options: str) -> None:
        listed = b"".join(path + b"\0" for path in paths)
        if listed:
            self._git("update-index", *options, "-z", "--stdin", stdin=listed)

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return _call(self._arguments(*arguments), self._environment(), self._top, stdin)

    def _arguments(self, *arguments: str) -> list[str]:
        options = [word for setting in (*_SETTINGS, *self._settings) for word in ("-c", setting)]
        return [_program(), *options, *arguments]

    def _environment(self) -> dict[str, str]:
        return {**_plain_environment(), "GIT_DIR": str(self._path), "GIT_WORK_TREE": str(self._top)}

    def _reading_environment(self) -> dict[str, str]:
        if self._user_objects is None:
            return self._environment()
        quoted = str(self._user_objects).replace("\\", "\\\\").replace('"', '\\"')
        return {**self._environment(), "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}


def _run(arguments: list[str]) -> bytes:
    # Any owner will do: nothing that the repository's configuration names is run.
    return _call([_program(), "-c", "safe.directory=*", *arguments], _plain_environment(), None, b"")


def _program() -> str:
    program = shutil.which("git")
    if program is None:
        raise GitError("git is not on PATH")
    return program


def _call(arguments: list[str], env: Mapping[str, str], cwd: Path | None, stdin: bytes) -> bytes:
    try:
        done = subprocess.run(
            arguments, check=False, env=env, cwd=cwd, input=stdin, capture_output=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git did not answer: {error}") from error
    if done.returncode:
        raise GitError(_why(done.stderr, done.returncode))
    return done.stdout


def _read(arguments: list[str], env: Mapping[str, str], cwd: Path, most_bytes: int) -> bytes:
    """Return what git prints, or its first ``most_bytes``; it is ended then."""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(arguments, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            data = process.stdout.read(most_bytes)
            if len(data) == most_bytes:
                process.kill()
                return data
            process.wait()
        finally:
            timer.cancel()
        if process.returncode:
            errors.seek(0)
            raise GitError(_why(errors.read(), process.returncode))
    return data


def _why(stderr: bytes, code: int) -> str:
    return stderr.decode(errors="replace").strip() or f"git ended with {code}"


def _plain_environment() -> dict[str, str]:
    """Return variables without those by which git takes another repository, configuration, or program."""
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    return {
        **kept,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
