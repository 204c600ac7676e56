"""The session handle in a file."""

from pathlib import Path

import click
import pytest
from dragoman.cli import _handles
from dragoman.v1 import event_pb2 as pb
from google.protobuf import struct_pb2

HANDLE = pb.SessionHandle(adapter="claude_code", native_id="s-1", cwd="/srv")


def test_a_handle_comes_back_as_it_was(tmp_path: Path) -> None:
    handle = pb.SessionHandle()
    handle.CopyFrom(HANDLE)
    params = struct_pb2.Struct()
    params.update({"sessionId": "s-1"})
    handle.params.CopyFrom(params)
    path = tmp_path / "session.json"
    _handles.store(path, pb.SessionUpdate(change=pb.SESSION_CHANGE_SET, handle=handle))
    assert _handles.load(path) == handle
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["session.json"]


def test_unchanged_and_clear(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    _handles.store(path, pb.SessionUpdate(change=pb.SESSION_CHANGE_SET, handle=HANDLE))
    _handles.store(path, pb.SessionUpdate())
    assert _handles.load(path) == HANDLE
    _handles.store(path, pb.SessionUpdate(change=pb.SESSION_CHANGE_CLEAR))
    assert _handles.load(path) is None
    _handles.store(path, pb.SessionUpdate(change=pb.SESSION_CHANGE_CLEAR))


@pytest.mark.parametrize("text", ["not json", "[]", '{"nativeId": 5}'])
def test_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "session.json"
    path.write_text(text)
    with pytest.raises(click.BadParameter, match="holds no session handle"):
        _handles.load(path)


def test_a_file_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    _handles.check_writable(tmp_path / "session.json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "none", tmp_path / "file", Path("/proc")):  # there not even root can make a file
        with pytest.raises(click.BadParameter, match="nothing can be kept in"):
            _handles.check_writable(folder / "session.json")


def test_nothing_yet_is_no_handle(tmp_path: Path) -> None:
    assert _handles.load(tmp_path / "none.json") is None
    (tmp_path / "empty.json").touch()
    assert _handles.load(tmp_path / "empty.json") is None


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="cannot be read"):
        _handles.load(tmp_path)
