"""How git is called: as it is meant to be whatever the user has configured, and with errors that say why."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from dragoman.sdk._changes import git
from dragoman.sdk._changes.errors import GitError
from dragoman.sdk._changes.git import PrivateRepository, UserRepository, find_repository

from tests.sdk.changes.test_workspace import shell


class Calls:
    """Records calls of git instead of making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bytes = b"") -> None:
        self.log: list[tuple[list[str], Mapping[str, str], Path | None, bytes | int]] = []
        self.answer = answer

        def call(arguments: list[str], env: Mapping[str, str], cwd: Path | None, last: bytes | int) -> bytes:
            self.log.append((arguments[1:], env, cwd, last))
            return self.answer

        monkeypatch.setattr(git, "_call", call)
        monkeypatch.setattr(git, "_read", call)

    def last(self) -> tuple[list[str], Mapping[str, str], Path | None, bytes | int]:
        """Return the last call, without the settings that each has."""
        arguments, env, cwd, last = self.log[-1]
        first = next(index for index, word in enumerate(arguments) if index % 2 == 0 and word != "-c")
        return arguments[first:], env, cwd, last


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / 'a "b" \\c'
    return UserRepository(
        tmp_path, folder / "index", folder / "objects", folder / "info", "sha256", ("core.autocrlf=input",)
    )


def test_a_private_repository_takes_nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "TMPDIR": "/t", "HOME": "/h", "GIT_DIR": "/g"})
    calls = Calls(monkeypatch)
    PrivateRepository(tmp_path / "own", tmp_path, None)
    assert calls.log == [
        (
            ["-c", "safe.directory=*", "init", "--quiet", "--template=", "--object-format=sha1", f"{tmp_path}/own"],
            {
                "PATH": os.environ["PATH"],
                "TMPDIR": "/t",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_OPTIONAL_LOCKS": "0",
                "GIT_TERMINAL_PROMPT": "0",
                "LC_ALL": "C",
            },
            None,
            b"",
        )
    ]


def test_each_call_has_its_settings_then_the_users(
    user: UserRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, b"tree\n")
    own = PrivateRepository(tmp_path, tmp_path / "top", user)
    assert "--object-format=sha256" in calls.log[0][0]
    assert own.record([], []) == "tree"
    arguments, env, cwd, _ = calls.log[-1]
    assert [word for word in arguments if "=" in word] == [
        *("core.fsmonitor=false", "core.untrackedCache=false", "core.hooksPath=/dev/null", "core.safecrlf=false"),
        *("gc.auto=0", "core.quotePath=false", "core.looseCompression=1", "core.fsync=none", "core.autocrlf=input"),
    ]
    assert arguments[::2][:9] == ["-c"] * 9
    assert (env["GIT_DIR"], env["GIT_WORK_TREE"], cwd) == (f"{tmp_path}/.git", f"{tmp_path}/top", tmp_path / "top")


