"""Skills in an agent's own directory: ours are kept in order, all others are left alone."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from dragoman.sdk._skills.source import SkillSource
from dragoman.sdk._skills.sync import MARKS_DIR, Synced, list_directory, sync_directory
from dragoman.v1 import adapter_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

INSTALLED, STALE = pb.SKILL_STATE_INSTALLED, pb.SKILL_STATE_STALE
EXTERNAL, MISSING = pb.SKILL_STATE_EXTERNAL, pb.SKILL_STATE_MISSING


def written(name: str, text: str = "Do it.", **files: bytes) -> SkillSource:
    document = f"---\nname: {name}\ndescription: About {name}\n---\n{text}\n"
    return SkillSource(name, None, {"SKILL.md": document.encode(), **files})


def states(synced: Synced) -> Mapping[str, int]:
    return {entry.name: entry.state for entry in synced.skills}


def tree(root: Path) -> Mapping[str, str]:
    """Return everything below ``root``: links by where they lead, files by their text."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(root))] = path.read_text()
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "agent" / "skills"


@pytest.fixture
def linked(tmp_path: Path) -> SkillSource:
    directory = tmp_path / "source" / "review"
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text("---\ndescription: How to review\n---\nLook.\n")
    return SkillSource("review", directory, {"SKILL.md": b"Look."})


def test_one_of_a_directory_is_linked_and_one_of_files_is_written(root: Path, linked: SkillSource) -> None:
    synced = sync_directory(root, [linked, written("notes")])
    assert synced.warnings == []
    assert states(synced) == {"notes": INSTALLED, "review": INSTALLED}
    assert [entry.description for entry in synced.skills] == ["About notes", "How to review"]
    assert (root / "review").readlink() == linked.directory
    assert (root / "notes" / "SKILL.md").read_text().endswith("Do it.\n")


def test_a_second_time_changes_nothing(root: Path, linked: SkillSource) -> None:
    skills = [linked, written("notes")]
    sync_directory(root, skills)
    before = {path: path.lstat().st_ino for path in root.iterdir()}
    assert sync_directory(root, skills).warnings == []
    assert {path: path.lstat().st_ino for path in root.iterdir()} == before


def test_a_skill_that_is_no_longer_requested_goes_and_leaves_no_trace(root: Path, linked: SkillSource) -> None:
    sync_directory(root, [linked, written("notes")])
    assert states(sync_directory(root, [linked])) == {"review": INSTALLED}
    assert sync_directory(root, []).skills == []
    assert list(root.iterdir()) == []
    assert linked.directory is not None
    assert (linked.directory / "SKILL.md").exists()


def test_a_new_text_replaces_the_old(root: Path) -> None:
    sync_directory(root, [written("notes", "First.", old=b"x")])
    assert sync_directory(root, [written("notes", "Second.")]).warnings == []
    assert tree(root / "notes")["SKILL.md"].endswith("Second.\n")
    assert not (root / "notes" / "old").exists()


def test_what_its_user_has_there_is_never_touched(root: Path, linked: SkillSource) -> None:
    (root / "review").mkdir(parents=True)
    (root / "review" / "SKILL.md").write_text("Mine.")
    (root / "other").mkdir()
    (root / "other" / "SKILL.md").write_text("Mine too.")
    before = tree(root)
    synced = sync_directory(root, [linked])
    assert states(synced) == {"other": EXTERNAL, "review": EXTERNAL}
    assert synced.warnings == ["review is there already and is not ours; it stays as it is"]
    assert states(sync_directory(root, [])) == {"other": EXTERNAL, "review": EXTERNAL}
    assert tree(root) == before


def test_a_link_of_its_user_to_the_same_place_is_fine(root: Path, linked: SkillSource) -> None:
    root.mkdir(parents=True)
    (root / "review").symlink_to(str(linked.directory))
    synced = sync_directory(root, [linked])
    assert (states(synced), synced.warnings) == ({"review": EXTERNAL}, [])
    sync_directory(root, [])
    assert (root / "review").is_symlink()


def test_a_link_that_leads_nowhere_is_repaired(root: Path, linked: SkillSource, tmp_path: Path) -> None:
    root.mkdir(parents=True)
    (root / "review").symlink_to(tmp_path / "gone")
    synced = sync_directory(root, [linked])
    assert states(synced) == {"review": INSTALLED}
    assert "is not there; replaced" in synced.warnings[0]


