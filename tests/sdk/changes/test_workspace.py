"""What a run changed, in repositories in odd states; the user's repository stays as it was, byte for byte."""

import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from dragoman.sdk._changes import tracking
from dragoman.sdk._changes.errors import TooLargeError
from dragoman.sdk._changes.tracking import Workspace
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

CREATE, MODIFY = pb.FILE_OPERATION_CREATE, pb.FILE_OPERATION_MODIFY
DELETE, RENAME = pb.FILE_OPERATION_DELETE, pb.FILE_OPERATION_RENAME


def shell(directory: Path, *commands: str) -> None:
    """Run commands as a user would, with a configuration of their own."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{f"GIT_{who}_{what}": "user@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    for command in commands:
        subprocess.run(command, shell=True, cwd=directory, env=env, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two files and one commit."""
    top = tmp_path / "repository"
    top.mkdir()
    shell(
        top, "git init -q -b main", r"printf 'one\ntwo\n' > a.txt", "echo x > b.txt", "git add .", "git commit -qm 1"
    )
    return top


def state_of(directory: Path) -> Mapping[str, str]:
    """Return the digest of all files below a directory, and when each was changed."""
    found = {}
    for path in sorted(directory.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        data = content.encode() if isinstance(content, str) else content
        found[str(path)] = f"{hashlib.sha256(data).hexdigest()} {path.lstat().st_mtime_ns} {path.lstat().st_mode:o}"
    return found


def changes_of(
    workspace: Path, *commands: str, user_directory: Path | None = None
) -> tuple[adapter_pb2.GetChangesResponse, dict[str, pb.FileOperation.ValueType]]:
    """Record a workspace, change it by commands, and return what is found; check the user's repository."""
    user_directory = user_directory or workspace / ".git"
    before = state_of(user_directory)
    recorded = Workspace(str(workspace))
    try:
        if commands:
            assert recorded.changes().files == []  # what was there already is no change of the run's
        assert state_of(user_directory) == before
        shell(workspace, *commands)
        before = state_of(user_directory)
        response = recorded.changes()
        assert state_of(user_directory) == before
    finally:
        recorded.close()
    return response, {file.path: file.operation for file in response.files}


def test_all_kinds_of_changes_on_top_of_those_of_the_user(repository: Path) -> None:
    """What the user had not committed is no change of the run."""
    shell(repository, "echo mine >> a.txt", "echo draft > draft.txt", "git mv b.txt c.txt")
    response, found = changes_of(
        repository,
        r"printf 'one\ntwo\nmine\nthree\n' > a.txt",
        "chmod +x a.txt",
        "mv c.txt 'd e.txt'",
        "rm draft.txt",
        "ln -s a.txt link",
        r"printf '\0\1' > binary",
    )
    assert found == {"a.txt": MODIFY, "binary": CREATE, "d e.txt": RENAME, "draft.txt": DELETE, "link": CREATE}
    changed = {file.path: file for file in response.files}
    text = changed["a.txt"]
    assert (text.added_lines, text.deleted_lines, text.old_mode, text.new_mode) == (1, 0, 0o100644, 0o100755)
    assert text.diff.endswith("@@ -1,3 +1,4 @@\n one\n two\n mine\n+three\n")
    assert changed["d e.txt"].old_path == "c.txt"
    assert changed["binary"].is_binary
    assert not changed["binary"].HasField("added_lines")
    assert not changed["link"].is_binary
    assert changed["link"].new_mode == 0o120000
    assert response.root == str(repository)


def test_a_file_that_becomes_a_link_has_both_its_diffs(repository: Path) -> None:
    """Git shows two diffs for it; those of the files after it are not shifted."""
    response, found = changes_of(repository, "rm a.txt", "ln -s b.txt a.txt", "echo y > b.txt")
    assert found == {"a.txt": MODIFY, "b.txt": MODIFY}
    assert [file.diff.count("diff --git") for file in response.files] == [2, 1]
    assert response.files[1].diff.endswith("-x\n+y\n")


def test_a_commit_by_the_agent_is_a_change_of_files(repository: Path) -> None:
    """The workspace is compared, not the history."""
    _, found = changes_of(repository, "echo 3 >> a.txt", "git commit -qam 2", "git checkout -qb other")
    assert found == {"a.txt": MODIFY}


def test_a_subdirectory_is_compared_with_its_whole_repository(repository: Path) -> None:
    """An agent in a part of a repository edits other parts, too."""
    shell(repository, "mkdir sub", "echo s > sub/s.txt", "git add .", "git commit -qm 2")
    response, found = changes_of(
        repository / "sub", "echo t >> ../a.txt", "rm s.txt", user_directory=repository / ".git"
    )
    assert found == {"a.txt": MODIFY, "sub/s.txt": DELETE}
    assert response.root == str(repository)


def test_ignored_files_are_not_compared(repository: Path) -> None:
    """Neither those of ``.gitignore`` nor those of the repository's own list."""
    shell(repository, "echo '*.log' > .gitignore", "echo private > .git/info/exclude")
    _, found = changes_of(repository, "echo 1 > x.log", "echo 1 > private", "echo 1 > seen")
    assert found == {"seen": CREATE}


def test_an_unborn_branch(tmp_path: Path) -> None:
    """There is no commit, and maybe no index."""
    shell(tmp_path, "git init -q", "echo 1 > a")
    _, found = changes_of(tmp_path, "echo 2 > b", "echo 2 > a")
    assert found == {"a": MODIFY, "b": CREATE}


def test_a_conflict(repository: Path) -> None:
    """What the user had of both sides is where the run begins."""
    shell(
        repository, "git checkout -qb left", "echo left > a.txt", "git commit -qam left", "git checkout -q main",
        "echo right > a.txt", "git commit -qam right", "git merge left || true",
    )  # fmt: skip
    response, found = changes_of(repository, "echo both > a.txt")
    assert found == {"a.txt": MODIFY}
    assert "-<<<<<<< HEAD" in response.files[0].diff


def test_a_conflict_with_a_deletion(repository: Path) -> None:
    """One side deleted the file; there may be nothing in the workspace."""
    shell(
        repository, "git checkout -qb left", "git rm -q b.txt", "git commit -qm left", "git checkout -q main",
        "echo right > b.txt", "git commit -qam right", "git merge left || true", "rm b.txt",
    )  # fmt: skip
    _, found = changes_of(repository, "echo 3 >> a.txt", "echo back > b.txt")
    assert found == {"a.txt": MODIFY, "b.txt": CREATE}


def test_a_submodule(repository: Path, tmp_path: Path) -> None:
    """Its commit is compared."""
    other = tmp_path / "other"
    other.mkdir()
    shell(other, "git init -q -b main", "echo 1 > f", "git add .", "git commit -qm 1")
    adding = f"git -c protocol.file.allow=always submodule add -q {shlex.quote(str(other))} part"
    shell(repository, adding, "git commit -qm 2")
    response, found = changes_of(repository, "cd part && echo 2 > f && git commit -qam 2")
    assert found == {"part": MODIFY}
    assert response.files[0].new_mode == 0o160000


def test_a_linked_worktree(repository: Path, tmp_path: Path) -> None:
    """Its index is elsewhere, and so are its objects."""
    shell(repository, f"git worktree add -q {shlex.quote(str(tmp_path / 'tree'))} -b tree")
    _, found = changes_of(tmp_path / "tree", "echo 2 > a.txt", user_directory=repository / ".git")
    assert found == {"a.txt": MODIFY}


@pytest.mark.parametrize("sparse_index", ["--no-sparse-index", "--sparse-index"])
def test_a_sparse_checkout(repository: Path, sparse_index: str) -> None:
    """What is not checked out was not deleted."""
    shell(
        repository, "mkdir in out", "echo 1 > in/f", "echo 1 > out/f", "git add .", "git commit -qm 2",
        f"git sparse-checkout set --cone {sparse_index} in",
    )  # fmt: skip
    assert not (repository / "out").exists()
    _, found = changes_of(repository, "echo 2 > in/f", "mkdir out", "echo 2 > out/new")
    assert found == {"in/f": MODIFY, "out/new": CREATE}


def test_a_split_index(repository: Path) -> None:
    """A part of the index is in a file of its own."""
    shell(repository, "git update-index --split-index", "echo c > c.txt", "git add c.txt")
    _, found = changes_of(repository, "echo 2 > c.txt")
    assert found == {"c.txt": MODIFY}


def test_filters_and_hooks_of_the_user_are_not_run(repository: Path, tmp_path: Path) -> None:
    """As git-lfs has them; nor a monitor of files, nor a program for diffs."""
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path / 'sprung'))}\ncat\n")
    trap.chmod(0o755)
    program = shlex.quote(str(trap))
    shell(
        repository, "echo '*.bin filter=lfs diff=lfs -text' > .gitattributes", "echo content > f.bin", "git add .",
        "git commit -qm 2", f"git config filter.lfs.clean {program}", f"git config filter.lfs.smudge {program}",
        "git config filter.lfs.required true", f"git config diff.lfs.textconv {program}",
        f"git config core.fsmonitor {program}", f"git config diff.external {program}",
        f"git config core.hooksPath {shlex.quote(str(tmp_path))}", f"cp {program} ../post-index-change",
    )  # fmt: skip
    (tmp_path / "sprung").unlink(missing_ok=True)
    recorded = Workspace(str(repository))
    (repository / "f.bin").write_text("other\n")
    found = recorded.changes()
    recorded.close()
    assert [file.path for file in found.files] == ["f.bin"]
    assert not (tmp_path / "sprung").exists()


