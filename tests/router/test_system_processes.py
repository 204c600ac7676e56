"""Whether another router of this machine is gone: only who is surely so is not waited for."""

import os
import subprocess
import sys

import pytest
from dragoman.guard import processes
from dragoman.router.system import SystemProcesses


def name_of(pid: int) -> str:
    """Return the name that a router with this pid, which started just now, would have."""
    place = SystemProcesses().own_name().partition("/")[0]
    return f"{place}/{pid}/{SystemProcesses().started(pid)}/00000000"


def test_who_lives_is_not_gone_and_who_ended_is() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = name_of(process.pid)
        assert not SystemProcesses().is_gone(name)
        assert SystemProcesses().is_gone(name.replace(f"/{process.pid}/", f"/{os.getpid()}/")), (
            "another one has its pid"
        )
        assert not SystemProcesses().is_gone(f"elsewhere{name}")
    assert SystemProcesses().is_gone(name)


def test_who_may_not_be_looked_at_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    name = name_of(os.getppid())
    monkeypatch.setattr(processes, "read", lambda _pid: None)
    monkeypatch.setattr(os, "kill", refuse)
    assert not SystemProcesses().is_gone(name)
