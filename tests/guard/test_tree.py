"""The tree beneath a guard: in which order it is ended."""

import os
import subprocess
import sys

import pytest
from dragoman.guard import processes
from dragoman.guard.process import Process
from dragoman.guard.tree import Tree


def test_parents_are_killed_before_their_children(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Process(pid, pid - 1, 10, 10, "S", started) for pid, started in ((30, 3), (10, 1), (12, 2), (11, 2))]
    killed: list[int] = []

    def send(process: Process, _signal: int) -> bool:
        killed.append(process.pid)
        return True

    tree = Tree(is_subreaper=True, marker=b"")
    monkeypatch.setattr(tree, "members", lambda: rows)
    monkeypatch.setattr(processes, "send", send)
    monkeypatch.setattr(os, "killpg", lambda _group, _signal: None)
    tree._kill_round()
    assert killed == [10, 11, 12, 30]


def test_the_group_of_a_process_that_has_none_here_is_the_guards_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # A group whose leader is outside of the PID namespace is 0, and killpg(0) kills the caller's.
    rows = [Process(pid, 1, pgrp, 10, "S", pid) for pid, pgrp in ((10, 0), (11, 11))]
    groups: list[int] = []
    tree = Tree(is_subreaper=True, marker=b"")
    monkeypatch.setattr(tree, "members", lambda: rows)
    monkeypatch.setattr(processes, "send", lambda _process, _signal: True)
    monkeypatch.setattr(os, "killpg", lambda group, _signal: groups.append(group))
    tree._kill_round()
    assert groups == [11]


def test_a_stranger_with_the_pid_of_one_that_was_seen_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    child, orphan, stranger = (
        Process(50, ppid, 50, 50, "S", started) for ppid, started in ((own, 7), (1, 7), (1, 9))
    )
    tables = iter([{50: child}, {50: orphan}, {50: stranger}])
    monkeypatch.setattr(processes, "snapshot", lambda: next(tables))
    tree = Tree(is_subreaper=False, marker=b"")
    tree.watch()
    assert tree.members() == [orphan]
    assert tree.members() == []


@pytest.mark.skipif(sys.platform != "linux", reason="no other system has subreapers")
@pytest.mark.parametrize("without", ["", "sys.modules['_ctypes'] = types.ModuleType('_ctypes')"])
def test_it_adopts_orphans_whatever_calls_the_c_library(without: str) -> None:
    program = f"""
import ctypes, sys, types
{without}
from dragoman.guard.tree import become_subreaper
became, is_set = become_subreaper(), ctypes.c_int()
ctypes.CDLL(None).prctl(37, ctypes.byref(is_set), 0, 0, 0)
print(became, is_set.value)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "True 1\n"