def test_line_endings_that_git_converts(repository: Path) -> None:
    """A file that the user has with carriage returns is as its repository has it."""
    shell(repository, "git config core.autocrlf true", "rm a.txt", "git checkout -q a.txt")
    shell(repository, "touch -d '1 minute ago' a.txt", "git update-index --refresh")  # or git reads it again
    assert b"\r\n" in (repository / "a.txt").read_bytes()
    response, found = changes_of(repository, r"printf 'one\r\ntwo\r\nthree\r\n' > a.txt")
    assert found == {"a.txt": MODIFY}
    assert (response.files[0].added_lines, response.files[0].deleted_lines) == (1, 0)


def test_a_repository_with_sha256(tmp_path: Path) -> None:
    """Objects have longer names."""
    shell(tmp_path, "git init -q --object-format=sha256", "echo 1 > a", "git add .", "git commit -qm 1")
    response, found = changes_of(tmp_path, "echo 2 > a")
    assert found == {"a": MODIFY}
    assert response.files[0].diff.endswith("-1\n+2\n")


def test_a_directory_without_git(tmp_path: Path) -> None:
    """It is recorded as it is."""
    (tmp_path / "a").write_text("1\n")
    response, found = changes_of(tmp_path, "echo 2 > a", "mkdir b", "echo 3 > b/c")
    assert found == {"a": MODIFY, "b/c": CREATE}
    assert not (tmp_path / ".git").exists()
    assert response.root == str(tmp_path)


