"""The file that keeps detections between two starts: what is stored, what is ignored, and what shows a change."""

import json
import os
from pathlib import Path

import pytest
from dragoman.router.adapters.detection import CachedDetection, FileMark
from dragoman.router.adapters.detection_file import DetectionFile
from dragoman.v1 import adapter_pb2 as pb
from structlog.testing import capture_logs

ENTRY = CachedDetection(5.0, "1", FileMark(2, 3), pb.Detection(adapter="a").SerializeToString(), "env")


def test_what_is_saved_is_loaded_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "detections.json"
    DetectionFile(path).save({"a": ENTRY})
    path.chmod(0o644)
    left = path.with_name(f"{path.name}.{os.getpid()}.new")
    left.write_text("of one that was killed")
    DetectionFile(path).save({"b": ENTRY})
    assert DetectionFile(path).load() == {"b": ENTRY}
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "is_logged"),
    [(None, False), ("{", True), ('{"format": 2, "entries": {}}', False), ('{"entries": {}}', True)],
)
def test_a_file_that_is_missing_damaged_or_older_is_ignored(
    tmp_path: Path, content: str | None, is_logged: bool
) -> None:
    path = tmp_path / "detections.json"
    if content is not None:
        path.write_text(content)
    with capture_logs() as logs:
        assert DetectionFile(path).load() == {}
    event = {"event": "detection cache not readable, ignoring it", "file": "detections.json", "log_level": "warning"}
    assert logs == ([event] if is_logged else [])


def test_an_older_format_is_ignored_even_if_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "detections.json"
    DetectionFile(path).save({"a": ENTRY})
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": content["format"] - 1}))
    assert DetectionFile(path).load() == {}


def test_a_file_that_cannot_be_written_is_logged_alone(tmp_path: Path) -> None:
    with capture_logs() as logs:
        DetectionFile(tmp_path / "none" / "detections.json").save({"a": ENTRY})
    assert logs == [{"event": "detection cache not writable", "errno": 2, "log_level": "warning"}]


def test_a_mark_is_that_of_the_file_behind_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("abc")
    os.utime(file, ns=(1, 2))
    link.symlink_to(file)
    store = DetectionFile(tmp_path / "x")
    assert store.mark(str(link)) == store.mark(str(file)) == FileMark(2, 3)
    assert store.mark(str(tmp_path / "none")) is None
    assert store.mark("\0") is None


def test_logins_change_with_keys_directories_and_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DetectionFile(tmp_path / "x")
    monkeypatch.delenv("FAKE_API_KEY", raising=False)
    seen = [store.logins()]
    for name, value in (("FAKE_API_KEY", "1"), ("FAKE_HOME", "/a"), ("FAKE_HOME", "/b"), ("PATH", str(tmp_path))):
        monkeypatch.setenv(name, value)
        seen.append(store.logins())
    assert len(set(seen)) == len(seen)
    monkeypatch.setenv("FAKE_API_KEY", "2")  # not kept, not even as a digest
    monkeypatch.setenv("WINDOWID", "7")
    assert store.logins() == seen[-1]
    monkeypatch.setenv("FAKE_API_KEY", "")
    assert store.logins() != seen[-1]


def test_an_environment_changes_with_programs_logins_and_names_of_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("bin", "home", "config")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("PATH", str(folders[0]))
    monkeypatch.setenv("HOME", str(folders[1]))
    monkeypatch.setenv("A", "1")
    store = DetectionFile(tmp_path / "x")
    seen = [store.environment(str(folders[2]))]
    for number, folder in enumerate(folders):
        os.utime(folder, ns=(1, number))
        seen.append(store.environment(str(folders[2])))
    monkeypatch.setenv("B", "")
    seen.append(store.environment(str(folders[2])))
    assert len(set(seen)) == len(seen)
    monkeypatch.setenv("A", "2")
    assert store.environment(str(folders[2])) == seen[-1], "values are secrets, perhaps"
    monkeypatch.setenv("PATH", f"{folders[0]}:{tmp_path}/none")
    assert store.environment(str(folders[2])) != seen[-1]
