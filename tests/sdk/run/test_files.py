"""Where the files of runs are, and that nothing of them stays."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._request.attachments import AttachmentError, lay_out_attachments
from dragoman.sdk._run import files
from dragoman.sdk._run.files import FileStore, RunFiles, remove_leftovers
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

KILLED = """
import asyncio, os, sys
from dragoman.sdk._run.files import FileStore
async def main():
    run = FileStore().files_of_run()
    (run.artifacts / "left").touch()
    print(run.artifacts, flush=True)
    sys.stdin.read() if sys.argv[1:] else os._exit(9)
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(files, "_YOUNG_S", -1.0)
    monkeypatch.setattr(files, "_in_thread", lambda remove, path: remove(path))
    return tmp_path


async def concluded(run: RunFiles) -> tuple[list[pb.AgentEvent], list[str]]:
    events: list[pb.AgentEvent] = []
    notices: list[str] = []
    await run.conclude(events.append, lambda _severity, _code, message: notices.append(message), masked)
    return events, notices


def masked(name: str) -> str:
    return name.replace("secret1", "***").replace("secret2", "***")


async def test_no_two_artifacts_have_one_name_once_secrets_are_hidden() -> None:
    run = FileStore().files_of_run()
    for name in ("secret1", "secret2", "other"):
        (run.artifacts / name).write_text(name)
    events: list[pb.AgentEvent] = []
    notices: list[str] = []

    def emit(event: pb.AgentEvent) -> None:
        event.artifact.name = masked(event.artifact.name)
        events.append(event)

    await run.conclude(emit, lambda _severity, _code, message: notices.append(message), masked)
    assert [event.artifact.name for event in events] == ["other", "***"]
    assert run.find("r", "***").path.read_text() == "secret1"
    (notice,) = notices
    assert notice.startswith("1 of the files")


async def test_nothing_is_left_of_a_run_without_files(folder: Path) -> None:
    store = FileStore()
    assert await concluded(store.files_of_run()) == ([], [])
    (root,) = folder.iterdir()
    assert list(root.iterdir()) == []
    store.close()
    assert list(folder.iterdir()) == []


async def test_what_is_kept_goes_with_the_run(folder: Path) -> None:
    store = FileStore()
    run = store.files_of_run()
    (run.artifacts / "a").write_bytes(b"1")
    (run.artifacts / "locked").mkdir()
    (run.artifacts / "locked" / "b").touch()
    (run.artifacts / "locked").chmod(0)
    events, _ = await concluded(run)
    assert "a" in [event.artifact.name for event in events]
    assert run.find("r", "a").path.read_bytes() == b"1"
    assert not run.artifacts.exists()
    run.drop()
    with pytest.raises(DragomanError) as caught:
        run.find("r", "a")
    assert caught.value.reason is Reason.ARTIFACTS_GONE
    (root,) = folder.iterdir()
    assert list(root.iterdir()) == []


async def test_a_directory_that_the_agent_replaced_by_a_link(folder: Path) -> None:
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").touch()
    run = FileStore().files_of_run()
    run.artifacts.rmdir()
    run.artifacts.symlink_to(folder / "outside")
    events, notices = await concluded(run)
    assert events == []
    assert len(notices) == 1
    assert (folder / "outside" / "secret").exists()


