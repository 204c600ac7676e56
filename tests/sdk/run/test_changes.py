"""What a run keeps of the changes to its workspace."""

import asyncio
import threading
from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.sdk._changes.errors import TooLargeError
from dragoman.sdk._changes.tracking import Workspace
from dragoman.sdk._run.changes import RunChanges
from dragoman.v1 import event_pb2 as pb

SECRET = "k7Qz-9fRw2-changes-Xy31"


def changes_in(directory: Path) -> RunChanges:
    """Return the changes of a run with a secret."""
    return RunChanges(str(directory), lambda: Redactor([SECRET]))


async def test_what_is_kept_is_redacted_and_marked_as_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    changes = changes_in(tmp_path / "link")
    await changes.record(asyncio.Event())
    (tmp_path / f"{SECRET}.txt").write_text(f"{SECRET}\n")
    (tmp_path / "other.txt").write_text("1\n")
    changes.observe(pb.AgentEvent(file_change=pb.FileChange(path=f"{tmp_path}/link/other.txt")))
    await changes.conclude()
    found = await changes.present()
    assert {file.path: file.is_reported for file in found.files} == {"[redacted].txt": False, "other.txt": True}
    assert SECRET.encode() not in found.SerializeToString()
    assert changes.kept_bytes >= found.ByteSize()


async def test_what_was_recorded_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, workspace = tmp_path / "private", tmp_path / "workspace"
    private.mkdir()
    workspace.mkdir()
    monkeypatch.setattr(Workspace, "__init__", _recording_in(private))
    changes = changes_in(workspace)
    await changes.record(asyncio.Event())
    assert [*private.iterdir()]
    await changes.conclude()
    assert not [*private.iterdir()]


async def test_a_workspace_that_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Workspace, _directory: str) -> None:
        raise TooLargeError("too much of it")

    monkeypatch.setattr(Workspace, "__init__", refuse)
    changes = changes_in(tmp_path)
    await changes.record(asyncio.Event())
    await changes.conclude()
    with pytest.raises(DragomanError, match="too much of it") as caught:
        await changes.present()
    assert caught.value.reason is Reason.CHANGES_UNKNOWN


async def test_an_output_of_git_that_is_not_understood_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = changes_in(tmp_path)
    await changes.record(asyncio.Event())
    (tmp_path / "a").touch()
    monkeypatch.setattr("dragoman.sdk._changes.git.PrivateRepository.differences", lambda *_: b":nonsense\0")
    await changes.conclude()
    assert changes.problem
    with pytest.raises(DragomanError) as caught:
        await changes.present()
    assert caught.value.reason is Reason.CHANGES_UNKNOWN


async def test_a_cancelled_run_does_not_wait_for_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, closed = threading.Event(), threading.Event()

    def wait(_self: Workspace, _directory: str) -> None:
        goes_on.wait()

    monkeypatch.setattr(Workspace, "__init__", wait)
    monkeypatch.setattr(Workspace, "close", lambda _self: closed.set())
    changes, cancelled = changes_in(tmp_path), asyncio.Event()
    cancelled.set()
    await changes.record(cancelled)
    goes_on.set()
    assert await asyncio.to_thread(closed.wait, 10)
    await changes.conclude()
    with pytest.raises(DragomanError, match="cancelled"):
        await changes.present()


def _recording_in(private: Path):  # type: ignore[no-untyped-def]
    original = Workspace.__init__

    def record(self: Workspace, directory: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(private))
            original(self, directory)

    return record
