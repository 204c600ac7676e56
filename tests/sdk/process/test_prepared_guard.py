"""Guards that wait for their run: which run gets one, and that none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import psutil
import pytest
import pytest_asyncio
from dragoman.guard.launch import run_options
from dragoman.guard.tree import MARKER
from dragoman.sdk._process import prepared_guard
from dragoman.sdk._process.child import Child, ChildSpec
from dragoman.sdk._process.prepared_guard import PreparedGuard, SpareGuards

from tests.hostile import DEADLINE_S
from tests.sdk.process.test_child import Witness, end_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SHOWS = "import os, json; print(json.dumps([os.getcwd(), dict(os.environ), os.getppid()]))"


@pytest_asyncio.fixture
async def guards(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SpareGuards]:
    monkeypatch.setattr(prepared_guard, "_NEXT_S", 3600.0)
    guards = SpareGuards(is_keeping=True)
    yield guards
    guards.close()
    assert waiting() == []


def waiting() -> list[psutil.Process]:
    """Return the guards below this process that wait for a run, or have one and will wait for another."""
    return [one for one in psutil.Process().children() if any("--wait-fd" in part for part in command_line(one))]


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's command line: for a moment of its exec, after `Popen` has returned, it has none."""
    while not (line := process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
        continue
    return line


async def spare() -> psutil.Process:
    async with asyncio.timeout(DEADLINE_S):
        while not waiting():  # noqa: ASYNC110 - the start of a process is no event
            await asyncio.sleep(0.01)
    (found,) = waiting()
    return found


async def run(guards: SpareGuards, marker: str, *argv: str, cwd: str = "/") -> tuple[Child, Witness]:
    witness = Witness()
    env = {"PATH": os.environ["PATH"], MARKER: marker}
    child = await Child.start(ChildSpec(argv or ("true",), cwd, env), witness, guards)
    return child, witness


async def test_an_interpreter_for_old_c_libraries_will_do(
    guards: SpareGuards, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that uv installs on Linux have neither, whatever the kernel offers."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with guards.marker() as marker:
        child, witness = await run(guards, marker, sys.executable, "-c", SHOWS, cwd=str(tmp_path))
        end = await end_of(child)
    assert (end.code, end.tree_confirmed_dead) == (0, True)
    assert json.loads(witness.output["stdout"])[0] == str(tmp_path)


async def test_the_guard_that_waited_removes_the_private_directory(guards: SpareGuards, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret")
    with guards.marker() as first:
        await end_of((await run(guards, first))[0])
    ready = await spare()
    with guards.marker() as marker:
        env = {"PATH": os.environ["PATH"], MARKER: marker}
        spec = ChildSpec(("true",), "/", env, private_dir=str(private))
        child = await Child.start(spec, Witness(), guards)
        assert child.guard_pid == ready.pid
        await end_of(child)
    async with asyncio.timeout(DEADLINE_S):
        while private.exists():  # noqa: ASYNC110 - the guard removes it when all has ended
            await asyncio.sleep(0.01)


async def test_the_guard_of_the_first_run_starts_while_the_run_is_prepared(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        (started,) = waiting()
        child, _ = await run(guards, marker)
        assert child.guard_pid == started.pid
        await end_of(child)


async def test_runs_that_start_no_program_have_no_guards(guards: SpareGuards) -> None:
    with guards.marker():
        (kept,) = waiting()
    with guards.marker(), guards.marker():
        assert [one.pid for one in waiting()] == [kept.pid]
    with guards.marker() as marker:
        child, _ = await run(guards, marker)
        await end_of(child)
    with guards.marker(), guards.marker():
        assert len(waiting()) == 2, "the last run started a program"


async def test_the_next_run_gets_the_same_guard(guards: SpareGuards, tmp_path: Path) -> None:
    with guards.marker() as first:
        child, _ = await run(guards, first, cwd=str(tmp_path))
        assert (await end_of(child)).tree_confirmed_dead
    ready = await spare()
    assert child.guard_pid == ready.pid
    with guards.marker() as second:
        assert second != first
        assert ready.environ()[MARKER] not in {first, second}, "by it, all that is beneath is known to be of a run"
        child, witness = await run(guards, second, sys.executable, "-c", SHOWS, cwd=str(tmp_path))
        assert child.guard_pid == ready.pid
        end = await end_of(child)
        assert (end.code, end.tree_confirmed_dead) == (0, True)
    cwd, environment, parent = json.loads(witness.output["stdout"])
    assert (cwd, parent) == (str(tmp_path), ready.pid)
    assert environment.items() >= {MARKER: second, "PATH": os.environ["PATH"]}.items()
    assert environment.keys() <= {MARKER, "PATH", "LC_CTYPE"}, "nothing of the guard's own"


async def test_a_guard_keeps_nothing_of_its_runs(guards: SpareGuards, tmp_path: Path) -> None:
    open_files: list[int] = []
    for _ in range(3):
        with guards.marker() as marker:
            await end_of((await run(guards, marker, cwd=str(tmp_path)))[0])
        ready = await spare()
        async with asyncio.timeout(DEADLINE_S):
            while ready.cwd() != "/":  # noqa: ASYNC110 - it goes there once it has reported the end
                await asyncio.sleep(0.01)
        open_files.append(ready.num_fds())
    assert len(set(open_files)) == 1


async def test_each_of_its_runs_is_reported_for_itself(guards: SpareGuards) -> None:
    codes: list[int | None] = []
    for code in (0, 3, 7):
        with guards.marker() as marker:
            child, witness = await run(guards, marker, "sh", "-c", f"echo {code}; exit {code}")
            codes.append((await end_of(child)).code)
            assert witness.output["stdout"] == f"{code}\n".encode()
    assert codes == [0, 3, 7]
    assert len(waiting()) == 1


async def test_a_guard_that_had_to_end_something_serves_no_other_run(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        child, _ = await run(guards, marker, "sh", "-c", "sleep 60 >/dev/null 2>&1 &")
        end = await end_of(child)
        assert (end.code, end.tree_confirmed_dead, len(end.killed)) == (0, True, 1)
    assert waiting() == []


async def test_a_guard_is_started_for_the_next_run_while_one_has_its_guard(
    guards: SpareGuards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_guard, "_NEXT_S", 0.0)
    with guards.marker() as marker:
        first, _ = await run(guards, marker, "cat")
        async with asyncio.timeout(DEADLINE_S):
            while len(waiting()) < 2:  # noqa: ASYNC110 - the start of a process is no event
                await asyncio.sleep(0.01)
        with guards.marker() as other:
            second, _ = await run(guards, other)
            assert second.guard_pid != first.guard_pid
            await end_of(second)
        first.close_stdin()
        await end_of(first)
    assert len(waiting()) == 1, "of two guards that wait, one is kept"


@contextmanager
def begun(guard: PreparedGuard, argv: tuple[str, ...]) -> Iterator[BinaryIO]:
    """Give a guard a command; yield its output."""
    env = {"PATH": os.environ["PATH"]}
    stdin, stdout, stderr = guard.begin(argv, cwd="/", env=env, linger_s=1.0, private_dir=None)
    os.set_blocking(stdout, True)
    with open(stdin, "wb"), open(stdout, "rb") as output, open(stderr, "rb"):
        yield output


def reports(guard: PreparedGuard) -> list[dict[str, object]]:
    """Return what a guard reports of a command, to its end."""
    guard.control.settimeout(DEADLINE_S)
    answer = b""
    while b'"gone"' not in answer or not answer.endswith(b"\n"):
        data = guard.control.recv(4096)
        assert data, answer
        answer += data
    return [json.loads(line) for line in answer.splitlines()]


def test_an_order_that_came_too_late_is_not_for_the_next_command() -> None:
    guard = PreparedGuard()
    try:
        for _ in range(2):
            with begun(guard, ("echo", "hello")) as output:
                spawned, exited, gone = reports(guard)
                assert (spawned["event"], exited["code"], gone["waits"]) == ("spawned", 0, True)
                assert output.read() == b"hello\n"
            guard.control.sendall(b'{"kill":true}\n{"signal":"SIGTERM"}\n{"swe')
    finally:
        guard.discard()


def test_a_guard_that_cannot_prove_that_nothing_is_left_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without subreapers, where a daemon is found by chance."""

    def without_subreaper(linger_s: float, remove: str | None, *, stays: bool) -> list[str]:
        return ["--no-subreaper", *run_options(linger_s, remove, stays=stays)]

    monkeypatch.setattr(prepared_guard, "run_options", without_subreaper)
    guard = PreparedGuard()
    with begun(guard, ("true",)):
        gone = reports(guard)[-1]
        assert (gone["confirmed"], gone.get("waits")) == (True, None)
        assert guard.process.wait(DEADLINE_S) == 0
    guard.discard()


ENDS_WHEN_ASKED = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(5)
"""


def test_a_guard_that_was_asked_to_end_does_not_wait() -> None:
    guard = PreparedGuard()
    with begun(guard, (sys.executable, "-c", ENDS_WHEN_ASKED)) as output:
        assert output.readline() == b"ready\n"
        guard.process.terminate()
        assert "waits" not in reports(guard)[-1]
        assert guard.process.wait(DEADLINE_S) == 5
    guard.discard()


def test_a_waiting_guard_ends_when_it_is_asked_to() -> None:
    guard = PreparedGuard()
    with begun(guard, ("true",)):
        reports(guard)
    guard.process.terminate()
    guard.process.wait(DEADLINE_S)
    guard.discard()


async def asked_to_end(guards: SpareGuards) -> psutil.Process:
    """Return a guard that is kept, stopped, and was asked to end: it learns that before it reads what comes."""
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    ready = await spare()
    ready.suspend()
    async with asyncio.timeout(DEADLINE_S):
        while ready.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - another process's state is no event
            await asyncio.sleep(0.01)
    ready.terminate()
    return ready


async def test_the_command_of_a_guard_that_was_asked_to_end_is_started_by_another(
    guards: SpareGuards, tmp_path: Path
) -> None:
    ready = await asked_to_end(guards)
    with guards.marker() as marker:
        starting = asyncio.ensure_future(
            run(guards, marker, "sh", "-c", "echo started >>log; cat", cwd=str(tmp_path))
        )
        await asyncio.sleep(0)  # the guard is sent the command
        ready.resume()
        child, witness = await starting
        assert child.guard_pid != ready.pid
        child.write_stdin(b"hello\n")
        child.close_stdin()
        end = await end_of(child)
    assert (end.code, end.spawn_error, end.tree_confirmed_dead) == (0, None, True)
    assert witness.output["stdout"] == b"hello\n"
    assert (tmp_path / "log").read_text() == "started\n"
    assert [event[0] for event in witness.events].count("spawned") == 1
    assert len(waiting()) == 1, "the other one is kept"


async def test_a_command_that_was_killed_before_a_guard_took_it_is_not_started(
    guards: SpareGuards, tmp_path: Path
) -> None:
    ready = await asked_to_end(guards)
    with guards.marker() as marker:
        witness, env = Witness(), {"PATH": os.environ["PATH"], MARKER: marker}
        spec = ChildSpec(("touch", "log"), str(tmp_path), env)
        starting = asyncio.ensure_future(Child.start(spec, witness, guards))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        ready.resume()
        await witness.until(lambda: witness.events != [])
    assert witness.events[0][:2] == ("spawn_failed", "ECANCELED")
    assert not (tmp_path / "log").exists()


async def test_two_runs_never_get_one_guard(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    ready = await spare()
    with guards.marker() as one, guards.marker() as other:
        assert one != other
        children = [(await run(guards, marker))[0] for marker in (other, one)]
        assert [child.guard_pid == ready.pid for child in children] == [False, True]
        for child in children:
            await end_of(child)


async def test_a_second_attempt_of_a_run_has_the_same_guard_and_marker(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        first, _ = await run(guards, marker)
        await end_of(first)
        second, witness = await run(guards, marker, "sh", "-c", f"echo ${MARKER}; exec sleep 60")
        assert second.guard_pid == first.guard_pid
        assert await witness.line() == f"{marker}"
        second.kill()
        assert (await end_of(second)).tree_confirmed_dead


async def test_a_guard_that_was_killed_while_it_waited_is_replaced(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        await end_of((await run(guards, marker))[0])
    ready = await spare()
    ready.kill()
    async with asyncio.timeout(DEADLINE_S):
        while ready.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110 - its owner has not looked yet
            await asyncio.sleep(0.01)
    with guards.marker() as marker:
        child, _ = await run(guards, marker)
        end = await end_of(child)
        assert (end.code, end.tree_confirmed_dead) == (0, True)


async def test_the_guard_of_a_run_that_starts_nothing_is_for_the_next(guards: SpareGuards) -> None:
    with guards.marker():
        ready = await spare()
    with guards.marker() as marker:
        child, _ = await run(guards, marker)
        assert child.guard_pid == ready.pid
        await end_of(child)


async def test_a_guard_that_no_run_needs_ends(guards: SpareGuards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_guard, "_UNUSED_S", 0.0)
    with guards.marker() as marker:
        child, _ = await run(guards, marker)
        await end_of(child)
    async with asyncio.timeout(DEADLINE_S):
        while waiting():  # noqa: ASYNC110 - a timer ends it
            await asyncio.sleep(0.01)


OWNER = """
import sys
from dragoman.sdk._process.prepared_guard import PreparedGuard
guard = PreparedGuard()
for _ in range(int(sys.argv[1])):
    guard.begin(("true",), cwd="/", env={"PATH": "/usr/bin:/bin"}, linger_s=1.0, private_dir=None)
    answer = b""
    while b'"waits":true' not in answer:
        answer += guard.control.recv(4096)
print(guard.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("runs", [0, 1])
def test_a_waiting_guard_ends_with_its_owner(runs: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(runs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        guard = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    psutil.wait_procs([guard], timeout=DEADLINE_S)
    assert not guard.is_running()


async def test_a_directory_that_is_not_there_is_named(guards: SpareGuards) -> None:
    with guards.marker() as marker:
        child, witness = await run(guards, marker, cwd="/missing/folder")
        end = await end_of(child)
    assert (end.spawn_error, end.tree_confirmed_dead) == ("ENOENT", True)
    assert witness.events[0] == (
        "spawn_failed",
        "ENOENT",
        "No such file or directory: working directory '/missing/folder'",
    )
