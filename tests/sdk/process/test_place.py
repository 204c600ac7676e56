"""Where a process ID means something."""

import socket
import sys
from pathlib import Path

import pytest
from dragoman.sdk._process.place import place_of_processes


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no PID namespaces")
def test_this_machine_and_namespace() -> None:
    own = Path("/proc/self/ns/pid").stat().st_ino
    assert place_of_processes() == {"host": socket.gethostname(), "pid_namespace": own}


def test_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "readlink", missing)
    assert place_of_processes() == {"host": socket.gethostname()}
