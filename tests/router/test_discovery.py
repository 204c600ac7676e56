"""Manifests: which paths are meant from their folder."""

from pathlib import Path

from dragoman.router.adapters.discovery import Manifests, specs_of


def test_paths_are_meant_from_the_manifests_folder_and_names_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('type = "a"\ncommand = ["bin/a", "./b", "../c", "d/e", "python"]\n')
    (tmp_path / "b.toml").write_text('type = "b"\ncommand = ["python", "./b.py"]\n')
    first, second = specs_of(Manifests([tmp_path / "a.toml", tmp_path / "b.toml"]))
    assert first.launch is not None
    assert second.launch is not None
    assert first.launch.command == (f"{tmp_path}/bin/a", f"{tmp_path}/b", f"{tmp_path}/../c", "d/e", "python")
    assert second.launch.command == ("python", f"{tmp_path}/b.py")
