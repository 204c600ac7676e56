"""Files placed in a workspace for a run: there while it lasts, and everything as it was afterwards."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from dragoman.sdk._placement import placed, undo_left_over
from dragoman.sdk._placement_plan import (
    CHANGED,
    Journal,
    Original,
    Placed,
    PlacementError,
    Undo,
    check_files,
    decide,
    digest_of,
    journal_text,
    parents_of,
    read_journal,
)
from hypothesis import given
from hypothesis import strategies as st

RULES = {"AGENTS.md": b"Be brief.\n", ".agents/skills/demo/SKILL.md": b"Demo.\n"}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "README.md").write_text("A workspace.\n")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "state" / "placements"


def picture(folder: Path) -> Mapping[str, tuple[str, int, int]]:
    """Return everything in a folder: content or target, mode and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        time = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (content, stat.S_IMODE(status.st_mode), time)
    return found


def test_files_are_there_for_a_while(workspace: Path, store: Path) -> None:
    before = picture(workspace)
    with placed(workspace, RULES, "r1", store=store) as told:
        assert {path: (workspace / path).read_bytes() for path in RULES} == RULES
    assert picture(workspace) == before
    assert told.notices == []
    assert list(store.iterdir()) == []


def test_what_was_there_comes_back_as_it_was(workspace: Path, store: Path) -> None:
    (workspace / "AGENTS.md").write_bytes(b"Mine.\r\n\xff")
    (workspace / "AGENTS.md").chmod(0o640)
    os.utime(workspace / "AGENTS.md", ns=(7, 1_600_000_000_123_456_789))
    (workspace / ".agents").mkdir()
    with placed(workspace, RULES, "r1", store=store):
        assert (workspace / "AGENTS.md").read_bytes() == b"Be brief.\n"
        assert stat.S_IMODE((workspace / "AGENTS.md").stat().st_mode) == 0o640
    assert (workspace / "AGENTS.md").read_bytes() == b"Mine.\r\n\xff"
    assert stat.S_IMODE((workspace / "AGENTS.md").stat().st_mode) == 0o640
    assert (workspace / "AGENTS.md").stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert list((workspace / ".agents").iterdir()) == []


def test_it_is_undone_when_the_run_breaks(workspace: Path, store: Path) -> None:
    before = picture(workspace)
    with pytest.raises(RuntimeError), placed(workspace, RULES, "r1", store=store):
        raise RuntimeError
    assert picture(workspace) == before


def test_what_the_agent_wrote_besides_stays(workspace: Path, store: Path) -> None:
    with placed(workspace, RULES, "r1", store=store) as told:
        (workspace / ".agents" / "notes.txt").write_text("Found it.")
    assert (workspace / ".agents" / "notes.txt").read_text() == "Found it."
    assert not (workspace / ".agents" / "skills").exists()
    assert told.notices == []


def test_a_placed_file_that_the_agent_changed_stays_and_is_told(workspace: Path, store: Path) -> None:
    with placed(workspace, RULES, "r1", store=store) as told:
        (workspace / "AGENTS.md").write_text("Learned something.")
    assert (workspace / "AGENTS.md").read_text() == "Learned something."
    assert [code for code, _ in told.notices] == ["workspace_file_changed"]


def test_what_a_changed_file_replaced_is_kept_elsewhere(workspace: Path, store: Path) -> None:
    (workspace / "AGENTS.md").write_text("Mine.")
    with placed(workspace, RULES, "r1", store=store) as told:
        (workspace / "AGENTS.md").write_text("Learned something.")
    assert (workspace / "AGENTS.md").read_text() == "Learned something."
    ((_, message),) = told.notices
    kept = store / "kept" / "r1" / "AGENTS.md"
    assert str(kept) in message
    assert kept.read_text() == "Mine."


def test_a_file_that_the_agent_removed_comes_back_and_is_told(workspace: Path, store: Path) -> None:
    (workspace / "docs").mkdir()
    (workspace / "docs" / "rules").write_text("Mine.")
    with placed(workspace, {"docs/rules": b"x", "gone": b"y"}, "r1", store=store) as told:
        (workspace / "docs" / "rules").unlink()
        (workspace / "docs").rmdir()
        (workspace / "gone").unlink()
    assert (workspace / "docs" / "rules").read_text() == "Mine."
    assert not (workspace / "gone").exists()
    assert [code for code, _ in told.notices] == ["workspace_file_changed"]


