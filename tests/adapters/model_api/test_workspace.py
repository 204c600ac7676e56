"""The files that the model may touch: no path, link or race leads out of the workspace."""

import contextlib
import os
import stat
from pathlib import Path

import pytest
from dragoman.adapters.model_api.workspace import MOST_READ_BYTES, RefusedError, Workspace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PARTS = st.sampled_from(
    ["..", ".", "", "a", "b", "out", "loop", "file.txt", "deep", "~", "....", "..a", "\u2028", "\0", "new.txt"]
)
SECRET = "the secret outside\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file.txt").write_text(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "file.txt").write_text("inside\n")
    (folder / "out").symlink_to(outside)
    (folder / "b").symlink_to(outside / "file.txt")
    (folder / "loop").symlink_to("loop")
    (folder / "a" / "out").symlink_to("../../outside")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARTS, min_size=1, max_size=6), st.sampled_from(["", "/", "root", "outside", "parent"]))
def test_no_path_leads_out(root: Path, outside: Path, parts: list[str], start: str) -> None:
    before = tree(outside)
    prefix = {"root": f"{root}/", "outside": f"{outside}/", "parent": f"{root}/../"}.get(start, start)
    path = prefix + "/".join(parts)
    workspace = Workspace(str(root))
    with contextlib.suppress(RefusedError):
        assert workspace.read(path) != SECRET
    with contextlib.suppress(RefusedError):
        assert workspace.write(path, "written\n").before != SECRET
    assert tree(outside) == before
    assert names(root.parent) == ["outside", "work"]


@pytest.mark.parametrize(
    "path", ["b", "out/file.txt", "a/out/file.txt", "loop", "loop/x", "../outside/file.txt", "a/../file.txt"]
)
def test_links_and_dots_are_refused(root: Path, path: str) -> None:
    with pytest.raises(RefusedError):
        Workspace(str(root)).read(path)
    with pytest.raises(RefusedError):
        Workspace(str(root)).write(path, "x")


def test_a_directory_that_becomes_a_link_meanwhile_leads_nowhere(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def exchanged(path: object, *rest: object, **more: object) -> int:
        if path == "deep" and (root / "a" / "deep").is_dir() and not (root / "a" / "deep").is_symlink():
            (root / "a" / "deep").rmdir()
            (root / "a" / "deep").symlink_to(outside)
        return real(path, *rest, **more)  # type: ignore[arg-type] # passed through

    monkeypatch.setattr(os, "open", exchanged)
    with pytest.raises(RefusedError):
        Workspace(str(root)).read("a/deep/file.txt")
    assert (root / "a" / "deep").is_symlink()


def test_the_root_may_be_reached_by_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    workspace = Workspace(str(tmp_path / "link"))
    assert workspace.read(f"{tmp_path}/link/file.txt") == "inside\n"
    assert workspace.read(f"{root}/file.txt") == "inside\n"
    assert workspace.absolute(f"{root}/file.txt") == f"{tmp_path}/link/file.txt"


def test_a_name_that_begins_like_the_root_is_outside(root: Path) -> None:
    (root.parent / "workshop").mkdir()
    (root.parent / "workshop" / "file.txt").write_text(SECRET)
    with pytest.raises(RefusedError, match="outside"):
        Workspace(str(root)).read(f"{root}shop/file.txt")


def test_what_is_no_text_is_reported(root: Path) -> None:
    (root / "binary").write_bytes(b"\x7fELF\0\1")
    (root / "latin").write_bytes(b"Gr\xfc\xdfe")
    (root / "large").write_bytes(b"x" * (MOST_READ_BYTES + 1))
    workspace = Workspace(str(root))
    for name, reason in (("binary", "binary file of 6 bytes"), ("latin", "binary"), ("large", "more than")):
        with pytest.raises(RefusedError, match=reason):
            workspace.read(name)
    with pytest.raises(RefusedError, match="directory"):
        workspace.read("a")
    with pytest.raises(RefusedError, match="does not exist"):
        workspace.read("absent")


@pytest.fixture
def pipe(root: Path) -> str:
    os.mkfifo(root / "pipe")
    return "pipe"


def test_a_pipe_blocks_no_run(root: Path, pipe: str) -> None:
    with pytest.raises(RefusedError, match="no regular file"):
        Workspace(str(root)).read(pipe)
    with pytest.raises(RefusedError, match="no regular file"):
        Workspace(str(root)).write(pipe, "x")


def test_a_write_keeps_the_mode_and_leaves_nothing_beside(root: Path) -> None:
    (root / "run.sh").write_text("old\n")
    (root / "run.sh").chmod(0o755)
    workspace = Workspace(str(root))
    written = workspace.write("run.sh", "new\n")
    assert (written.before, written.created) == ("old\n", False)
    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o755
    change = workspace.write("new/deep/file.txt", "x")
    assert (change.before, change.created) == (None, True)
    assert names(root / "new" / "deep") == ["file.txt"]


def test_a_write_that_fails_leaves_the_old_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    before = names(root)
    with pytest.raises(RefusedError, match="No space left"):
        Workspace(str(root)).write("file.txt", "new\n")
    assert (root / "file.txt").read_text() == "inside\n"
    assert names(root) == before


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "a/.GIT/config", ".git"])
def test_nothing_is_written_where_git_would_run_it(root: Path, path: str) -> None:
    with pytest.raises(RefusedError, match="git"):
        Workspace(str(root)).write(path, "#!/bin/sh\n")


def test_too_much_is_not_written(root: Path) -> None:
    with pytest.raises(RefusedError, match="more than"):
        Workspace(str(root)).write("file.txt", "x" * (MOST_READ_BYTES + 1))
    assert (root / "file.txt").read_text() == "inside\n"
