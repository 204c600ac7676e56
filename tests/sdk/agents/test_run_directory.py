"""The private directory of one attempt."""

import tempfile
from pathlib import Path

import pytest
from dragoman.sdk._agents.run_directory import run_directory


def test_no_directory_has_a_path_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 60)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with run_directory() as path:
        assert path.parent == Path("/tmp")
        assert list(folder.iterdir()) == []
    assert not path.exists()
