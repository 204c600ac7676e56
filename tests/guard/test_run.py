"""A run's guard: owned through an inherited socket, it ends with everything that was beneath it.

The `hunt` fixture fails every test here that leaves a process with its marker.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from dragoman.guard import launch
from dragoman.guard.launch import run_guard
from dragoman.guard.processes import read

from tests.guard.guarded import ControlConnection
from tests.hostile import DEADLINE_S, Hunt, await_end, hostile, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.guard.guarded import Guarded

    Run = Callable[..., Guarded]

GLIBCS_OWN = 3 << 31
"""Signals 32 and 33, for threads; glibc's posix_spawn leaves them ignored."""

NO_SUBREAPER = {"extra": ("--no-subreaper",)}


def test_it_reports_the_life_of_its_command(run: Run) -> None:
    guarded = run(("sh", "-c", "read line; echo $$; exit 3"))
    spawned = guarded.event()
    row = read(spawned["pid"])
    assert row is not None
    assert spawned == {"event": "spawned", "pid": row.pid, "pgid": row.pid, "started": row.started}
    assert (row.ppid, row.pgrp, row.session) == (guarded.process.pid, row.pid, row.pid)
    guarded.stdin.write(b"\n")
    guarded.stdin.flush()
    assert guarded.read_pid() == row.pid
    assert guarded.event() == {"event": "exited", "code": 3, "signal": None}
    assert guarded.gone() == {"event": "gone", "confirmed": True, "killed": [], "survivors": []}
    assert guarded.process.returncode == 3


def test_it_mirrors_a_death_by_signal(run: Run) -> None:
    guarded = run(("sh", "-c", "kill -USR1 $$"))
    guarded.event()
    assert guarded.event() == {"event": "exited", "code": None, "signal": signal.SIGUSR1}
    guarded.gone()
    assert guarded.process.returncode == 128 + signal.SIGUSR1


@pytest.mark.parametrize(
    ("command", "errno_name", "code"),
    [("missing", "ENOENT", 127), ("./missing", "ENOENT", 127), ("plain", "EACCES", 126), ("garbled", "ENOEXEC", 126)],
)
def test_a_failed_start_is_reported(run: Run, tmp_path: Path, command: str, errno_name: str, code: int) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "garbled").write_bytes(b"\x7fnot a program")
    (tmp_path / "garbled").chmod(0o755)
    guarded = run((str(tmp_path / command) if (tmp_path / command).exists() else command,))
    event = guarded.event()
    assert (event["event"], event["errno"]) == ("spawn_failed", errno_name)
    assert command.removeprefix("./") in event["message"]
    assert guarded.gone()["confirmed"]
    assert guarded.process.returncode == code
    assert guarded.stdout.read() == b""


def test_the_command_gets_exactly_the_environment(hunt: Hunt, run: Run) -> None:
    """In a C locale the interpreter would add LC_CTYPE."""
    hunt.env["ODD"] = "a=b\n\xe9"
    guarded = run(("env", "-0"))
    output = guarded.stdout.read()
    assert sorted(output.split(b"\0")[:-1]) == sorted(f"{name}={value}".encode() for name, value in hunt.env.items())
    guarded.gone()


def test_the_command_gets_three_descriptors(run: Run) -> None:
    guarded = run(("ls", "/proc/self/fd"))
    assert guarded.stdout.read() == b"0\n1\n2\n3\n", "3 is the folder that ls reads"
    guarded.gone()


