"""The guard itself: one command, one loop, no threads.

Three ways of being owned:

*a run* (``--control-fd``): the owner holds the other end of a connected socket. When that closes,
    the owner is dead, and the guard kills the whole process tree at once. One that was started with
    ``--wait-fd`` gets its command through that socket, and may get another once nothing of the first is left.
*an adapter* (``--control`` and ``--control-fd``): its launcher holds the other end of a connected socket, and routers
    connect to another. While there is neither launcher nor router the orphan timer runs; when it fires, the guard
    terminates the adapter and, after the grace, kills it.
*a container's first process* (neither): the guard forwards signals to the command.

In all three: when the command ends, the guard sends TERM to the remaining processes and, after the
linger, KILL.
"""

from __future__ import annotations

import math
import os
import select
import time

from dragoman.guard.control import (
    CONTROL_VARIABLE,
    LISTED,
    Channel,
    CommandError,
    decode_command,
    encode,
    receive_command,
)
from dragoman.guard.lifecycle import Lifecycle, Phase
from dragoman.guard.options import ARGUMENTS_FD, WAIT_FD, Options, UsageError, parse
from dragoman.guard.plain_signal import signal
from dragoman.guard.process import Process
from dragoman.guard.processes import original_environment, read
from dragoman.guard.removal import remove_tree
from dragoman.guard.signals import FORWARDED, IGNORED, Signals
from dragoman.guard.spawn import SpawnError, detach, spawn
from dragoman.guard.tree import MARKER, Tree, become_subreaper

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dragoman.guard.adapter_control import AdapterControl

EXIT_USAGE = 2
EXIT_LOCKED = 73
EXIT_NOT_STARTED = 126
EXIT_NOT_FOUND = 127

WATCH_S = (0.1, 2.0)
"""Seconds between snapshots where there is no subreaper: at first, and at most after doubling."""


def main(arguments: Sequence[str]) -> int:
    """Guard the command given on the command line; return the exit code that mirrors its own.

    With `WAIT_FD` instead, guard the commands that the owner sends, one after the other.
    """
    name, _, fd = arguments[0].partition("=") if len(arguments) == 1 else ("", "", "")
    if name != WAIT_FD or not fd.isdecimal():
        return _guard(arguments)[0]
    become_subreaper()  # it needs an import that would take the run's time
    signals = _signals(is_forwarding=False)
    while (arguments_fd := receive_command(int(fd), signals)) is not None:
        code, waits = _guard([f"{ARGUMENTS_FD}={arguments_fd}"], signals)
        if not waits:
            return code
    return 0


def _guard(arguments: Sequence[str], signals: Signals | None = None) -> tuple[int, bool]:
    """Guard one command; return the exit code, and whether another command may follow."""
    try:
        options = parse(arguments)
    except UsageError as error:
        _print_error(str(error))
        return EXIT_USAGE, False
    guard = Guard(options, signals or _signals(is_forwarding=options.is_forwarding))
    try:
        if not guard.start():
            return guard.failure_code(), False
        return guard.run(), guard.waits
    finally:
        # No process may be left, not even after a bug in the guard.
        guard.close()


def _signals(*, is_forwarding: bool) -> Signals:
    signals = Signals(FORWARDED if is_forwarding else (signal.SIGTERM,))
    if not is_forwarding:
        signals.ignore(IGNORED)
    return signals