def test_files_of_a_server_that_was_killed_are_removed(folder: Path) -> None:
    command = [sys.executable, "-c", KILLED]
    env = {**os.environ, "TMPDIR": str(folder)}
    killed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert Path(killed.stdout.strip()).is_dir()
    with subprocess.Popen(
        [*command, "lives"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as living:
        assert living.stdout is not None
        of_living = Path(living.stdout.readline().strip())
        remove_leftovers(folder)
        assert not Path(killed.stdout.strip()).exists()
        assert (of_living / "left").exists()
        living.communicate("")


def test_only_directories_are_leftovers(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "dragoman-files-link").symlink_to(folder / "elsewhere")
    (folder / "dragoman-files-file").touch()
    remove_leftovers(folder)
    assert len(list(folder.iterdir())) == 3


async def test_a_file_that_changes_after_it_was_checked(folder: Path) -> None:
    request = api.ExecuteRequest()
    request.attachments.add(name="a", path=str(folder / "source"))
    for change in (lambda path: None, os.mkfifo, lambda path: path.symlink_to("/etc/hostname")):
        (folder / "source").unlink(missing_ok=True)
        change(folder / "source")
        with pytest.raises(AttachmentError, match="any more"):
            await FileStore().files_of_run().lay_out(request)


async def test_a_run_that_is_dropped_has_no_attached_files_any_more(folder: Path) -> None:
    (folder / "source").write_bytes(b"text")
    request = api.ExecuteRequest()
    request.attachments.add(name="a", path=str(folder / "source"))
    run = FileStore().files_of_run()
    await run.lay_out(request)
    assert run.attached
    run.drop()
    assert not run.attached


async def test_an_image_that_is_none(folder: Path) -> None:
    (folder / "source").write_bytes(b"text")
    request = api.ExecuteRequest()
    request.attachments.add(name="a", media_type="image/png", path=str(folder / "source"))
    with pytest.raises(AttachmentError, match="is no image/png"):
        await FileStore().files_of_run().lay_out(request)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="it has /proc")


@pytest.fixture
async def bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunFiles:
    """Return the files of a run whose inputs may have ten bytes of them."""
    monkeypatch.setattr(files, "MOST_SENT_BYTES", 10)
    return FileStore().files_of_run()


def of_bytes(size: int) -> list[api.Attachment]:
    return [api.Attachment(name="a", content=b"x" * size)]


async def test_a_cancelled_input_leaves_no_files_and_takes_no_room(
    bounded: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    folders: list[Path] = []

    def slowly(sent: Sequence[api.Attachment], directory: Path, *most: int | None) -> tuple[AttachedFile, ...]:
        folders.append(directory)
        loop.call_soon_threadsafe(has_begun.set)
        goes_on.wait()
        return lay_out_attachments(sent, directory, *most)

    with monkeypatch.context() as patched:
        patched.setattr(files, "lay_out_attachments", slowly)
        sending = asyncio.create_task(bounded.lay_out_sent(of_bytes(8)))
        await has_begun.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        goes_on.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert not folders[0].exists()
    assert bounded.directories == []
    (file,) = await bounded.lay_out_sent(of_bytes(10))
    assert file.path.read_bytes() == b"x" * 10


async def test_files_of_an_input_that_cannot_be_written_take_no_room(bounded: RunFiles, folder: Path) -> None:
    twice = [*of_bytes(4), *of_bytes(4)]
    with pytest.raises(FileExistsError):
        await bounded.lay_out_sent(twice)
    assert await bounded.lay_out_sent(of_bytes(10))


@LINUX
async def test_files_with_more_than_the_system_says_keep_the_bound(bounded: RunFiles) -> None:
    status = api.Attachment(name="status", path="/proc/self/status")
    assert Path(status.path).stat().st_size == 0
    with pytest.raises(AttachmentError, match="no room"):
        await bounded.lay_out_sent([status])
    assert await bounded.lay_out_sent(of_bytes(10))
    with pytest.raises(AttachmentError, match="no room"):
        await bounded.lay_out_sent([status])


@LINUX
async def test_what_a_file_turned_out_to_have_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = Path("/proc/version").read_bytes()
    monkeypatch.setattr(files, "MOST_SENT_BYTES", len(version) + 5)
    run = FileStore().files_of_run()
    assert await run.lay_out_sent([api.Attachment(name="version", path="/proc/version")])
    with pytest.raises(AttachmentError, match="all inputs"):
        await run.lay_out_sent(of_bytes(6))
    assert await run.lay_out_sent(of_bytes(5))