def test_a_directory_that_its_repository_ignores(repository: Path) -> None:
    """The repository would show nothing of it, so it is compared by itself."""
    shell(repository, "echo build > .gitignore", "mkdir build", "echo 1 > build/a")
    response, found = changes_of(repository / "build", "echo 2 > a", user_directory=repository / ".git")
    assert found == {"a": MODIFY}
    assert response.root == str(repository / "build")


def test_a_nested_repository_is_not_looked_into(repository: Path) -> None:
    """It is said so."""
    shell(repository, "mkdir inner", "cd inner && git init -q && echo 1 > f")
    response, found = changes_of(repository, "echo 2 > inner/f", "echo 2 > a.txt")
    assert found == {"a.txt": MODIFY}
    assert response.notes == ["1 nested repositories were not looked into."]


def test_a_read_only_repository(repository: Path) -> None:
    """Nothing is written to it."""
    shell(repository, "chmod -R a-w .git")
    try:
        _, found = changes_of(repository, "echo 2 > a.txt")
    finally:
        shell(repository, "chmod -R u+w .git")
    assert found == {"a.txt": MODIFY}


def test_variables_that_lead_git_elsewhere_are_not_passed_on(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter may have been started by a hook of git."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    recorded = Workspace(str(repository))
    (repository / "a.txt").write_text("2\n")
    assert [file.path for file in recorded.changes().files] == ["a.txt"]
    recorded.close()


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can exceed."""
    monkeypatch.setattr(tracking, "_LARGEST_FILE", 1000)
    monkeypatch.setattr(tracking, "_MOST_PATHS", 3)
    monkeypatch.setattr(tracking, "_MOST_BYTES", 2000)
    monkeypatch.setattr(tracking, "_LARGEST_DIFF", 600)


@pytest.mark.usefixtures("small_limits")
def test_large_files_are_compared_by_size_and_time(repository: Path) -> None:
    """Also those that were small before, or are small now."""
    (repository / "shrinks").write_text("x" * 2000)
    (repository / "goes").write_text("x" * 2000)
    recorded = Workspace(str(repository))
    assert recorded.changes().files == []
    (repository / "shrinks").write_text("x")
    (repository / "a.txt").write_text("y" * 2000)
    (repository / "goes").unlink()
    (repository / "new").write_text("x" * 2000)
    found = recorded.changes()
    recorded.close()
    assert {file.path: file.operation for file in found.files} == {
        "shrinks": MODIFY, "a.txt": MODIFY, "goes": DELETE, "new": CREATE,
    }  # fmt: skip
    assert all(file.is_binary and file.diff_left_out and not file.diff for file in found.files)
    assert [file.path for file in found.files] == sorted(file.path for file in found.files)


@pytest.mark.usefixtures("small_limits")
def test_a_large_diff_is_left_out(repository: Path) -> None:
    """Its counts are there."""
    recorded = Workspace(str(repository))
    (repository / "b.txt").write_text("1234567\n" * 100)
    found = recorded.changes()
    recorded.close()
    assert [(file.added_lines, file.diff_left_out, file.diff) for file in found.files] == [(100, True, "")]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("files", [["x"] * 4, ["x" * 900] * 3], ids=["files", "bytes"])
def test_a_workspace_with_too_much_to_record_is_refused(tmp_path: Path, files: list[str]) -> None:
    """The error says what to do, and nothing stays behind."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for number, content in enumerate(files):
        (workspace / str(number)).write_text(content)
    with pytest.raises(TooLargeError, match=r"\.gitignore"):
        Workspace(str(workspace))


def test_paths_that_are_no_text(repository: Path) -> None:
    """They are shown with a replacement, and quotes and newlines as they are."""
    names = [b"caf\xe9", b'quo"te', b"new\nline"]
    recorded = Workspace(str(repository))
    for name in names:
        Path(os.fsdecode(os.fsencode(repository) + b"/" + name)).write_text("1\n")
    found = recorded.changes()
    recorded.close()
    assert sorted(file.path for file in found.files) == ["caf�", "new\nline", 'quo"te']
    assert all(file.added_lines == 1 for file in found.files)