def test_what_git_is_asked(user: UserRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    own = PrivateRepository(tmp_path, tmp_path, user)
    objects = "GIT_ALTERNATE_OBJECT_DIRECTORIES"

    calls.answer = b"b\0a\0\0b\0"
    assert own.changed_paths(100) == [b"b", b"a"]
    options = ["-z", "--others", "--modified", "--exclude-standard", "--full-name"]
    arguments, env, _, most = calls.last()
    assert (arguments, most, objects in env) == (["ls-files", *options], 100, False)
    assert own.changed_paths(7) is None
    assert own.changed_paths(8) is not None

    calls.answer = b" tree \n"
    assert own.record([b"a", b"b"], [b"c"]) == "tree"
    adding, removing, writing = calls.log[-3:]
    assert (adding[0][-6:], adding[3]) == (
        ["update-index", "--add", "--remove", "--replace", "-z", "--stdin"],
        b"a\0b\0",
    )
    assert (removing[0][-4:], removing[3]) == (["update-index", "--force-remove", "-z", "--stdin"], b"c\0")
    assert (writing[0][-2:], objects in writing[1]) == (["write-tree", "--missing-ok"], False)

    calls.answer = b"differences"
    assert own.differences("old", "new", "--raw") == b"differences"
    arguments, env, cwd, _ = calls.last()
    assert arguments == ["diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--raw", "old", "new"]
    quoted = str(tmp_path) + '/a \\"b\\" \\\\c/objects'
    assert (env[objects], cwd) == (f'"{quoted}"', tmp_path)

    assert own.diff("old", "new", 9) == b"differences"
    arguments, env, _, most = calls.last()
    options = ["-r", "-M", "--patch", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index"]
    assert (arguments, most, objects in env) == (["diff-tree", *options, "old", "new"], 9, True)


def test_nothing_is_asked_about_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    own = PrivateRepository(tmp_path, tmp_path, None)
    own.record([], [])
    assert len(calls.log) == 2
    own.diff("old", "new", 9)
    assert "GIT_ALTERNATE_OBJECT_DIRECTORIES" not in calls.last()[1]


def test_what_decides_whether_a_file_changed_is_taken_over(
    user: UserRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.info.mkdir(parents=True)
    for path in (*(user.info / name for name in ("exclude", "attributes", "sparse-checkout", "refs")), user.index):
        path.write_text(path.name)
        os.utime(path, (1000, 1000))
    (user.index.parent / "sharedindex.1").write_text("shared")
    Calls(monkeypatch)
    own = tmp_path / "own" / ".git"
    own.mkdir(parents=True)
    PrivateRepository(tmp_path / "own", tmp_path, user)
    assert {str(path.relative_to(own)): path.read_text() for path in own.rglob("*") if path.is_file()} == {
        "info/exclude": "exclude",
        "info/attributes": "attributes",
        "info/sparse-checkout": "sparse-checkout",
        "index": "index",
        "sharedindex.1": "shared",
    }
    assert (own / "index").stat().st_mtime == 1000


@pytest.mark.parametrize(
    "setting",
    [
        *(
            "autocrlf=true",
            "eol=crlf",
            "filemode=false",
            "ignorecase=true",
            "symlinks=false",
            "precomposeunicode=true",
        ),
        *("sparsecheckout=true", "sparsecheckoutcone=true"),
    ],
)
def test_settings_of_the_user_that_are_taken_over(setting: str, tmp_path: Path) -> None:
    shell(tmp_path, "git init -q")
    config = tmp_path / ".git" / "config"
    config.write_text(f"[core]\n\t{setting}\n\teditor=vi\n\trepositoryformatversion = 0\n")
    found = find_repository(tmp_path)
    assert found is not None
    assert found.settings == (f"core.{setting}",)
    config.write_text(f"[core]\n\t{setting.partition('=')[0]}\n")
    found = find_repository(tmp_path)
    assert found is not None
    assert found.settings == (f"core.{setting.partition('=')[0]}=true",)


def ended(code: int, errors: bytes) -> Callable[..., Any]:
    return lambda *_, **__: subprocess.CompletedProcess([], code, b"", errors)


def late(*_: Any, timeout: float, **__: Any) -> Any:
    assert timeout == 30
    raise subprocess.TimeoutExpired("git", timeout)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (ended(3, b" fatal: no \xff\n"), "fatal: no �"),
        (ended(3, b"\n"), "git ended with 3"),
        (late, "git did not answer: Command 'git' timed out after 30.0 seconds"),
    ],
)
def test_an_error_says_why(
    run: Callable[..., Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(GitError) as raised:
        PrivateRepository(tmp_path, tmp_path, None)
    assert str(raised.value) == message
    assert find_repository(tmp_path) is None


def test_a_machine_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(GitError, match="git is not on PATH"):
        PrivateRepository(tmp_path, tmp_path, None)
    assert find_repository(tmp_path) is None


def test_an_answer_that_is_read_in_part_is_no_error(tmp_path: Path) -> None:
    shell(tmp_path, "git init -q")
    own = PrivateRepository(tmp_path, tmp_path, None)
    with pytest.raises(GitError, match=r"^fatal: .*no-such-tree"):
        own.diff("no-such-tree", "no-such-tree", 100)
    for name in ("a", "b"):
        (tmp_path / name).touch()
    assert own.changed_paths(4) is None
    assert own.changed_paths(5) == [b"a", b"b"]