def test_a_link_of_ours_whose_skill_has_moved_is_repaired(root: Path, linked: SkillSource, tmp_path: Path) -> None:
    sync_directory(root, [linked])
    assert linked.directory is not None
    moved = linked.directory.rename(tmp_path / "moved")
    assert {entry.name: entry.state for entry in list_directory(root)} == {"review": MISSING}
    synced = sync_directory(root, [SkillSource("review", moved, linked.files)])
    assert (states(synced), synced.warnings) == ({"review": INSTALLED}, [])
    assert (root / "review").readlink() == moved


def test_a_link_of_ours_that_leads_nowhere_can_be_taken_away(root: Path, linked: SkillSource) -> None:
    sync_directory(root, [linked])
    assert linked.directory is not None
    (linked.directory / "SKILL.md").unlink()
    linked.directory.rmdir()
    assert sync_directory(root, []).skills == []
    assert not os.path.lexists(root / "review")


def test_a_removed_skill_comes_back(root: Path) -> None:
    sync_directory(root, [written("notes")])
    (root / "notes" / "SKILL.md").unlink()
    (root / "notes").rmdir()
    assert states(sync_directory(root, [written("notes")])) == {"notes": INSTALLED}


@pytest.mark.parametrize("requested", [True, False])
def test_a_changed_skill_stays(root: Path, requested: bool) -> None:
    sync_directory(root, [written("notes")])
    (root / "notes" / "SKILL.md").write_text("Better.")
    synced = sync_directory(root, [written("notes")] if requested else [])
    assert states(synced) == {"notes": STALE}
    assert len(synced.warnings) == 1
    assert (root / "notes" / "SKILL.md").read_text() == "Better."


def test_what_programs_leave_is_no_change(root: Path) -> None:
    sync_directory(root, [written("notes")])
    (root / "notes" / "__pycache__").mkdir()
    (root / "notes" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert sync_directory(root, []).warnings == []
    assert not (root / "notes").exists()


def test_one_that_was_killed_is_put_right(root: Path) -> None:
    """Killed between marking a skill and moving it into place, with its half-made files left."""
    sync_directory(root, [written("notes")])
    (root / "notes").rename(root / MARKS_DIR / "new")
    synced = sync_directory(root, [written("notes")])
    assert (states(synced), synced.warnings) == ({"notes": INSTALLED}, [])
    assert sorted(path.name for path in (root / MARKS_DIR).iterdir()) == ["skills.json"]


@pytest.mark.parametrize("marks", ["", "{", "[]", '{"skills": 7}', '{"skills": {"notes": {}, "x": 3}}'])
def test_unreadable_marks_make_nothing_ours(root: Path, marks: str) -> None:
    sync_directory(root, [written("notes")])
    (root / MARKS_DIR / "skills.json").write_text(marks)
    assert states(sync_directory(root, [])) == {"notes": EXTERNAL}


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    synced = sync_directory(tmp_path / "file" / "skills", [written("notes")])
    assert synced.skills == []
    assert "cannot be used" in synced.warnings[0]


def test_without_skills_nothing_is_created(root: Path) -> None:
    assert sync_directory(root, []) == Synced([], [])
    assert not root.exists()


def test_two_at_once_take_turns(root: Path) -> None:
    """Whichever is last: all of its skills are there, none of the other's, and nothing is half made."""
    ours = [[written(f"{who}-{number}") for number in range(8)] for who in "ab"]
    start = threading.Barrier(2)

    def work(skills: list[SkillSource]) -> None:
        start.wait()
        for _ in range(5):
            sync_directory(root, skills)

    threads = [threading.Thread(target=work, args=(skills,)) for skills in ours]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = list_directory(root)
    assert len({entry.name[0] for entry in found}) == 1
    assert [entry.state for entry in found] == [INSTALLED] * 8
    assert not (root / MARKS_DIR / "new").exists()


@given(st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=6))
def test_the_last_request_is_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, requests: list[set[str]]
) -> None:
    root = tmp_path_factory.mktemp("agent") / "skills"
    (root / "mine").mkdir(parents=True)
    (root / "mine" / "SKILL.md").write_text("Mine.")
    synced = Synced()
    for number, names in enumerate(requests):
        skills = [written(name, f"Text {number % 2}.") for name in names]
        synced = sync_directory(root, skills)
        assert synced.warnings == []
    assert states(synced) == {"mine": EXTERNAL, **dict.fromkeys(requests[-1], INSTALLED)}
    assert (root / MARKS_DIR).exists() == bool(requests[-1])