def test_an_interpreter_without_setsid_in_posix_spawn_will_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shim = tmp_path / "shim.py"
    shim.write_text(
        "import os, runpy, sys\n"
        "def absent(*_, **__): raise NotImplementedError\n"
        "os.posix_spawnp = absent\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    whole = launch._command
    monkeypatch.setattr(launch, "_command", lambda fd: [*whole(fd)[:-2], str(shim), *whole(fd)[-2:]])
    guarded = run(("sh", "-c", "ls /proc/self/fd; exit 3"))
    spawned = guarded.event()
    assert spawned["pid"] == spawned["pgid"]
    assert guarded.stdout.read() == b"0\n1\n2\n3\n"
    assert guarded.event() == {"event": "exited", "code": 3, "signal": None}
    assert guarded.gone()["confirmed"]
    missing = run(("missing",))
    assert missing.event()["errno"] == "ENOENT"
    assert missing.gone()["confirmed"]


@pytest.fixture
def rude_launcher() -> Iterator[None]:
    """Ignores SIGINT, as background jobs of shells do, and blocks what a guard needs."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("rude_launcher")
def test_the_command_gets_default_signals(run: Run) -> None:
    guarded = run(("grep", "Sig[BI]", "/proc/self/status"))
    blocked, ignored = [int(line.split(b":")[1], 16) for line in guarded.stdout]
    assert blocked == 0
    assert ignored & ~GLIBCS_OWN == 0
    guarded.gone()


def check_that_sigint_reaches_the_command_only(run: Run) -> None:
    guarded = run(("sh", "-c", "echo $$; read line"))
    guarded.event()
    os.kill(guarded.process.pid, signal.SIGINT)
    os.kill(guarded.process.pid, signal.SIGHUP)
    guarded.read_pid()
    assert guarded.line.is_silent(0.05)
    guarded.send(signal="SIGINT")
    assert guarded.event()["signal"] == signal.SIGINT
    guarded.gone()


def test_sigint_reaches_the_command_only(run: Run) -> None:
    check_that_sigint_reaches_the_command_only(run)


@pytest.mark.usefixtures("rude_launcher")
def test_sigint_reaches_the_command_of_a_rude_launcher(run: Run) -> None:
    check_that_sigint_reaches_the_command_only(run)


def test_the_end_of_output_is_the_commands_own(run: Run) -> None:
    guarded = run(hostile("falls_silent"))
    assert guarded.stdout.read() == b"last words\n", "ends although command and guard live"
    guarded.event()
    assert guarded.line.is_silent(0.05)
    guarded.stdin.close()
    assert guarded.event() == {"event": "exited", "code": 7, "signal": None}
    guarded.gone()


# -- how it ends


def test_what_the_command_leaves_is_ended(run: Run) -> None:
    guarded = run(("sh", "-c", "sleep 60 & echo $!; exit 4"))
    sleeper = guarded.read_pid()
    gone = guarded.gone()
    assert gone["confirmed"]
    assert gone["killed"] == [sleeper]


@pytest.mark.parametrize("arguments", [(), ("wiped",), ("deaf",), ("wiped", "deaf")])
def test_daemons_are_ended(hunt: Hunt, run: Run, arguments: tuple[str, ...]) -> None:
    guarded = run(hostile("daemonizes", *arguments), linger=0.1)
    daemon = guarded.read_pid()
    hunt.also.append(daemon)
    guarded.stdin.close()
    guarded.event()
    assert guarded.event() == {"event": "exited", "code": 4, "signal": None}
    gone = guarded.gone()
    assert gone["confirmed"]
    assert gone["killed"] == [daemon]
    assert not is_alive(daemon)


def test_what_is_left_gets_its_linger(run: Run) -> None:
    """A sleeper that cleans up on TERM is not killed meanwhile."""
    script = 'trap "echo cleaned; exit" TERM; echo ready; while :; do sleep 0.01; done'
    guarded = run(("sh", "-c", f"({script}) & read line"))
    assert guarded.stdout.readline() == b"ready\n"
    guarded.stdin.close()
    assert guarded.gone()["confirmed"]
    assert guarded.stdout.read() == b"cleaned\n"


@pytest.mark.parametrize("arguments", [("stay",), ("stay", "wiped"), ("stay", "deaf", "wiped")])
def test_a_kill_reaches_daemons(hunt: Hunt, run: Run, arguments: tuple[str, ...]) -> None:
    guarded = run(hostile("daemonizes", *arguments))
    daemon = guarded.read_pid()
    hunt.also.append(daemon)
    guarded.send(kill=True)
    leader = guarded.event()["pid"]
    assert guarded.event() == {"event": "exited", "code": None, "signal": signal.SIGKILL}
    gone = guarded.gone()
    assert gone["confirmed"]
    assert set(gone["killed"]) == {leader, daemon}


def test_the_deaf_are_killed(run: Run) -> None:
    guarded = run(hostile("lives", "deaf"))
    guarded.read_pid()
    guarded.send(signal="SIGTERM")
    guarded.send(signal="SIGINT", to="tree")
    guarded.event()
    assert guarded.line.is_silent(0.05)
    guarded.send(kill=True)
    assert guarded.event()["signal"] == signal.SIGKILL
    assert guarded.gone()["confirmed"]


def await_stop(pid: int) -> None:
    """Wait for a process to be stopped; only its parent is notified, which this process is not."""
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        os.sched_yield()


def test_the_stopped_are_killed(run: Run) -> None:
    guarded = run(hostile("stops_itself"))
    await_stop(guarded.read_pid())
    guarded.send(kill=True)
    assert guarded.gone()["confirmed"]


def test_the_stopped_are_woken_for_a_signal(run: Run) -> None:
    guarded = run(hostile("stops_itself"))
    await_stop(guarded.read_pid())
    guarded.send(signal="SIGTERM")
    guarded.event()
    assert guarded.event()["signal"] == signal.SIGTERM
    guarded.gone()


def test_the_stopped_that_are_left_are_woken_to_end(run: Run) -> None:
    """With a linger beyond every deadline here: TERM alone has to do it."""
    guarded = run(("sh", "-c", '"$@" & read line', "sh", *hostile("stops_itself")), linger=1000)
    await_stop(guarded.read_pid())
    guarded.stdin.close()
    assert guarded.gone()["confirmed"]


@pytest.mark.parametrize("arguments", [(), ("sessions",)])
def test_a_comet_is_caught(run: Run, arguments: tuple[str, ...]) -> None:
    """It forks and exits in a circle: no pid of it lives for a millisecond."""
    guarded = run(hostile("respawner", *arguments), linger=1000)
    assert guarded.stdout.readline() == b"flying\n"
    guarded.send(kill=True)
    assert guarded.gone()["confirmed"]


def test_what_breeds_while_it_is_killed_is_killed(run: Run) -> None:
    guarded = run(hostile("forkers", "10"))
    guarded.read_pid()
    guarded.send(kill=True)
    assert guarded.gone()["confirmed"]


@pytest.mark.parametrize("arguments", [("stay",), ("stay", "deaf", "wiped")])
def test_a_closed_channel_kills_everything(hunt: Hunt, run: Run, arguments: tuple[str, ...]) -> None:
    guarded = run(hostile("daemonizes", *arguments))
    hunt.also.append(guarded.read_pid())
    guarded.line.close()
    guarded.process.wait(DEADLINE_S)
    assert guarded.process.returncode == 128 + signal.SIGKILL
    assert hunt.left() == []


@pytest.mark.parametrize("ending", ["natural", "owner dead"])
def test_the_private_directory_is_removed_at_the_end(run: Run, tmp_path: Path, ending: str) -> None:
    private = tmp_path / "private"
    (private / "deep").mkdir(parents=True)
    (private / "deep" / "secret").write_text("x")
    guarded = run(("sh", "-c", "echo; read line"), extra=(f"--remove={private}",))
    guarded.stdout.readline()
    assert private.exists()
    if ending == "natural":
        guarded.stdin.close()
        assert guarded.gone()["confirmed"]
    else:
        guarded.line.close()
        guarded.process.wait(DEADLINE_S)
    assert not private.exists()


def test_terminating_the_guard_ends_the_command_with_its_grace(run: Run) -> None:
    guarded = run(("sh", "-c", 'trap "exit 9" TERM; echo; while :; do sleep 0.01; done'))
    guarded.stdout.readline()
    guarded.process.terminate()
    assert guarded.gone()["confirmed"]
    assert guarded.process.returncode == 9


def test_the_grace_of_a_terminated_guard_is_bounded(run: Run) -> None:
    guarded = run(hostile("lives", "deaf"), extra=("--grace=0.1",))
    guarded.read_pid()
    guarded.process.terminate()
    assert guarded.gone()["confirmed"]
    assert guarded.process.returncode == 128 + signal.SIGKILL


POWERLESS = """
import os, sys
from dragoman.guard import guard, processes, tree
tree.KILL_BOUND_S = 0.1
processes.send = lambda process, signum: False
os.killpg = lambda group, signum: None
sys.exit(guard.main(sys.argv[1:]))
"""


def test_what_cannot_be_killed_is_reported(hunt: Hunt) -> None:
    """As with processes of another user, or stuck in the kernel: the guard gives up, and says who is left."""
    ours, theirs = socket.socketpair()
    arguments = run_guard(hostile("lives"), control_fd=theirs.fileno())
    command = (sys.executable, "-c", POWERLESS, *arguments)
    with theirs, ours:
        process = subprocess.Popen(command, env=hunt.env, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()])

        theirs.close()
        line = ControlConnection(ours)
        child = line.event()["pid"]
        line.send(kill=True)
        assert line.event() == {"event": "gone", "confirmed": False, "killed": [], "survivors": [child]}
        assert process.wait(DEADLINE_S) == 128 + signal.SIGKILL
        assert process.stdout is not None
        process.stdout.close()
        os.kill(child, signal.SIGKILL)
        await_end(child)


# -- orders


def test_signals_go_where_they_are_sent(run: Run) -> None:
    """The leader, its group, everything: each prints what reaches it, in a session of its own or not."""
    listener = 'trap "echo {0}" USR1; echo {0}-ready; while :; do sleep 0.01; done'
    script = f"({listener.format('group')}) & setsid sh -c '{listener.format('tree')}' & wait_=1; " + listener.format(
        "leader"
    )
    guarded = run(("sh", "-c", script))
    ready = {guarded.stdout.readline() for _ in range(3)}
    assert ready == {b"group-ready\n", b"tree-ready\n", b"leader-ready\n"}
    for to, reached in (("leader", {b"leader\n"}), ("group", {b"leader\n", b"group\n"})):
        guarded.send(signal="SIGUSR1", to=to)
        assert {guarded.stdout.readline() for _ in reached} == reached
    guarded.send(signal="SIGUSR1", to="leader")
    assert guarded.stdout.readline() == b"leader\n", "and nothing else had been waiting"
    guarded.send(kill=True)
    guarded.gone()


def test_what_is_no_order_is_refused(run: Run) -> None:
    guarded = run(("cat",))
    guarded.event()
    guarded.line.connection.sendall(b'{"kill":1}\nnonsense\n')
    assert guarded.event()["event"] == "refused"
    assert guarded.event()["event"] == "refused"
    guarded.stdin.close()
    assert guarded.event()["code"] == 0
    guarded.gone()


# -- without a subreaper


def test_without_a_subreaper_the_session_is_swept(run: Run) -> None:
    guarded = run(("env", "-i", "sh", "-c", "/bin/sleep 60 & echo $!; exit 4"), **NO_SUBREAPER)
    sleeper = guarded.read_pid()
    gone = guarded.gone()
    assert gone["confirmed"]
    assert gone["killed"] == [sleeper]
    assert not is_alive(sleeper)


@pytest.mark.parametrize("arguments", [(), ("deaf",)])
def test_without_a_subreaper_the_marker_finds_daemons(hunt: Hunt, run: Run, arguments: tuple[str, ...]) -> None:
    guarded = run(hostile("daemonizes", *arguments), linger=0.1, **NO_SUBREAPER)
    daemon = guarded.read_pid()
    guarded.stdin.close()
    gone = guarded.gone()
    assert gone["confirmed"]
    assert gone["killed"] == [daemon]
    assert hunt.left() == []


def test_without_a_subreaper_snapshots_find_who_left(hunt: Hunt, run: Run) -> None:
    """Seen while it was still beneath the leader, it is known after it has lost its parents."""
    wiped = f"setsid env -i {' '.join(hostile('lives'))}"
    began = time.monotonic()
    guarded = run(("sh", "-c", f"({wiped} & read line)"), **NO_SUBREAPER)
    left = guarded.read_pid()
    hunt.also.append(left)
    assert guarded.line.event()["event"] == "spawned"
    # Each is taken twice as long after the one before.
    assert guarded.line.is_silent(0.4 + time.monotonic() - began), "time for a snapshot"
    guarded.stdin.close()
    gone = guarded.gone()
    assert gone["killed"] == [left]
    assert not is_alive(left)


# -- in a container


def test_as_a_first_process_it_forwards_signals(hunt: Hunt) -> None:
    command = guard_of("sh", "-c", 'trap "exit 9" INT; echo; while :; do sleep 0.01; done')
    with subprocess.Popen(command, env=hunt.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 9


def test_as_a_first_process_it_says_why_it_cannot_start(hunt: Hunt) -> None:
    done = subprocess.run(guard_of("missing"), env=hunt.env, capture_output=True, check=False)
    assert done.returncode == 127
    assert done.stderr == b"dragoman-guard: cannot start: No such file or directory: 'missing'\n"


def test_a_wrong_command_line_is_explained(hunt: Hunt) -> None:
    done = subprocess.run(guard_of("x", options=("--control=c",)), env=hunt.env, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"require each other" in done.stderr


def can_unshare() -> bool:
    try:
        done = subprocess.run(("unshare", "-pf", "--mount-proc", "true"), capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a pid namespace")
def test_as_pid_1_it_reaps_and_ends_with_the_commands_code(hunt: Hunt) -> None:
    command = ("sh", "-c", '"$@" </dev/null >/dev/null & echo $PPID; wait $!; (sleep 60 &) ; exit 6', "sh")
    done = subprocess.run(
        ("unshare", "-pf", "--mount-proc", *guard_of(*command, *hostile("daemonizes"))),
        env=hunt.env,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (6, b"1\n")


def guard_of(*argv: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command of a guard without an owner."""
    import sys

    from dragoman import guard

    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(str(guard.__file__)).with_name("__main__.py")),
        *options,
        "--",
        *argv,
    ]
