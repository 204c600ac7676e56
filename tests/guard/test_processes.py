from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from dragoman.guard import _psutil_table, processes
from dragoman.guard.process import Process

from tests.hostile import Hunt, hostile, is_alive

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def child(hunt: Hunt) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    with subprocess.Popen(hostile("lives"), env=hunt.env, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()


def test_the_table_knows_a_child(child: subprocess.Popen[bytes]) -> None:
    row = processes.snapshot()[child.pid]
    assert (row.ppid, row.pgrp, row.session) == (os.getpid(), child.pid, child.pid)
    assert row.is_alive
    assert row.pid in [one.pid for one in processes.descendants(processes.snapshot(), [os.getpid()])]


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    row = processes.read(child.pid)
    assert row is not None
    assert not row.is_alive
    child.wait()
    assert processes.read(child.pid) is None


def test_a_name_cannot_disturb_the_table() -> None:
    code = "open('/proc/self/comm', 'w').write('x) R 1 2 (y'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        row = processes.read(process.pid)
        process.kill()
    assert row is not None
    assert (row.ppid, row.pgrp) == (os.getpid(), os.getpgrp())


def test_both_tables_say_the_same(child: subprocess.Popen[bytes], hunt: Hunt) -> None:
    for pid in (child.pid, os.getpid()):
        ours, theirs = processes.read(pid), _psutil_table.read(pid)
        assert ours is not None
        assert theirs is not None
        assert (ours.ppid, ours.pgrp, ours.session) == (theirs.ppid, theirs.pgrp, theirs.session)
        assert theirs.is_alive
    entry = f"DRAGOMAN_RUN_MARKER={hunt.marker}".encode()
    assert _psutil_table.carries(child.pid, entry)
    assert not _psutil_table.carries(os.getpid(), entry)
    assert child.pid in _psutil_table.pids()
    assert _psutil_table.read(2**22 + 1) is None
    assert _psutil_table.boot_id() == _psutil_table.boot_id()


def test_a_signal_meets_no_stranger(child: subprocess.Popen[bytes]) -> None:
    row = processes.read(child.pid)
    assert row is not None
    stranger = Process(row.pid, row.ppid, row.pgrp, row.session, row.state, row.started + 1)
    assert not processes.send(stranger, signal.SIGKILL)
    assert is_alive(child.pid)
    assert processes.send(row, signal.SIGKILL)
    child.wait()
    assert not processes.send(row, signal.SIGKILL)


def test_without_pid_descriptors_signals_go_by_number(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing, raising=False)
    row = processes.read(child.pid)
    assert row is not None
    assert processes.send(row, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_circle_of_parents_ends() -> None:
    table = {pid: Process(pid, ppid, 0, 0, "S", 0) for pid, ppid in ((2, 3), (3, 2), (4, 3), (5, 1))}
    assert [one.pid for one in processes.descendants(table, [2])] == [2, 3, 4]
