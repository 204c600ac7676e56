"""Files and commands for an agent: within the workspace, bounded, gone with the attempt."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from dragoman.sdk._process.host_services import MOST_FILE_BYTES, AbsentError, HostCallError, HostServices


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    return folder


@pytest.fixture
async def services(root: Path) -> AsyncIterator[HostServices]:
    running = HostServices([str(root)], {"PATH": "/usr/bin:/bin", "WORD": "plover"})
    yield running
    assert await running.close()


async def test_a_file_is_written_and_read(services: HostServices, root: Path) -> None:
    path = str(root / "new" / "folder" / "a.txt")
    await services.write_text(path, "Grüße\n")
    assert await services.read_text(path) == "Grüße\n"
    await services.write_text(path, "x")
    assert Path(path).read_text() == "x"


async def test_what_is_not_there_is_absent(services: HostServices, root: Path) -> None:
    for path in (root / "a.txt", root / "a" / "b.txt"):
        with pytest.raises(AbsentError):
            await services.read_text(str(path))


async def test_links_within_lead_within(services: HostServices, root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to(root / "real")
    await services.write_text(str(root / "link" / "a.txt"), "x")
    assert (root / "real" / "a.txt").read_text() == "x"


@pytest.mark.parametrize("path", ["../outside.txt", "folder/../../outside.txt", "link", "way/outside.txt", "running"])
async def test_nothing_leads_out(services: HostServices, root: Path, path: str) -> None:
    (root / "link").symlink_to(root.parent / "outside.txt")
    (root / "way").symlink_to(root.parent)
    (root / "running").symlink_to(root.parent / "not-there.txt")
    for action in (services.read_text(f"{root}/{path}"), services.write_text(f"{root}/{path}", "changed")):
        with pytest.raises(HostCallError, match="outside the workspace"):
            await action
    assert (root.parent / "outside.txt").read_text() == "outside"
    assert not (root.parent / "not-there.txt").exists()


async def test_a_link_that_appears_meanwhile_is_not_followed(
    services: HostServices, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").symlink_to(root.parent)
    (root / "b").symlink_to(root.parent / "outside.txt")
    monkeypatch.setattr(os.path, "realpath", lambda path: path)  # as if it had not been there a moment ago
    for path in (root / "a" / "outside.txt", root / "b"):
        with pytest.raises(HostCallError):
            await services.write_text(str(path), "changed")
    assert (root.parent / "outside.txt").read_text() == "outside"


@pytest.mark.parametrize("path", ["a.txt", "", "/etc/passwd", "a\0b", "/\0"])
async def test_other_paths_are_none(services: HostServices, path: str) -> None:
    with pytest.raises(HostCallError):
        await services.read_text(path)


async def test_only_regular_files(services: HostServices, root: Path) -> None:
    os.mkfifo(root / "pipe")
    for path in (root, root / "pipe"):
        with pytest.raises(HostCallError):
            await services.read_text(str(path))


async def test_files_are_bounded(services: HostServices, root: Path) -> None:
    (root / "huge").touch()
    os.truncate(root / "huge", MOST_FILE_BYTES + 1)
    with pytest.raises(HostCallError, match="more than"):
        await services.read_text(str(root / "huge"))
    with pytest.raises(HostCallError, match="more than"):
        await services.write_text(str(root / "b"), "x" * (MOST_FILE_BYTES + 1))


# Commands.


async def test_a_command_runs_in_the_workspace_with_the_agents_variables(services: HostServices, root: Path) -> None:
    name = await services.start(["sh", "-c", "pwd; echo $WORD-$MORE; echo err >&2; exit 3"], env={"MORE": "m"})
    command = services.command(name)
    await command.ended.wait()
    assert command.exit == (3, None)
    assert sorted(command.output.splitlines()) == sorted([str(root.resolve()), "plover-m", "err"])
    services.release(name)
    with pytest.raises(AbsentError):
        services.command(name)


async def test_a_command_is_killed(services: HostServices) -> None:
    name = await services.start(["sleep", "300"])
    services.kill(name)
    await services.command(name).ended.wait()
    assert services.command(name).exit == (None, signal.SIGKILL)


async def test_only_the_end_of_the_output_is_kept(services: HostServices) -> None:
    name = await services.start(["sh", "-c", "printf 'aaaa€bc'"], most_bytes=4)
    command = services.command(name)
    await command.ended.wait()
    assert (command.output, command.truncated) == ("bc", True), "cut between characters"


async def test_a_command_that_is_not_there_is_absent(services: HostServices, root: Path) -> None:
    with pytest.raises(AbsentError):
        await services.start(["no-such-command"])
    for cwd in ("/", str(root.parent), "relative"):
        with pytest.raises(HostCallError):
            await services.start(["true"], cwd=cwd)
    with pytest.raises(HostCallError):
        await services.start(["a\0b"])


async def test_commands_end_with_the_attempt(root: Path) -> None:
    services = HostServices([str(root)], {"PATH": "/usr/bin:/bin"})
    await services.start(["sh", "-c", "sleep 301 & sleep 302"])
    left = [process for process in psutil.Process().children(recursive=True) if "sleep" in process.name()]
    while len(left) < 2:
        await asyncio.sleep(0.01)
        left = [process for process in psutil.Process().children(recursive=True) if "sleep" in process.name()]
    assert await services.close()
    assert not any(process.is_running() for process in left)
    with pytest.raises(HostCallError):
        await services.start(["true"])
