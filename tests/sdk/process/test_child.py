"""A child under its guard, seen from the event loop.

The `hunt` fixture fails every test here that leaves a process with its marker, guards included.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from dragoman.guard import processes
from dragoman.guard.tree import MARKER
from dragoman.sdk._process import child as _child
from dragoman.sdk._process import processes as _processes
from dragoman.sdk._process.child import Child, ChildEnd, ChildSpec, Stream
from dragoman.sdk._process.pipes import PIPE_BYTES
from dragoman.sdk._process.processes import find_by_marker

from tests.hostile import DEADLINE_S, HERE, Hunt, await_end, hostile, hunting, is_alive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class Witness:
    """Records the events of a child, and lets a test wait for them."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self._news = asyncio.Event()

    def spawned(self, pid: int, pgid: int) -> None:
        self._record("spawned", pid, pgid)

    def spawn_failed(self, errno_name: str, message: str) -> None:
        self._record("spawn_failed", errno_name, message)

    def data(self, stream: Stream, data: bytes) -> None:
        assert data
        self.output[stream] += data
        self._record("data", stream)

    def eof(self, stream: Stream) -> None:
        self._record("eof", stream)

    def exited(self, code: int | None, signal: int | None) -> None:
        self._record("exited", code, signal)

    def _record(self, *event: object) -> None:
        self.events.append(event)
        self._news.set()

    def kinds(self) -> list[str]:
        """Return the kinds of events, each run of equal kinds once."""
        kinds = [event[0] for event in self.events]
        return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]

    async def until(self, is_reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_reached():
                self._news.clear()
                await self._news.wait()

    async def line(self) -> str:
        """Return the first line of output, once it is whole."""
        stdout = self.output["stdout"]
        await self.until(lambda: b"\n" in stdout)
        return stdout.split(b"\n")[0].decode()


class Harness:
    """Starts children for one test."""

    def __init__(self, hunt: Hunt) -> None:
        self.hunt = hunt
        self.children: list[Child] = []

    def spec(self, *argv: str, cwd: str = "/", linger_s: float = 5.0) -> ChildSpec:
        return ChildSpec(argv, cwd, dict(self.hunt.env), linger_s)

    async def start(self, *argv: str, **options: Any) -> tuple[Child, Witness]:
        witness = Witness()
        child = await Child.start(self.spec(*argv, **options), witness)
        self.children.append(child)
        return child, witness


async def end_of(child: Child) -> ChildEnd:
    async with asyncio.timeout(DEADLINE_S):
        return await child.wait()


def guard_pid(child: Child) -> int:
    assert child.pid is not None
    return psutil.Process(child.pid).ppid()


def open_descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def pipes_and_sockets() -> set[str]:
    """Return those that are open. Other things are opened and closed by threads of gRPC when they like."""
    targets: set[str] = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread's, or that of this listing
            targets.add(str(path.readlink()))
    return {target for target in targets if target.startswith(("pipe:", "socket:"))}


@pytest.fixture
def hunt() -> Iterator[Hunt]:
    with hunting() as hunt:
        yield hunt


@pytest.fixture
async def harness(hunt: Hunt) -> AsyncIterator[Harness]:
    harness = Harness(hunt)
    yield harness
    for child in harness.children:
        child.kill()
        await end_of(child)


async def test_a_whole_life(harness: Harness, tmp_path: Path) -> None:
    child, witness = await harness.start("sh", "-c", "pwd; echo $$; echo oops >&2; exit 3", cwd=str(tmp_path))
    end = await end_of(child)
    assert end == ChildEnd(3, None, None, tree_confirmed_dead=True, killed=(), survivors=())
    assert witness.output["stdout"].decode() == f"{tmp_path}\n{child.pid}\n"
    assert witness.output["stderr"] == b"oops\n"
    assert witness.events[0] == ("spawned", child.pid, child.pid)
    assert [event for event in witness.events if event[0] == "exited"] == [("exited", 3, None)]
    assert sorted(event for event in witness.events if event[0] == "eof") == [("eof", "stderr"), ("eof", "stdout")]


async def test_a_death_by_signal(harness: Harness) -> None:
    child, _ = await harness.start("sh", "-c", "kill -USR1 $$")
    end = await end_of(child)
    assert (end.code, end.signal) == (None, signal.SIGUSR1)


async def test_stdin_of_any_size_is_written_in_the_background(harness: Harness) -> None:
    child, witness = await harness.start("sh", "-c", "read first; echo $first; wc -c")
    child.write_stdin(b"")
    child.write_stdin(b"one\n")
    child.write_stdin(b"x" * (3 << 20))
    child.write_stdin(b"y")
    child.close_stdin()
    child.write_stdin(b"too late")
    await end_of(child)
    assert witness.output["stdout"].split() == [b"one", b"%d" % ((3 << 20) + 1)]


async def test_stdin_that_is_never_read_is_no_error(harness: Harness) -> None:
    child, _ = await harness.start("sh", "-c", "exec <&-; echo; read line <&2")
    child.write_stdin(b"x" * (3 << 20))
    child.close_stdin()
    assert (await end_of(child)).tree_confirmed_dead
    child.write_stdin(b"after the end")
    child.close_stdin()


async def test_a_closed_empty_stdin_ends(harness: Harness) -> None:
    child, _ = await harness.start("cat")
    child.close_stdin()
    assert (await end_of(child)).code == 0


async def test_the_command_cannot_find_the_guards_socket(harness: Harness) -> None:
    child, witness = await harness.start("ls", "/proc/self/fd")
    await end_of(child)
    assert witness.output["stdout"].split() == [b"0", b"1", b"2", b"3"], "3 is the folder that ls reads"


async def test_guard_and_command_are_in_sessions_of_their_own(harness: Harness) -> None:
    """A Ctrl-C in our terminal is for us alone."""
    child, _ = await harness.start("cat")
    guard = guard_pid(child)
    assert (os.getsid(guard), os.getsid(child.pid or 0)) == (guard, child.pid)


@pytest.mark.parametrize(
    ("argv", "cwd", "errno_name", "subject"),
    [
        (("missing-command",), "/", "ENOENT", "'missing-command'"),
        (("/dev/null",), "/", "EACCES", "'/dev/null'"),
        (("sh",), "/missing", "ENOENT", "working directory '/missing'"),
        (("sh", "x" * (1 << 18)), "/", "E2BIG", "'sh'"),
        (("sh", "zero\0byte"), "/", "EINVAL", "null byte"),
    ],
)
async def test_a_failed_start_is_data(
    harness: Harness, argv: tuple[str, ...], cwd: str, errno_name: str, subject: str
) -> None:
    child, witness = await harness.start(*argv, cwd=cwd)
    assert child.pid is None
    child.write_stdin(b"unheard")
    child.close_stdin()
    child.kill()
    child.signal(signal.SIGINT)
    assert await end_of(child) == ChildEnd(None, None, errno_name, True, (), ())
    assert witness.kinds() == ["spawn_failed", "eof"]
    assert witness.events[0][1] == errno_name
    assert subject in witness.events[0][2]


@pytest.mark.parametrize("descriptors", [0, 3, 5, 7])
async def test_too_few_descriptors_are_data(harness: Harness, descriptors: int) -> None:
    """None at all; a socket, but nothing to start a process with; one of three pipes, and two."""
    held, before = open_descriptors(), pipes_and_sockets()
    filling = [os.open("/dev/null", os.O_RDONLY)]
    while filling[-1] <= max(held):
        filling.append(os.dup(filling[0]))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filling[-1] + 1 + descriptors, limits[1]))
    try:
        child, witness = await harness.start("true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in filling:
            os.close(fd)
    assert (await end_of(child)).spawn_error == "EMFILE"
    assert witness.kinds() == ["spawn_failed", "eof"]
    async with asyncio.timeout(DEADLINE_S):
        while pipes_and_sockets() - before:  # noqa: ASYNC110 - a thread may just be connecting to something
            await asyncio.sleep(0.05)


async def test_a_missing_guard_is_not_a_missing_command(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    child, witness = await harness.start("true")
    assert (await end_of(child)).spawn_error == "EIO"
    assert "guard" in witness.events[0][2]


async def test_a_guard_that_cannot_begin_is_not_a_missing_command(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    child, witness = await harness.start("true")
    end = await end_of(child)
    assert (end.spawn_error, end.tree_confirmed_dead) == ("EIO", False), "what it had started is unknown"
    assert witness.kinds() == ["spawn_failed", "eof"]


async def test_no_word_of_the_command_is_in_the_guards_command_line(harness: Harness, tmp_path: Path) -> None:
    """An agent that ends its own programs by a word of their command lines (`pkill -f`) must not meet its guard."""
    private = tmp_path / "private"
    private.mkdir()
    witness = Witness()
    argv = ("sh", "-c", "echo begun; read line", "plover-7731")
    spec = ChildSpec(argv, str(tmp_path), dict(harness.hunt.env), 5.0, str(private))
    child = await Child.start(spec, witness)
    harness.children.append(child)
    await witness.line()
    words = psutil.Process(guard_pid(child)).cmdline()
    assert not [word for word in words for private_word in (*argv[2:], str(tmp_path)) if private_word in word]
    assert psutil.Process(child.pid).cmdline() == list(argv)
    child.close_stdin()
    assert (await end_of(child)).tree_confirmed_dead


# -- output


async def test_floods_on_both_streams_are_read_whole(harness: Harness) -> None:
    size = 8 << 20
    child, witness = await harness.start(*hostile("floods", str(size)))
    end = await end_of(child)
    assert end.code == 0
    assert [len(witness.output[name]) for name in ("stdout", "stderr")] == [size, size]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can enlarge pipes")
async def test_output_pipes_are_large(harness: Harness) -> None:
    """Some agents exit without waiting until their last output is read."""
    child, _ = await harness.start("cat")
    for fd in ("1", "2"):
        pipe = os.open(f"/proc/{child.pid}/fd/{fd}", os.O_WRONLY)
        assert fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) == PIPE_BYTES
        os.close(pipe)
    child.close_stdin()
    await end_of(child)


async def test_pipes_that_cannot_be_large_still_work(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    child, witness = await harness.start(*hostile("floods", "1000000"))
    await end_of(child)
    assert len(witness.output["stdout"]) == 1_000_000


async def test_closing_its_output_does_not_end_a_child(harness: Harness) -> None:
    child, witness = await harness.start(*hostile("falls_silent"))
    await witness.until(lambda: {("eof", "stdout"), ("eof", "stderr")} <= set(witness.events))
    assert witness.output["stdout"] == b"last words\n"
    waiting = asyncio.ensure_future(child.wait())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    assert is_alive(child.pid or 0)
    child.close_stdin()
    assert (await waiting).code == 7
    assert witness.events[-1] == ("exited", 7, None)


async def test_a_broken_handler_does_not_stop_the_pipes(harness: Harness) -> None:
    class Broken(Witness):
        def data(self, stream: Stream, data: bytes) -> None:
            super().data(stream, data)
            raise RuntimeError("broken")

        def spawned(self, pid: int, pgid: int) -> None:
            super().spawned(pid, pgid)
            raise RuntimeError("broken")

    loop, reported = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    try:
        witness = Broken()
        child = await Child.start(harness.spec(*hostile("floods", "1000000")), witness)
        assert (await end_of(child)).code == 0
    finally:
        loop.set_exception_handler(None)
    assert len(witness.output["stdout"]) == 1_000_000
    assert len(reported) > 10


async def test_a_pipe_that_a_stranger_holds_is_abandoned(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The output is passed on to a process that is not beneath the guard."""
    monkeypatch.setattr(_child, "PIPE_BOUND_S", 0.1)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child, witness = await harness.start("sh", "-c", f"echo before; read line <{gate}")
    await witness.line()
    held = os.open(f"/proc/{child.pid}/fd/1", os.O_WRONLY)
    gate.write_text("go\n")
    end = await end_of(child)
    assert end.tree_confirmed_dead
    assert witness.output["stdout"] == b"before\n"
    assert witness.events[-1] == ("eof", "stdout")
    with pytest.raises(BrokenPipeError):
        os.write(held, b"unheard")
    os.close(held)


# -- how it ends


@pytest.mark.parametrize("words", [(), ("wiped",), ("deaf", "wiped")])
async def test_daemons_are_ended_after_a_natural_exit(harness: Harness, words: tuple[str, ...]) -> None:
    child, witness = await harness.start(*hostile("daemonizes", *words), linger_s=0.1)
    daemon = int(await witness.line())
    harness.hunt.also.append(daemon)
    child.close_stdin()
    end = await end_of(child)
    assert (end.code, end.tree_confirmed_dead, end.killed, end.survivors) == (4, True, (daemon,), ())
    assert not is_alive(daemon)


async def test_a_background_sleeper_is_ended(harness: Harness) -> None:
    child, witness = await harness.start("sh", "-c", "sleep 60 & echo $!; exit 4")
    end = await end_of(child)
    assert end.code == 4
    assert end.killed == (int(await witness.line()),)


async def test_signals_then_a_kill_for_the_deaf(harness: Harness) -> None:
    child, witness = await harness.start(*hostile("lives", "deaf"))
    await witness.line()
    child.signal(signal.SIGINT)
    child.signal(signal.SIGTERM, "tree")
    waiting = asyncio.ensure_future(child.wait())
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    child.kill()
    child.kill()
    end = await waiting
    assert (end.code, end.signal, end.tree_confirmed_dead) == (None, signal.SIGKILL, True)
    child.kill()


async def test_sigint_is_default_even_if_we_ignore_it(harness: Harness) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child, witness = await harness.start("sh", "-c", "echo ready; read line")
        await witness.line()
        child.signal(signal.SIGINT)
        assert (await end_of(child)).signal == signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_cancelled_wait_kills(harness: Harness) -> None:
    child, witness = await harness.start(*hostile("daemonizes", "stay", "deaf", "wiped"))
    harness.hunt.also.append(int(await witness.line()))
    waiting = asyncio.ensure_future(child.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end = await end_of(child)
    assert (end.signal, end.tree_confirmed_dead) == (signal.SIGKILL, True)


async def test_a_cancelled_start_leaves_nothing(hunt: Hunt) -> None:
    witness = Witness()
    spec = ChildSpec(hostile("lives", "deaf"), "/", dict(hunt.env))
    starting = asyncio.ensure_future(Child.start(spec, witness))
    await asyncio.sleep(0)
    while not (guards := find_by_marker(hunt.marker)):
        os.sched_yield()  # for a moment a starting program has no environment
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await witness.until(lambda: {("eof", "stdout"), ("eof", "stderr")} <= set(witness.events))
    await asyncio.to_thread(await_end, guards[0])


# -- when a side is lost


@pytest.mark.parametrize("words", [("stay",), ("stay", "deaf")])
async def test_a_killed_guard_leaves_nothing_that_can_be_found(harness: Harness, words: tuple[str, ...]) -> None:
    child, witness = await harness.start(*hostile("daemonizes", *words))
    daemon = int(await witness.line())
    os.kill(guard_pid(child), signal.SIGKILL)
    end = await end_of(child)
    assert (end.code, end.signal, end.spawn_error) == (None, None, None)
    assert not end.tree_confirmed_dead, "no guard above this process can confirm it"
    assert set(end.killed) == {child.pid, daemon}
    assert [event for event in witness.events if event[0] == "exited"] == [("exited", None, None)]
    assert harness.hunt.left() == []


async def test_a_killed_guard_leaves_no_session(harness: Harness) -> None:
    """Without a marker the leader's session shows whose they are."""
    del harness.hunt.env[MARKER]
    child, witness = await harness.start("env", "-i", "sh", "-c", "/bin/sleep 60 & echo $!; read line")
    sleeper = int(await witness.line())
    harness.hunt.also += [sleeper, child.pid or 0]
    os.kill(guard_pid(child), signal.SIGKILL)
    end = await end_of(child)
    assert set(end.killed) == {child.pid, sleeper}
    assert not end.tree_confirmed_dead


async def test_what_cannot_be_killed_is_not_called_dead(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    child, witness = await harness.start(*hostile("lives"))
    await witness.line()
    monkeypatch.setattr(_processes, "KILL_BOUND_S", 0.1)
    monkeypatch.setattr(_child, "PIPE_BOUND_S", 0.1)
    with monkeypatch.context() as powerless:
        powerless.setattr(processes, "send", lambda _process, _signum: False)
        os.kill(guard_pid(child), signal.SIGKILL)
        end = await end_of(child)
    assert not end.tree_confirmed_dead
    assert end.survivors == (child.pid,)
    os.kill(end.survivors[0], signal.SIGKILL)
    await asyncio.to_thread(await_end, end.survivors[0])


async def test_a_stopped_guard_is_woken_to_kill(harness: Harness) -> None:
    child, witness = await harness.start(*hostile("lives"))
    await witness.line()
    os.kill(guard_pid(child), signal.SIGSTOP)
    child.kill()
    end = await end_of(child)
    assert (end.signal, end.tree_confirmed_dead) == (signal.SIGKILL, True)


async def test_a_guard_that_is_stuck_is_killed(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_child, "STUCK_AFTER_S", 0.1)
    child, witness = await harness.start(*hostile("lives"))
    await witness.line()
    monkeypatch.setattr(child._link, "wake", lambda: None)
    os.kill(guard_pid(child), signal.SIGSTOP)
    child.kill()
    end = await end_of(child)
    assert (end.code, end.signal, end.tree_confirmed_dead, end.killed) == (None, None, False, (child.pid,))


@pytest.mark.parametrize("words", [("stay",), ("stay", "deaf", "wiped")])
def test_a_killed_owner_leaves_nothing(hunt: Hunt, words: tuple[str, ...]) -> None:
    command = (sys.executable, str(HERE / "owner.py"), *hostile("daemonizes", *words))
    with subprocess.Popen(command, env=hunt.env, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        guard, child = map(int, owner.stdout.readline().split())
        daemon = int(owner.stdout.readline())
        hunt.also.append(daemon)
        owner.kill()
    await_end(guard)
    assert not is_alive(child)
    assert hunt.left() == []


# -- finding processes


def test_a_marker_is_found_whole_and_not_in_ourselves(hunt: Hunt) -> None:
    assert find_by_marker("") == []
    command = ("sh", "-c", "echo begun; read line")
    with subprocess.Popen(command, env=hunt.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # Popen comes back from a program that has no environment yet
        assert find_by_marker(hunt.marker) == [process.pid]
        assert find_by_marker(hunt.marker[:-1]) == []


def test_a_session_number_used_again_is_not_ours(hunt: Hunt) -> None:
    with subprocess.Popen(("cat",), env=hunt.env, stdin=subprocess.PIPE, start_new_session=True) as process:
        row = processes.read(process.pid)
        assert row is not None
        ours = _processes.find_remaining("", (row.pid, row.started))
        assert [one.pid for one in ours] == [process.pid]
        assert _processes.find_remaining("", (row.pid, row.started - 1)) == []
        assert _processes.find_remaining("", None) == []
