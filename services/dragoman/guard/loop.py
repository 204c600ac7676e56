"""The guard itself: one command, one loop, no threads.

Three ways of being owned:

*a run* (``--control-fd``): the owner holds the other end of a connected socket. When that closes,
    the owner is dead, and everything beneath is killed at once.
*an adapter* (``--control``): routers connect to a socket. While none is connected the orphan timer
    runs; when it ends the adapter is asked to stop and, after its grace, killed.
*a container's first process* (neither): signals are forwarded to the command.

In all three: when the command ends, what it left behind is sent TERM and, after the linger, KILL.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import time

from dragoman.guard.control import LISTED, Channel, CommandError, decode_command, encode
from dragoman.guard.lifecycle import Lifecycle, Phase
from dragoman.guard.options import Options, UsageError, parse
from dragoman.guard.process import Process
from dragoman.guard.processes import original_environment, read
from dragoman.guard.signals import FORWARDED, IGNORED, Signals
from dragoman.guard.spawn import SpawnError, detach, spawn
from dragoman.guard.tree import MARKER, Tree, become_subreaper

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.guard.house import House

EXIT_USAGE = 2
EXIT_LOCKED = 73
EXIT_NOT_STARTED = 126
EXIT_NOT_FOUND = 127

WATCH_S = (0.1, 2.0)
"""Seconds between snapshots where there is no subreaper: at first, and at most after doubling."""


def main(words: Sequence[str]) -> int:
    """Guard the command given on the command line; return the exit code that mirrors its own."""
    try:
        options = parse(words)
    except UsageError as error:
        _complain(str(error))
        return EXIT_USAGE
    guard = Guard(options)
    try:
        if not guard.start():
            return guard.refuse()
        return guard.run()
    finally:
        # After an error of ours, too, nothing may stay behind.
        guard.close()


class Guard:
    """One command and everything beneath it, from spawn to proof of death."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._signals = Signals(FORWARDED if options.is_forwarding else (signal.SIGTERM,))
        if not options.is_forwarding:
            self._signals.ignore(IGNORED)
        self._lifecycle = Lifecycle(linger=options.linger, grace=options.grace)
        marker = original_environment().get(MARKER.encode(), b"")
        self._tree = Tree(
            is_subreaper=options.subreaper and become_subreaper(),
            marker=MARKER.encode() + b"=" + marker if marker else b"",
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals.fd, selectors.EVENT_READ, self._signals.clear)
        self._channels: list[Channel] = []
        self._house: House | None = None
        self._said: list[dict[str, object]] = []
        self._failure = EXIT_NOT_STARTED
        self._has_reaped_all = True
        self._is_over = False
        self._watch_every, self._watch_at = WATCH_S[0], 0.0

    def start(self) -> bool:
        """Start the command; False if it did not start, which the owner has then been told."""
        if self._options.control_fd is not None:
            self._adopt(Channel(self._options.control_fd))
        if self._options.control is not None and not self._move_in():
            return False
        house = self._house
        try:
            pid = spawn(self._options.argv, output=house.child_output if house else None)
        except SpawnError as error:
            self._not_started(error)
            return False
        leader = read(pid) or Process(pid, os.getpid(), pid, pid, "R", 0)
        self._tree.leader = leader
        if house is not None:
            os.close(house.child_output)
            house.publish(leader)
        self._say_first({"event": "spawned", "pid": pid, "pgid": pid, "started": leader.started})
        if not self._options.is_forwarding:
            detach()
        return True

    def refuse(self) -> int:
        """Return the exit code of a guard whose command never ran."""
        return self._failure

    def run(self) -> int:
        """Serve until the command and all it started are gone; return the mirrored exit code."""
        while not self._is_ending():
            for key, _ in self._selector.select(self._timeout()):
                key.data()
        survivors = [] if self._tree.is_gone() else self._tree.kill(self._pause)
        self._note_exit(time.monotonic())
        self._conclude(survivors)
        self._is_over = True
        return self._exit_code()

    def close(self) -> None:
        """Kill what is there if `run` has not come to its end; take the files away."""
        if self._tree.leader is not None and not self._is_over:
            self._tree.kill(self._pause)
        if self._house is not None:
            self._house.close()
            self._house = None

    # -- the turn of the loop

    def _is_ending(self) -> bool:
        """Take in what has happened; True once nothing is left to wait for."""
        self._has_reaped_all = self._tree.reap()
        now = time.monotonic()
        for signum in self._signals.taken():
            self._take_signal(signum, now)
        if self._lifecycle.tick(now):
            self._tree.signal(signal.SIGTERM, "leader")
        if self._lifecycle.phase is Phase.KILLING:
            return True
        self._note_exit(now)
        return self._lifecycle.phase is Phase.LINGERING and self._tree.is_gone()

    def _timeout(self) -> float | None:
        """Return how long nothing may happen before something is to be done anyway."""
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
        if self._lifecycle.phase is Phase.LINGERING:
            return WATCH_S[0]  # nobody tells us that strangers' children have ended
        if now >= self._watch_at:
            self._tree.watch()
            self._watch_at = now + self._watch_every
            self._watch_every = min(2 * self._watch_every, WATCH_S[1])
        return self._watch_at - now

    def _take_signal(self, signum: int, now: float) -> None:
        if signum in (signal.SIGTERM, signal.SIGINT):
            self._lifecycle.stop(now)
        self._tree.signal(signum, "leader")

    def _note_exit(self, now: float) -> None:
        status = self._tree.leader_status
        if status is None or any(said["event"] == "exited" for said in self._said):
            return
        code = os.waitstatus_to_exitcode(status)
        by_code, by_signal = (code, None) if code >= 0 else (None, -code)
        self._say({"event": "exited", "code": by_code, "signal": by_signal})
        if self._lifecycle.leader_exited(now) and not self._tree.is_gone():
            self._tree.terminate()

    def _pause(self, seconds: float) -> None:
        """Wait for a child's end, but no longer than that; nobody else is served."""
        select.select([self._signals.fd], [], [], seconds)
        self._signals.clear()

    # -- the owner

    def _adopt(self, channel: Channel) -> None:
        for message in self._said:
            channel.send(message)
        self._channels.append(channel)
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._listen_to(channel))

    def _listen_to(self, channel: Channel) -> None:
        try:
            lines = channel.receive()
        except EOFError:
            self._drop(channel)
            return
        for line in lines:
            try:
                command = decode_command(line)
            except CommandError as error:
                channel.send({"event": "refused", "message": str(error)})
                continue
            if command.signum is None:
                self._lifecycle.kill()
            else:
                self._tree.signal(command.signum, command.to)

    def _drop(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        self._channels.remove(channel)
        channel.close()
        if self._house is None:
            self._lifecycle.kill()
        elif not self._channels:
            self._lifecycle.abandon(time.monotonic(), self._options.orphan_after)

    def _say(self, message: dict[str, object]) -> None:
        self._said.append(message)
        for channel in self._channels:
            channel.send(message)

    def _say_first(self, message: dict[str, object]) -> None:
        """Say how the start went; without a channel yet, on stdout to whoever launched us."""
        self._say(message)
        if self._house is not None:
            _write(1, encode(message))

    # -- the adapter's house

    def _move_in(self) -> bool:
        from dragoman.guard.house import House  # noqa: PLC0415 - an agent run saves its imports
        from dragoman.guard.instance import LockedError  # noqa: PLC0415 - as above

        try:
            house = House(self._options)
        except LockedError as error:
            self._failure = EXIT_LOCKED
            _complain(str(error))
            return False
        except OSError as error:
            _complain(f"cannot use {error.filename or self._options.control}: {error.strerror}")
            return False
        self._house = house
        self._selector.register(house.listener, selectors.EVENT_READ, self._accept)
        self._selector.register(house.output, selectors.EVENT_READ, self._copy_output)
        self._lifecycle.abandon(time.monotonic(), self._options.orphan_after)
        return True

    def _accept(self) -> None:
        assert self._house is not None
        channel = self._house.accept(len(self._channels))
        if channel is not None:
            self._lifecycle.claim()
            self._adopt(channel)

    def _copy_output(self) -> None:
        assert self._house is not None
        if not self._house.copy_output():
            self._selector.unregister(self._house.output)

    # -- the end

    def _not_started(self, error: SpawnError) -> None:
        self._failure = EXIT_NOT_FOUND if error.errno_name == "ENOENT" else EXIT_NOT_STARTED
        self._say_first({"event": "spawn_failed", "errno": error.errno_name, "message": error.message})
        self._say({"event": "gone", "confirmed": True, "killed": [], "survivors": []})
        if self._options.control_fd is None:
            _complain(f"cannot start: {error.message}")
        if self._house is not None:
            self._house.remark(f"cannot start: {error.message}")

    def _conclude(self, survivors: list[Process]) -> None:
        ended = list(self._tree.ended)
        left = [process.pid for process in survivors]
        confirmed = self._tree.is_gone()
        self._remove()
        if self._house is not None:
            self._house.drain_output()
            self._house.remark(
                f"command {self._tree.leader.pid if self._tree.leader else 0} ended with"
                f" {self._exit_code()}; ended {ended} after it; left {left}"
            )
        self._say(
            {
                "event": "gone",
                "confirmed": confirmed,
                "killed": ended[:LISTED],
                "survivors": left[:LISTED],
            }
        )

    def _remove(self) -> None:
        """Remove the command's private directory: its owner may be dead, and there may be secrets in it."""
        if self._options.remove is not None:
            import shutil  # noqa: PLC0415 - takes longer to import than a guard to start

            shutil.rmtree(self._options.remove, ignore_errors=True)

    def _exit_code(self) -> int:
        status = self._tree.leader_status
        code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


def _complain(text: str) -> None:
    _write(2, f"dragoman-guard: {text}\n".encode("utf-8", "backslashreplace"))


def _write(fd: int, data: bytes) -> None:
    try:
        os.write(fd, data)
    except OSError:
        return  # nobody reads it; the exit code still tells
