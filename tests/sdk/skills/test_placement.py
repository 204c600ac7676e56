"""Files placed in a workspace for a run: there while it lasts, and the workspace as it was afterwards."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from dragoman.sdk._skills.placement import PlacementError, check_files, placed

RULES = {"AGENTS.md": b"Be brief.\n", ".agents/skills/demo/SKILL.md": b"Demo.\n"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "README.md").write_text("A workspace.\n")
    return folder


def picture(folder: Path) -> Mapping[str, tuple[str, int]]:
    """Return everything in a folder: content or target, and mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (content, stat.S_IMODE(path.lstat().st_mode))
    return found


def codes(notices: list[tuple[str, str]]) -> list[str]:
    return [code for code, _ in notices]


def test_files_are_there_while_the_run_lasts(workspace: Path) -> None:
    before = picture(workspace)
    with placed(workspace, RULES) as notices:
        assert {path: (workspace / path).read_bytes() for path in RULES} == RULES
    assert (picture(workspace), notices) == (before, [])


def test_they_go_when_the_run_fails_too(workspace: Path) -> None:
    before = picture(workspace)
    with pytest.raises(RuntimeError), placed(workspace, RULES):
        raise RuntimeError
    assert picture(workspace) == before


def test_directories_that_were_there_stay(workspace: Path) -> None:
    (workspace / ".agents" / "skills").mkdir(parents=True)
    before = picture(workspace)
    with placed(workspace, RULES):
        pass
    assert picture(workspace) == before


@pytest.mark.parametrize("obstacle", ["file", "link", "dangling link", "directory", "file above", "link above"])
def test_an_existing_path_refuses_the_run_and_nothing_changes(workspace: Path, tmp_path: Path, obstacle: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "AGENTS.md").write_text("Somewhere else.")
    path = workspace / "AGENTS.md"
    if obstacle == "file":
        path.write_text("Mine.")
    elif obstacle == "link":
        path.symlink_to(elsewhere / "AGENTS.md")
    elif obstacle == "dangling link":
        path.symlink_to(elsewhere / "none")
    elif obstacle == "directory":
        path.mkdir()
    elif obstacle == "file above":
        (workspace / ".agents").write_text("Mine.")
    else:
        (workspace / ".agents").symlink_to(elsewhere)
    before = picture(tmp_path)
    with pytest.raises(PlacementError, match="exists already"), placed(workspace, RULES):
        pytest.fail("the run must not begin")
    assert picture(tmp_path) == before


def test_a_second_run_with_the_same_files_is_refused(workspace: Path) -> None:
    with placed(workspace, RULES):
        with pytest.raises(PlacementError), placed(workspace, RULES):
            pytest.fail("the run must not begin")
        assert {path: (workspace / path).read_bytes() for path in RULES} == RULES


def test_what_the_agent_has_changed_stays_and_is_reported(workspace: Path) -> None:
    with placed(workspace, RULES) as notices:
        (workspace / "AGENTS.md").write_text("Better rules.")
        (workspace / ".agents" / "skills" / "demo" / "notes").write_text("Learned.")
    assert codes(notices) == ["workspace_file_changed"]
    assert (workspace / "AGENTS.md").read_text() == "Better rules."
    assert (workspace / ".agents" / "skills" / "demo" / "notes").exists()
    assert not (workspace / ".agents" / "skills" / "demo" / "SKILL.md").exists()


def test_a_change_of_equal_length_is_one(workspace: Path) -> None:
    with placed(workspace, {"a": b"one"}) as notices:
        (workspace / "a").write_text("two")
    assert codes(notices) == ["workspace_file_changed"]


def test_what_the_agent_has_removed_is_not_reported(workspace: Path) -> None:
    with placed(workspace, {"docs/rules": b"x", "gone": b"y"}) as notices:
        (workspace / "gone").unlink()
        (workspace / "docs" / "rules").unlink()
        (workspace / "docs").rmdir()
        (workspace / "docs").write_text("a file now")
    assert notices == []
    assert (workspace / "docs").read_text() == "a file now"


def test_nothing_is_removed_behind_a_link(workspace: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rules").write_bytes(b"ours")
    with placed(workspace, {"docs/rules": b"ours"}) as notices:
        (workspace / "docs" / "rules").unlink()
        (workspace / "docs").rmdir()
        (workspace / "docs").symlink_to(elsewhere)
    assert codes(notices) == ["workspace_file_changed"]
    assert (elsewhere / "rules").read_bytes() == b"ours"


def test_a_pipe_in_its_place_is_not_read(workspace: Path) -> None:
    with placed(workspace, {"empty": b""}) as notices:
        (workspace / "empty").unlink()
        os.mkfifo(workspace / "empty")
    assert codes(notices) == ["workspace_file_changed"]


def test_a_workspace_may_be_named_by_a_link(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(workspace)
    before = picture(workspace)
    with placed(tmp_path / "alias", RULES) as notices:
        assert (workspace / "AGENTS.md").exists()
    assert (picture(workspace), notices) == (before, [])


def test_no_files_need_no_workspace() -> None:
    with placed(Path("/nonexistent"), {}) as notices:
        pass
    assert notices == []


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "./a", "a/../b", "..", "a\\b", "a\0b", ".git/hooks/x", "a/.GIT/x", ".hg/x"]
)
def test_paths_that_may_not_be_placed(path: str) -> None:
    with pytest.raises(PlacementError):
        check_files({path: b""})


def test_no_file_below_another_and_not_too_many() -> None:
    with pytest.raises(PlacementError, match="below another"):
        check_files({"a": b"", "a/b": b""})
    with pytest.raises(PlacementError, match="2001 files"):
        check_files({f"f{number}": b"" for number in range(2001)})
