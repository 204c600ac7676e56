"""The program where something that is always there is not: directories, standard streams, room on a disk."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from dragoman.cli.display.screen import Screen
from dragoman.testkit.fakes.adapter import EventFactory, FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2, router_pb2

from tests.cli.program import DESCRIBED, Done, dragoman, environment, finish, routed, start

LISTED = router_pb2.ListAdaptersResponse(adapters=[router_pb2.AdapterEntry(adapter="fake")])
SERVE = ["serve", "--listen", "127.0.0.1:0", "--insecure-tcp-without-token"]


def fake_of() -> FakeAdapter:
    emit = EventFactory()
    # As a real adapter answers at any time: the script behind the default Cancel ends with its reader.
    cancelled = api.CancelResponse(outcome=event_pb2.OUTCOME_SUCCEEDED)
    answers = {"Describe": DESCRIBED, "ListAdapters": LISTED, "Detect": api.DetectResponse(), "Cancel": cancelled}
    return FakeAdapter([emit.started(), emit.text("hello"), emit.succeeded()], answers=answers)


async def shell(script: str, *arguments: str, env: Mapping[str, str], cwd: Path | None = None) -> Done:
    """Run ``script``, in which ``"$@"`` is ``dragoman ARGUMENTS``."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script, "sh", sys.executable, "-m", "dragoman.cli.main", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(env),
        cwd=cwd,
    )
    return await finish(process)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "fake", "caf\udce9"],
        ["run", "fake", "hi", "--env", "NAME"],
        ["run", "fake", "hi", "--config", 'key="\\ud800"'],
        ["show", "caf\udce9"],
    ],
)
async def test_text_that_is_not_utf8_is_a_wrong_call(arguments: list[str]) -> None:
    async with routed(fake_of()) as env:
        done = await dragoman(*arguments, env={**env, "NAME": "caf\udce9"})
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "not UTF-8, in an argument, a variable or the current directory: '" in done.err


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems have no such names")
async def test_a_current_directory_that_is_not_utf8_is_a_wrong_call(tmp_path: Path) -> None:
    directory = tmp_path / "caf\udce9"
    directory.mkdir()
    async with routed(fake_of()) as env:
        done = await shell('"$@"', "run", "fake", "hi", env=env, cwd=directory)
    assert done.code == 2
    assert "caf\\xe9'" in done.err


@pytest.mark.parametrize("arguments", [["run", "process", "hi"], ["detect"], ["adapters"], SERVE])
async def test_a_state_directory_that_cannot_be_created(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "state"
    done = await dragoman(*arguments, env={"XDG_STATE_HOME": str(state)})
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: cannot create the directory {state}")
    assert "Not a directory" in done.err
    assert "--state-dir" in done.err
    assert "XDG_STATE_HOME" in done.err
    assert done.err.count("\n") == 2


async def test_a_state_dir_option_that_cannot_be_created_is_reported_to_programs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = await dragoman(*SERVE, "--state-dir", str(tmp_path / "file" / "state"))
    assert done.code == 2
    assert f"cannot create the directory {tmp_path / 'file' / 'state'}" in done.err


async def test_the_demo_reports_it_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = await dragoman("demo", env={"XDG_STATE_HOME": str(tmp_path / "file" / "state")})
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: cannot create the directory ")


@pytest.mark.parametrize(
    "arguments",
    [["run", "fake", "hi"], ["run", "fake", "hi", "--cwd", "x"], ["test", "fake"], ["test", "fake", "--cwd", "x"]],
)
async def test_a_current_directory_that_is_gone(arguments: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    async with routed(fake_of()) as env:
        done = await shell('rmdir "$PWD" && exec "$@"', *arguments, env=env, cwd=gone)
    assert done.code == 2
    assert "the current directory does not exist any more" in done.err
    assert "Traceback" not in done.err


async def test_an_absolute_directory_needs_no_current_one(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    async with routed(fake_of()) as env:
        done = await shell('rmdir "$PWD" && exec "$@"', "run", "fake", "hi", "--cwd", "/", env=env, cwd=gone)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "arguments", [["run", "fake", "hi"], ["run", "fake", "hi", "--json"], ["adapters"], ["detect"]]
)
async def test_a_stream_that_is_closed_is_done_without(closed: str, arguments: list[str]) -> None:
    async with routed(fake_of()) as env:
        done = await shell(f'exec "$@" {closed}', *arguments, env=env)
    assert done.code == 0
    assert "Traceback" not in done.err
    assert "hello" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [["adapters"], ["adapters", "--json"], ["describe", "fake", "--json"], ["detect"], ["--help"], ["--version"]],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_a_full_disk_is_reported(arguments: list[str], unbuffered: str) -> None:
    async with routed(fake_of()) as env:
        done = await shell('exec "$@" >/dev/full', *arguments, env={**env, "PYTHONUNBUFFERED": unbuffered})
    assert (done.code, done.err) == (1, "error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(
    "arguments", [["adapters"], ["--help"], ["run", "fake", "hi"], ["run", "fake", "hi", "--json"]]
)
async def test_a_terminal_that_is_gone_is_reported(arguments: list[str]) -> None:
    terminal, ours = os.openpty()
    os.close(terminal)  # from now on writing gives EIO
    try:
        async with routed(fake_of()) as env:
            process = await start(*arguments, env=env, stdout=ours)
            done = await finish(process)
    finally:
        os.close(ours)
    assert (done.code, done.err.splitlines()[-1]) == (1, "error: cannot write the output: Input/output error")
    assert "Traceback" not in done.err


async def test_events_that_could_not_be_written_are_reported_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, ours = os.openpty()
    os.close(terminal)
    emit = EventFactory()
    with os.fdopen(ours, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        async with Screen(as_json=True) as screen:
            await screen.show(emit.text("hello"))  # on its way, and not written yet
            with pytest.raises(OSError, match="Input/output error"):
                await screen.finish(event_pb2.Result(outcome=event_pb2.OUTCOME_SUCCEEDED), "run-1")


async def test_nothing_that_waits_at_exit_keeps_the_program() -> None:
    program = (
        "import atexit, sys, threading; from dragoman.cli.main import script;"
        "atexit.register(threading.Event().wait); sys.argv = ['dragoman', '--version']; script()"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE, env=environment({})
    )
    async with asyncio.timeout(20):
        done = await finish(process)
    assert (done.code, done.out.split(",")[0]) == (0, "dragoman")