def test_an_agent_that_puts_the_original_back_is_fine(workspace: Path, store: Path) -> None:
    (workspace / "AGENTS.md").write_text("Mine.")
    with placed(workspace, RULES, "r1", store=store) as told:
        (workspace / "AGENTS.md").write_text("Mine.")
    assert (workspace / "AGENTS.md").read_text() == "Mine."
    assert told.notices == []


# Links.


def _link_file(workspace: Path, outside: Path) -> None:
    (workspace / "AGENTS.md").symlink_to(outside / "target")


def _link_nowhere(workspace: Path, outside: Path) -> None:
    (workspace / "AGENTS.md").symlink_to(outside / "nothing")


def _link_folder(workspace: Path, outside: Path) -> None:
    (workspace / ".agents").symlink_to(outside)


def _a_folder(workspace: Path, outside: Path) -> None:
    (workspace / "AGENTS.md").mkdir()


def _a_pipe(workspace: Path, outside: Path) -> None:
    os.mkfifo(workspace / "AGENTS.md")


def _a_file_for_a_folder(workspace: Path, outside: Path) -> None:
    (workspace / ".agents").write_text("x")


@pytest.mark.parametrize("lay", [_link_file, _link_nowhere, _link_folder, _a_folder, _a_pipe, _a_file_for_a_folder])
def test_what_is_no_plain_file_is_left_alone(
    workspace: Path, store: Path, tmp_path: Path, lay: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "target").write_text("Secret.")
    lay(workspace, outside)
    before = sorted(str(path) for path in workspace.rglob("*"))
    with pytest.raises(PlacementError), placed(workspace, RULES, "r1", store=store):
        pytest.fail("it was placed")
    assert picture(outside) == {"target": ("Secret.", 0o644, (outside / "target").stat().st_mtime_ns)}
    assert sorted(str(path) for path in workspace.rglob("*")) == before
    assert list(store.iterdir()) == []


def test_a_folder_that_the_agent_swaps_for_a_link_is_not_followed(
    workspace: Path, store: Path, tmp_path: Path
) -> None:
    (workspace / "docs").mkdir()
    (workspace / "docs" / "rules").write_text("Mine.")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "rules").write_text("ours")  # looks like what was placed
    with placed(workspace, {"docs/rules": b"ours"}, "r1", store=store) as told:
        (workspace / "docs").rename(workspace / "moved")
        (workspace / "docs").symlink_to(outside)
    assert (outside / "rules").read_text() == "ours"
    assert "kept" in told.notices[0][1]


