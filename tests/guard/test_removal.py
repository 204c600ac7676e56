"""Removing a directory that an agent has left."""

from pathlib import Path

from dragoman.guard.removal import remove_tree


def test_all_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    kept.mkdir()
    (kept / "file").write_text("stays")
    (removed / "a" / "b").mkdir(parents=True)
    (removed / "a" / "b" / "file").write_text("goes")
    (removed / "link").symlink_to(kept)
    (removed / "a" / "broken").symlink_to("nowhere")
    remove_tree(str(removed))
    assert not removed.exists()
    assert (kept / "file").read_text() == "stays"


def test_a_link_in_its_place_leads_nowhere(tmp_path: Path) -> None:
    """An agent may put a link where its private directory was."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "file").write_text("stays")
    (tmp_path / "private").symlink_to(tmp_path / "home")
    remove_tree(str(tmp_path / "private"))
    assert (tmp_path / "home" / "file").exists()


def test_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "missing"))
