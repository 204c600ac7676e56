"""The tree beneath a guard: in which order it is ended."""

import os

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
