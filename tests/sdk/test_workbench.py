"""Files and commands for an agent: within the workspace, bounded, gone with the attempt."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from dragoman.sdk._workbench import MOST_FILE_BYTES, AbsentError, Workbench, WorkbenchError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    return folder


@pytest.fixture
async def bench(root: Path) -> AsyncIterator[Workbench]:
    made = Workbench([str(root)], {"PATH": "/usr/bin:/bin", "WORD": "plover"})
    yield made
    assert await made.close()


async def test_a_file_is_written_and_read(bench: Workbench, root: Path) -> None:
    path = str(root / "new" / "folder" / "a.txt")
    await bench.write_text(path, "Grüße\n")
    assert await bench.read_text(path) == "Grüße\n"
    await bench.write_text(path, "x")
    assert Path(path).read_text() == "x"


async def test_what_is_not_there_is_absent(bench: Workbench, root: Path) -> None:
    for path in (root / "a.txt", root / "a" / "b.txt"):
        with pytest.raises(AbsentError):
            await bench.read_text(str(path))


async def test_links_within_lead_within(bench: Workbench, root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to(root / "real")
    await bench.write_text(str(root / "link" / "a.txt"), "x")
    assert (root / "real" / "a.txt").read_text() == "x"


@pytest.mark.parametrize("path", ["../outside.txt", "folder/../../outside.txt", "link", "way/outside.txt", "made"])
async def test_nothing_leads_out(bench: Workbench, root: Path, path: str) -> None:
    (root / "link").symlink_to(root.parent / "outside.txt")
    (root / "way").symlink_to(root.parent)
    (root / "made").symlink_to(root.parent / "not-there.txt")
    for action in (bench.read_text(f"{root}/{path}"), bench.write_text(f"{root}/{path}", "changed")):
        with pytest.raises(WorkbenchError, match="outside the workspace"):
            await action
    assert (root.parent / "outside.txt").read_text() == "outside"
    assert not (root.parent / "not-there.txt").exists()


async def test_a_link_that_appears_meanwhile_is_not_followed(
    bench: Workbench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").symlink_to(root.parent)
    (root / "b").symlink_to(root.parent / "outside.txt")
    monkeypatch.setattr(os.path, "realpath", lambda path: path)  # as if it had not been there a moment ago
    for path in (root / "a" / "outside.txt", root / "b"):
        with pytest.raises(WorkbenchError):
            await bench.write_text(str(path), "changed")
    assert (root.parent / "outside.txt").read_text() == "outside"


@pytest.mark.parametrize("path", ["a.txt", "", "/etc/passwd", "a\0b", "/\0"])
async def test_other_paths_are_none(bench: Workbench, path: str) -> None:
    with pytest.raises(WorkbenchError):
        await bench.read_text(path)


async def test_only_regular_files(bench: Workbench, root: Path) -> None:
    os.mkfifo(root / "pipe")
    for path in (root, root / "pipe"):
        with pytest.raises(WorkbenchError):
            await bench.read_text(str(path))


async def test_files_are_bounded(bench: Workbench, root: Path) -> None:
    (root / "huge").touch()
    os.truncate(root / "huge", MOST_FILE_BYTES + 1)
    with pytest.raises(WorkbenchError, match="more than"):
        await bench.read_text(str(root / "huge"))
    with pytest.raises(WorkbenchError, match="more than"):
        await bench.write_text(str(root / "b"), "x" * (MOST_FILE_BYTES + 1))


# Commands.


async def test_a_command_runs_in_the_workspace_with_the_agents_variables(bench: Workbench, root: Path) -> None:
    name = await bench.start(["sh", "-c", "pwd; echo $WORD-$MORE; echo err >&2; exit 3"], env={"MORE": "m"})
    command = bench.command(name)
    await command.ended.wait()
    assert command.exit == (3, None)
    assert sorted(command.output.splitlines()) == sorted([str(root.resolve()), "plover-m", "err"])
    bench.release(name)
    with pytest.raises(AbsentError):
        bench.command(name)


async def test_a_command_is_killed(bench: Workbench) -> None:
    name = await bench.start(["sleep", "300"])
    bench.kill(name)
    await bench.command(name).ended.wait()
    assert bench.command(name).exit == (None, signal.SIGKILL)


async def test_only_the_end_of_the_output_is_kept(bench: Workbench) -> None:
    name = await bench.start(["sh", "-c", "printf 'aaaa€bc'"], most_bytes=4)
    command = bench.command(name)
    await command.ended.wait()
    assert (command.output, command.truncated) == ("bc", True), "cut between characters"


async def test_a_command_that_is_not_there_is_absent(bench: Workbench, root: Path) -> None:
    with pytest.raises(AbsentError):
        await bench.start(["no-such-command"])
    for cwd in ("/", str(root.parent), "relative"):
        with pytest.raises(WorkbenchError):
            await bench.start(["true"], cwd=cwd)
    with pytest.raises(WorkbenchError):
        await bench.start(["a\0b"])


async def test_commands_end_with_the_attempt(root: Path) -> None:
    bench = Workbench([str(root)], {"PATH": "/usr/bin:/bin"})
    await bench.start(["sh", "-c", "sleep 301 & sleep 302"])
    left = [process for process in psutil.Process().children(recursive=True) if "sleep" in process.name()]
    while len(left) < 2:
        await asyncio.sleep(0.01)
        left = [process for process in psutil.Process().children(recursive=True) if "sleep" in process.name()]
    assert await bench.close()
    assert not any(process.is_running() for process in left)
    with pytest.raises(WorkbenchError):
        await bench.start(["true"])
