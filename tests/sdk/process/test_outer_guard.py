"""The guard above an adapter is asked for what a run's lost guard left, and only by its own child."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dragoman.guard.control import CONTROL_VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is proven")

ASK = "from dragoman.sdk._process.outer_guard import sweep_orphans; print(sweep_orphans())"
ANSWER = b'{"event":"log"}\n{"event":"swept","confirmed":true,"killed":[7,8],"survivors":[9]}\n'


def asked(folder: Path, *command: str) -> tuple[str, bytes]:
    """Return what a process gets from a guard, which is this process, and what it sent."""
    path, received = folder / "guard.sock", bytearray()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            if line := lines.readline():
                received.extend(line)
                connection.sendall(ANSWER)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        guard = threading.Thread(target=serve, daemon=True)
        guard.start()
        env = {CONTROL_VARIABLE: str(path)}
        output = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        guard.join()
    return output.strip(), bytes(received)


def test_the_guard_above_says_what_it_found(tmp_path: Path) -> None:
    assert asked(tmp_path, sys.executable, "-c", ASK) == ("(True, (7, 8), (9,))", b'{"sweep":true}\n')


def test_the_guard_of_an_adapter_above_is_not_asked(tmp_path: Path) -> None:
    between = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], check=True)"
    assert asked(tmp_path, sys.executable, "-c", between) == ("(False, (), ())", b"")