class Guard:
    """One command and its process tree, from spawn to proof of death."""

    def __init__(self, options: Options, signals: Signals) -> None:
        self._options = options
        self._signals = signals
        self._lifecycle = Lifecycle(linger=options.linger, grace=options.grace)
        self._tree = Tree(is_subreaper=options.subreaper and become_subreaper(), marker=_marker(options))
        self._poll = select.poll()
        self._on_ready: dict[int, Callable[[], object]] = {}
        self._watch(self._signals.fd, self._signals.clear)
        self._channels: list[Channel] = []
        self._adapter_control: AdapterControl | None = None
        self._events: list[dict[str, object]] = []
        self._failure = EXIT_NOT_STARTED
        self._has_reaped_all = True
        self._has_ended = False
        self._stays = options.stays
        self.waits = False
        """Whether another command may follow: its owner is there, and nothing of this one is left or was ended."""
        self._watch_every, self._watch_at = WATCH_S[0], 0.0

    def start(self) -> bool:
        """Start the command; False if it did not start, which is then reported to the owner."""
        if self._options.control_fd is not None:
            self._connect(Channel(self._options.control_fd))
        if self._options.control is not None and not self._open_control():
            return False
        house = self._adapter_control
        try:
            pid = spawn(
                self._options.argv,
                output=house.child_output if house else None,
                variables={CONTROL_VARIABLE: self._options.control} if self._options.control else {},
                cwd=self._options.cwd,
                environment=self._options.environment,
            )
        except SpawnError as error:
            self._report_failed_start(error)
            return False
        leader = read(pid) or Process(pid, os.getpid(), pid, pid, "R", 0)
        self._tree.leader = leader
        if house is not None:
            os.close(house.child_output)
            house.publish(leader)
        self._report_start({"event": "spawned", "pid": pid, "pgid": pid, "started": leader.started})
        if not self._options.is_forwarding:
            detach()
        return True

    def failure_code(self) -> int:
        """Return the exit code of a guard whose command never ran."""
        return self._failure

    def run(self) -> int:
        """Serve until the command and all it started are gone; return the mirrored exit code."""
        while not self._is_ending():
            timeout_s = self._timeout()
            for fd, _ in self._poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1e3)):
                if (on_ready := self._on_ready.get(fd)) is not None:  # else it left meanwhile
                    on_ready()
        survivors = [] if self._tree.is_gone() else self._tree.kill(self._pause)
        self._note_exit(time.monotonic())
        self._report_end(survivors)
        self._has_ended = True
        return self._exit_code()

    def close(self) -> None:
        """Kill the process tree unless `run` has ended; remove the files."""
        if self._tree.leader is not None and not self._has_ended:
            self._tree.kill(self._pause)
        if self._adapter_control is not None:
            self._adapter_control.close()
            self._adapter_control = None
        if self.waits:
            os.chdir("/")

    # -- one iteration of the loop

    def _is_ending(self) -> bool:
        """Process what has happened; True once there is nothing left to wait for."""
        self._has_reaped_all = self._tree.reap()
        now = time.monotonic()
        for signum in self._signals.received():
            self._handle_signal(signum, now)
        if self._lifecycle.tick(now):
            self._tree.signal(signal.SIGTERM, "leader")
        if self._lifecycle.phase == Phase.KILLING:
            return True
        self._note_exit(now)
        return self._lifecycle.phase == Phase.LINGERING and self._tree.is_gone()

    def _timeout(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        if not self._has_reaped_all:
            return 0
        timeout = self._lifecycle.timeout(time.monotonic())
        if self._tree.is_subreaper:
            return timeout
        watch = self._watch_in()
        return watch if timeout is None else min(watch, timeout)

    def _watch_in(self) -> float:
        """Take the snapshots that replace a subreaper; return the seconds until the next."""
        now = time.monotonic()
        if self._lifecycle.phase == Phase.LINGERING:
            return WATCH_S[0]  # processes that are not our children end without a signal
        if now >= self._watch_at:
            self._tree.watch()
            self._watch_at = now + self._watch_every
            self._watch_every = min(2 * self._watch_every, WATCH_S[1])
        return self._watch_at - now

    def _handle_signal(self, signum: int, now: float) -> None:
        if signum in (signal.SIGTERM, signal.SIGINT):
            self._stays = False
            self._lifecycle.stop(now)
        self._tree.signal(signum, "leader")

    def _note_exit(self, now: float) -> None:
        status = self._tree.leader_status
        if status is None or any(event["event"] == "exited" for event in self._events):
            return
        code = os.waitstatus_to_exitcode(status)
        by_code, by_signal = (code, None) if code >= 0 else (None, -code)
        self._publish({"event": "exited", "code": by_code, "signal": by_signal})
        if self._lifecycle.leader_exited(now) and not self._tree.is_gone():
            self._tree.terminate()

    def _watch(self, fd: int, on_ready: Callable[[], object]) -> None:
        """Have ``run`` call back when a descriptor can be read, or its other end is closed."""
        self._poll.register(fd, select.POLLIN)
        self._on_ready[fd] = on_ready

    def _leave(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._on_ready[fd]

    def _pause(self, seconds: float) -> None:
        """Wait for a child to end, at most so many seconds, without serving connections."""
        select.select([self._signals.fd], [], [], seconds)
        self._signals.clear()

    # -- the owner

    def _connect(self, channel: Channel) -> None:
        for message in self._events:
            channel.send(message)
        self._channels.append(channel)
        self._watch(channel.fileno(), lambda: self._read_commands(channel))

    def _read_commands(self, channel: Channel) -> None:
        try:
            lines = channel.receive()
        except EOFError:
            self._disconnect(channel)
            return
        for line in lines:
            try:
                command = decode_command(line)
            except CommandError as error:
                channel.send({"event": "refused", "message": str(error)})
                continue
            if command.kind == "kill":
                self._lifecycle.kill()
            elif command.kind == "sweep":
                self._sweep(channel)
            else:
                self._tree.signal(command.signum, command.to)

    def _sweep(self, channel: Channel) -> None:
        swept = self._tree.sweep_orphans(self._pause)
        channel.send(
            {
                "event": "swept",
                "confirmed": swept.confirmed,
                "killed": swept.killed[:LISTED],
                "survivors": swept.survivors[:LISTED],
            }
        )

    def _disconnect(self, channel: Channel) -> None:
        self._leave(channel.fileno())
        self._channels.remove(channel)
        channel.close()
        if self._adapter_control is None:
            self._lifecycle.kill()
        elif not self._channels:
            self._lifecycle.start_orphan_timer(time.monotonic(), self._options.orphan_after)

    def _publish(self, message: dict[str, object]) -> None:
        self._events.append(message)
        for channel in self._channels:
            channel.send(message)

    def _report_start(self, message: dict[str, object]) -> None:
        """Report how the start went; an adapter's guard also writes it to stdout, for its launcher."""
        self._publish(message)
        if self._adapter_control is not None:
            _write(1, encode(message))

    # -- the adapter's files

    def _open_control(self) -> bool:
        from dragoman.guard.adapter_control import AdapterControl  # noqa: PLC0415 - an agent run saves its imports
        from dragoman.guard.instance import LockedError  # noqa: PLC0415 - as above

        try:
            house = AdapterControl(self._options)
        except LockedError as error:
            self._failure = EXIT_LOCKED
            _print_error(str(error))
            return False
        except OSError as error:
            _print_error(f"cannot open {error.filename or self._options.control}: {error.strerror}")
            return False
        self._adapter_control = house
        self._watch(house.listener.fileno(), self._accept)
        self._watch(house.output, self._copy_output)
        return True

    def _accept(self) -> None:
        assert self._adapter_control is not None
        channel = self._adapter_control.accept(len(self._channels))
        if channel is not None:
            self._lifecycle.stop_orphan_timer()
            self._connect(channel)

    def _copy_output(self) -> None:
        assert self._adapter_control is not None
        if not self._adapter_control.copy_output():
            self._leave(self._adapter_control.output)

    # -- the end

    def _report_failed_start(self, error: SpawnError) -> None:
        self._failure = EXIT_NOT_FOUND if error.errno_name == "ENOENT" else EXIT_NOT_STARTED
        self._report_start({"event": "spawn_failed", "errno": error.errno_name, "message": error.message})
        self._publish({"event": "gone", "confirmed": True, "killed": [], "survivors": []})
        if self._options.control_fd is None or self._adapter_control is not None:
            _print_error(f"cannot start: {error.message}")
        if self._adapter_control is not None:
            self._adapter_control.log_note(f"cannot start: {error.message}")

    def _report_end(self, survivors: list[Process]) -> None:
        ended = list(self._tree.terminated)
        left = [process.pid for process in survivors]
        confirmed = self._tree.is_gone()
        self._remove()
        if self._adapter_control is not None:
            self._adapter_control.drain_output()
            self._adapter_control.log_note(
                f"command {self._tree.leader.pid if self._tree.leader else 0} exited with"
                f" {self._exit_code()}; killed {ended} after it; survivors {left}"
            )
        is_proven = confirmed and self._tree.is_subreaper and self._tree.leader_status is not None
        self.waits = self._stays and is_proven and not ended and bool(self._channels)
        self._publish(
            {
                "event": "gone",
                "confirmed": confirmed,
                "killed": ended[:LISTED],
                "survivors": left[:LISTED],
                **({"waits": True} if self.waits else {}),
            }
        )

    def _remove(self) -> None:
        """Remove the command's private directory: it may contain secrets, and its owner may be dead."""
        if self._options.remove is not None:
            remove_tree(self._options.remove)

    def _exit_code(self) -> int:
        status = self._tree.leader_status
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _marker(options: Options) -> bytes:
    """Return ``NAME=value`` of the command's marker; empty if it has none."""
    name = MARKER.encode() + b"="
    if options.environment is None:
        value = original_environment().get(MARKER.encode(), b"")
        return name + value if value else b""
    entries = (os.fsencode(entry) for entry in options.environment)
    return next((entry for entry in entries if entry.startswith(name) and entry != name), b"")


def _print_error(text: str) -> None:
    _write(2, f"dragoman-guard: {text}\n".encode("utf-8", "backslashreplace"))


def _write(fd: int, data: bytes) -> None:
    try:
        os.write(fd, data)
    except OSError:
        return  # the reader is gone; the exit code remains