def test_a_workspace_that_is_reached_by_a_link_is_one_workspace(workspace: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(workspace)
    with (
        placed(tmp_path / "alias", RULES, "r1", store=store),
        pytest.raises(PlacementError) as refused,
        placed(workspace, RULES, "r2", store=store),
    ):
        pytest.fail("two at once")
    assert refused.value.code == "workspace_busy"


# Two runs, and killed ones.


def test_a_second_run_with_files_is_refused_until_the_first_is_over(workspace: Path, store: Path) -> None:
    before = picture(workspace)
    with placed(workspace, RULES, "r1", store=store):
        with pytest.raises(PlacementError) as refused, placed(workspace, {"x": b""}, "r2", store=store):
            pytest.fail("two at once")
        assert refused.value.code == "workspace_busy"
        with placed(workspace, {}, "r3", store=store):
            pass  # without files of its own it is in nobody's way
        assert (workspace / "AGENTS.md").exists()
    with placed(workspace, {"x": b""}, "r2", store=store):
        assert not (workspace / "AGENTS.md").exists()
    assert picture(workspace) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from dragoman.sdk import _placement, _placement_tree

workspace, store, writes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
write = _placement_tree.Tree.write
def counted(*arguments, **named):
    global writes
    if writes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    writes -= 1
    write(*arguments, **named)
_placement_tree.Tree.write = counted
with _placement.placed(workspace, {"AGENTS.md": b"ours", "a/b": b"ours"}, "r1", store=store):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("writes", [0, 1, 9], ids=["before", "halfway", "after"])
@pytest.mark.parametrize("by_start", [True, False], ids=["start", "next run"])
def test_what_a_killed_run_has_placed_is_taken_back(
    workspace: Path, store: Path, writes: int, by_start: bool
) -> None:
    (workspace / "AGENTS.md").write_text("Mine.")
    before = picture(workspace)
    done = subprocess.run([sys.executable, "-c", KILLED, workspace, store, str(writes)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert picture(workspace) != before
    if by_start:
        assert len(undo_left_over(store)) == 1
    else:
        with placed(workspace, {"AGENTS.md": b"again"}, "r2", store=store) as told:
            assert (workspace / "AGENTS.md").read_bytes() == b"again"
        assert [code for code, _ in told.notices] == ["workspace_files_recovered"]
    assert picture(workspace) == before
    assert list(store.iterdir()) == []


def test_a_start_leaves_live_runs_alone(workspace: Path, store: Path) -> None:
    with placed(workspace, RULES, "r1", store=store):
        assert undo_left_over(store) == []
        assert (workspace / "AGENTS.md").exists()


def test_a_workspace_that_is_away_is_cleared_up_when_it_is_back(workspace: Path, store: Path) -> None:
    before = picture(workspace)
    subprocess.run([sys.executable, "-c", KILLED, workspace, store, "9"], check=False)
    away = workspace.rename(workspace.with_name("away"))
    undo_left_over(store)
    away.rename(workspace)
    undo_left_over(store)
    assert picture(workspace) == before


def test_a_journal_that_nobody_can_read_is_told_and_kept(workspace: Path, store: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, workspace, store, "9"], check=False)
    (journal,) = store.glob("*/journal.json")
    journal.write_text("{")
    with pytest.raises(PlacementError, match="look at the files"), placed(workspace, RULES, "r2", store=store):
        pytest.fail("it was placed")
    assert journal.exists()
    assert undo_left_over(store) == []


def test_nothing_is_placed_where_nothing_can_be_kept_aside(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(PlacementError, match="kept aside"),
        placed(workspace, RULES, "r1", store=tmp_path / "file" / "placements"),
    ):
        pytest.fail("it was placed")
    assert not (workspace / "AGENTS.md").exists()


# The pure part.


@pytest.mark.parametrize(
    "path", ["", "/etc/x", "../x", "a/../x", "a//b", "./x", "a\0", "a\\b", ".git/hooks/x", "sub/.GIT/config"]
)
def test_no_path_leads_out(path: str) -> None:
    with pytest.raises(PlacementError):
        check_files({path: b""})


def test_a_file_is_no_folder_of_another() -> None:
    with pytest.raises(PlacementError):
        check_files({"a": b"", "a/b": b""})


def test_folders_of_files() -> None:
    assert parents_of(["x", "a/b/c", "a/d"]) == ["a", "a/b"]


ORIGINAL = Original("old", 0o644, 1, "original-0")


@pytest.mark.parametrize(
    ("entry", "there", "step"),
    [
        (Placed("a", "new"), None, Undo.NOTHING),
        (Placed("a", "new"), "new", Undo.REMOVE),
        (Placed("a", "new"), "else", Undo.LEAVE),
        (Placed("a", "new"), CHANGED, Undo.LEAVE),
        (Placed("a", "new", ORIGINAL), None, Undo.RESTORE_REMOVED),
        (Placed("a", "new", ORIGINAL), "new", Undo.RESTORE),
        (Placed("a", "new", ORIGINAL), "old", Undo.NOTHING),
        (Placed("a", "new", ORIGINAL), "else", Undo.LEAVE),
        (Placed("a", "old", ORIGINAL), "old", Undo.RESTORE),
    ],
)
def test_what_becomes_of_a_file(entry: Placed, there: str | None, step: Undo) -> None:
    assert decide(entry, there) is step


def test_a_journal_is_read_as_it_was_written() -> None:
    files = (Placed("a/b", "new", ORIGINAL), Placed("c", "x"))
    journal = Journal("/w", "r1", files, ("a",))
    assert read_journal(journal_text(journal).encode()) == journal


@given(st.binary() | st.text().map(str.encode))
def test_no_journal_raises_anything_else(data: bytes) -> None:
    with pytest.raises(PlacementError):
        read_journal(data)


def test_a_journal_that_leads_elsewhere_is_none() -> None:
    text = journal_text(Journal("/w", "r1", (Placed("../x", digest_of(b"")),), ()))
    with pytest.raises(PlacementError):
        read_journal(text.encode())
