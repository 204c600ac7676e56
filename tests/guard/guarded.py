"""Drivers for a guard as its owners see it: a socket, pipes, files."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

from dragoman.guard.launch import AdapterOptions, adapter_guard, guard_command, run_guard

from tests.hostile import DEADLINE_S

if TYPE_CHECKING:
    from pathlib import Path


class ControlConnection:
    """One connection to a guard."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(DEADLINE_S)
        self.connection = connection
        self._reader = connection.makefile("rb")

    def event(self) -> dict[str, Any]:
        """Return the next event; fails if the guard has no more to say."""
        line = self._reader.readline()
        assert line, "the guard has hung up"
        event = json.loads(line)
        assert isinstance(event, dict)
        return event

    def send(self, **command: object) -> None:
        self.connection.sendall(json.dumps(command).encode() + b"\n")

    def is_silent(self, seconds: float) -> bool:
        """Whether the guard says nothing for so long."""
        return not select.select([self.connection], [], [], seconds)[0]

    def close(self) -> None:
        self._reader.close()
        self.connection.close()


class Guarded:
    """A command under a guard that is owned through an inherited socket."""

    def __init__(
        self, argv: tuple[str, ...], env: dict[str, str], *, linger: float = 5.0, extra: tuple[str, ...] = ()
    ) -> None:
        ours, theirs = socket.socketpair()
        arguments = run_guard(argv, control_fd=theirs.fileno(), linger_s=linger)
        with theirs, guard_command([*extra, *arguments]) as (command, arguments_fd):
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno(), arguments_fd],
                start_new_session=True,
            )
        self.line = ControlConnection(ours)
        self.event = self.line.event
        self.send = self.line.send
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout

    def read_pid(self) -> int:
        """Return the pid that the child announces."""
        return int(self.stdout.readline())

    def gone(self) -> dict[str, Any]:
        """Return the last event, once the guard itself has ended too."""
        while (event := self.event())["event"] != "gone":
            pass
        self.process.wait(DEADLINE_S)
        return event

    def close(self) -> None:
        self.line.close()
        self.stdin.close()
        self.stdout.close()
        self.process.wait(DEADLINE_S)


class GuardedAdapter:
    """A command under a guard with a control socket, an instance file and a log.

    Args:
        argv: The command.
        env: Its environment.
        folder: Where the files are.
        is_claimed: Whether the launcher's socket stays open, so that the guard needs no router.
        options: Of the guard.
    """

    def __init__(
        self, argv: tuple[str, ...], env: dict[str, str], folder: Path, *, is_claimed: bool = False, **options: Any
    ) -> None:
        self.instance = folder / "one.json"
        self.control = folder / "one.sock"
        self.log = folder / "one.log"
        guard_options = AdapterOptions(
            instance=self.instance,
            instance_id="i-1",
            control=options.pop("control", self.control),
            log=self.log,
            listen="unix:/nowhere",
            **options,
        )
        self.claim, theirs = socket.socketpair()
        arguments = adapter_guard(argv, guard_options, control_fd=theirs.fileno())
        with theirs, guard_command(arguments) as (command, arguments_fd):
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno(), arguments_fd],
                start_new_session=True,
            )
        # Both end when the adapter runs, or cannot.
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout_text = self.process.stdout.read()
        self.stderr_text = self.process.stderr.read().decode()
        if not is_claimed:
            self.claim.close()
        self._lines: list[ControlConnection] = []

    def first(self) -> dict[str, Any]:
        """Return the event that the guard reported to its launcher."""
        event = json.loads(self.stdout_text)
        assert isinstance(event, dict)
        return event

    def connect(self) -> ControlConnection:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self.control))
        except OSError:
            connection.close()
            raise
        self._lines.append(ControlConnection(connection))
        return self._lines[-1]

    def await_log(self, text: str) -> None:
        """Wait until the log holds this text."""
        give_up_at = time.monotonic() + DEADLINE_S
        while text not in self.log.read_text():
            assert time.monotonic() < give_up_at, self.log.read_text()

    def await_integers(self, count: int) -> list[int]:
        """Wait until the log holds this many numbers between blanks, such as pids; return them."""
        give_up_at = time.monotonic() + DEADLINE_S
        while len(found := [int(word) for word in self.log.read_text().split() if word.isdigit()]) < count:
            assert time.monotonic() < give_up_at, self.log.read_text()
        return found

    def wait(self) -> int:
        """Return the guard's exit code, once it has ended."""
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        self.claim.close()
        for line in self._lines:
            line.close()
        self.process.send_signal(signal.SIGTERM)
        self.wait()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
