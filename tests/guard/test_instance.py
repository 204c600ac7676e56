from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from dragoman.guard.instance import InstanceFile, LockedError, is_guarded, read_instance
from dragoman.guard.processes import read


def write(path: Path) -> InstanceFile:
    file = InstanceFile(str(path))
    leader = read(os.getpid())
    assert leader is not None
    file.write(leader, instance_id="i", control="c", listen="l", log="g")
    return file


def test_it_says_what_runs_and_where(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    file = write(path)
    instance = read_instance(str(path))
    assert instance is not None
    assert (instance.instance_id, instance.control, instance.listen, instance.log) == ("i", "c", "l", "g")
    assert instance.guard[0] == os.getpid()
    assert instance.is_current(instance.guard)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(name.name for name in tmp_path.iterdir()) == ["x.json", "x.json.lock"]
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_pid_used_again_is_another_process(tmp_path: Path) -> None:
    file = write(tmp_path / "x.json")
    instance = read_instance(str(tmp_path / "x.json"))
    assert instance is not None
    pid, started = instance.guard
    assert not instance.is_current((pid, started - 1))
    instance.boot_id = "another"
    assert not instance.is_current((pid, started))
    file.remove()


def test_one_guard_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "x.json")
    assert not is_guarded(path)
    first = InstanceFile(path)
    assert is_guarded(path)
    with pytest.raises(LockedError, match="another guard holds"):
        InstanceFile(path)
    first.remove()
    assert not is_guarded(path)
    second = InstanceFile(path)
    assert is_guarded(path)
    second.remove()


def test_a_lock_on_a_file_without_a_name_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last holder removes the file just after we opened it, and a third one makes it anew."""
    path = tmp_path / "x.json"
    opened = os.open
    opens: list[str] = []

    def open_late(name: str, flags: int, mode: int = 0o777) -> int:
        fd = opened(name, flags, mode)
        if not opens:
            Path(name).unlink()
            os.close(opened(name, flags, mode))
        opens.append(name)
        return fd

    monkeypatch.setattr(os, "open", open_late)
    file = InstanceFile(str(path))
    monkeypatch.undo()
    assert len(opens) == 2
    assert is_guarded(str(path))
    file.remove()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"guard": 1}'])
def test_what_is_no_instance_file_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert read_instance(str(path)) is None
    assert read_instance(str(tmp_path / "missing")) is None


def test_what_a_newer_guard_adds_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    file = write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    assert read_instance(str(path)) is not None
    file.remove()
