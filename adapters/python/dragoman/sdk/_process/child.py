"""One child process under its guard, in the event loop.

The guard (`dragoman.guard`) is the child's parent. It reports over a socket what happens to the child,
and proves at the end that nothing beneath it is left. This module holds the other end of that
socket and the child's three pipes, and turns all of it into callbacks.

Everything here is synchronous but `Child.start` and `Child.wait`, and these only wait: there is no
await at which a cancellation could catch a half-started or half-ended child.

If this process dies, the socket closes and the guard kills everything. If the guard dies, the socket closes here:
`_process.processes` kills what can be found, and `_process.outer_guard` what cannot, and proves it.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from dragoman.guard.options import DEFAULT_LINGER_S
from dragoman.guard.tree import KILL_BOUND_S, MARKER
from dragoman.sdk._process.guard_link import GuardLink, LaunchError
from dragoman.sdk._process.outer_guard import sweep_orphans
from dragoman.sdk._process.pipes import InputPipe, OutputPipe, close_all
from dragoman.sdk._process.prepared_guard import PreparedGuard, SpareGuards
from dragoman.sdk._process.processes import kill_remaining
from msgspec import Struct

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping

Stream = Literal["stdout", "stderr"]
Target = Literal["leader", "group", "tree"]

PIPE_BOUND_S = 1.0
"""Seconds that pipes may stay open after all known writers are gone: a process outside holds one."""

_OWN_FAULTS = frozenset((errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR))

STUCK_AFTER_S = KILL_BOUND_S + 3.0
"""Seconds after a kill order by which a guard has ended, or is killed itself."""


class ChildSpec(Struct, frozen=True):
    """What to run.

    Attributes:
        argv: The command; looked up in the `PATH` of `env` unless it contains a slash.
        cwd: Working directory.
        env: The whole environment; nothing is added to it. `DRAGOMAN_RUN_MARKER` in it lets the
            processes be found should the guard be killed.
        linger_s: Seconds between TERM and KILL for what the command leaves behind.
        private_dir: A directory that is removed once everything beneath is gone, even if this process is, too.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    linger_s: float = DEFAULT_LINGER_S
    private_dir: str | None = None


class ChildHandler(Protocol):
    """What happens to a child; called in the event loop, never concurrently.

    `spawned` or `spawn_failed` comes first, once. `data` then comes as the child writes, `eof` once
    per stream, and `exited` once, independent of the streams: a child may close them and live on,
    or exit while what it started still writes. An exception is reported to the event loop and
    changes nothing.
    """

    def spawned(self, pid: int, pgid: int) -> None:
        """Note that the command runs; it leads its own process group and session."""

    def spawn_failed(self, errno_name: str, message: str) -> None:
        """Note that the command was not started: for example ENOENT, EACCES, E2BIG, ENOEXEC."""

    def data(self, stream: Stream, data: bytes) -> None:
        """Read output; never empty, cut anywhere."""

    def eof(self, stream: Stream) -> None:
        """Note that a stream has no more output."""

    def exited(self, code: int | None, signal: int | None) -> None:
        """Note how the command ended; both are None if its guard died and it is unknown."""


class ChildEnd(Struct, frozen=True):
    """How a child and everything beneath it ended.

    Attributes:
        code: Exit code; None if it was killed by a signal, never ran, or it is unknown.
        signal: Number of the signal that killed it, else None.
        spawn_error: Name of the error if it never ran, else None.
        tree_confirmed_dead: It is confirmed that nothing it started is left. If the guard was killed, only a guard
            above this process, an adapter's, can confirm it. Where the system has no subreaper, what scans of the
            table of processes show is confirmation enough as long as the guard lived.
        killed: Pids that were ended on purpose, by TERM or KILL; at most some hundred are listed.
        survivors: Pids known to be left.
    """

    code: int | None
    signal: int | None
    spawn_error: str | None
    tree_confirmed_dead: bool
    killed: tuple[int, ...]
    survivors: tuple[int, ...]


class Child:
    """A running command. Made by `start`; ends in `wait`."""

    def __init__(self, spec: ChildSpec, handler: ChildHandler, guards: SpareGuards | None = None) -> None:
        self._spec = spec
        self._guards = guards
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._end: asyncio.Future[ChildEnd] = self._loop.create_future()
        give_back = PreparedGuard.discard if guards is None else guards.give_back
        self._link = GuardLink(self._loop, self._take, self._guard_ended, give_back)
        self._leader: tuple[int, int] | None = None
        self._has_exited = False
        self._code: int | None = None
        self._signal: int | None = None
        self._spawn_error: str | None = None
        self._gone: tuple[bool, tuple[int, ...], tuple[int, ...]] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._sweeps: deque[asyncio.Future[bool]] = deque()
        self._is_unguarded = False
        self._is_declined = False
        self._is_ending = False
        self._ends: tuple[int, int, int] | None = None
        """Our ends of the pipes until they flow."""
        self._stdin: InputPipe | None = None
        self._outputs: tuple[OutputPipe, ...] = ()

    @classmethod
    async def start(cls, spec: ChildSpec, handler: ChildHandler, guards: SpareGuards | None = None) -> Self:
        """Start a command under a guard; return once it runs or is known not to.

        Cancelled, it leaves nothing running: the kill continues without the caller.

        Args:
            spec: What to run.
            handler: What is called with each event.
            guards: Where a guard may be ready; if absent, one is started.
        """
        child = cls(spec, handler, guards)
        child._launch()
        try:
            await asyncio.shield(child._begun)
        except asyncio.CancelledError:
            child.kill()
            raise
        return child

    @property
    def pid(self) -> int | None:
        """Pid of the command; None if it never ran."""
        return None if self._leader is None else self._leader[0]

    @property
    def guard_pid(self) -> int | None:
        """Pid of the guard; None if it could not be started."""
        return self._link.pid

    def write_stdin(self, data: bytes) -> None:
        """Queue bytes for the child's stdin; never blocks. What it does not take is dropped."""
        if self._stdin is not None:
            self._stdin.write(data)

    def close_stdin(self) -> None:
        """Close the child's stdin once everything queued is written."""
        if self._stdin is not None:
            self._stdin.close()

    def signal(self, sig: signal.Signals, to: Target = "leader") -> None:
        """Signal the command, its process group or everything beneath; stopped ones are woken."""
        self._link.order({"signal": sig.name, "to": to})

    def pause_output(self) -> None:
        """Read no output until `resume_output`: the writer waits once the pipes are full."""
        for output in self._outputs:
            output.pause()

    def resume_output(self) -> None:
        """Read on after `pause_output`."""
        for output in self._outputs:
            output.resume()

    def kill(self) -> None:
        """Kill everything beneath, now. Harmless when it has ended."""
        self.resume_output()
        self._link.order({"kill": True})
        self._link.wake()  # a child may have stopped its guard
        if not self._timers and not self._end.done():
            self._timers.append(self._loop.call_later(STUCK_AFTER_S, self._link.kill))

    async def sweep(self) -> bool:
        """Kill what was orphaned beneath the command, which lives on; return whether that is confirmed dead."""
        if not self._is_unguarded:
            answer: asyncio.Future[bool] = self._loop.create_future()
            self._sweeps.append(answer)
            self._link.order({"sweep": True})
            try:
                async with asyncio.timeout(STUCK_AFTER_S):
                    return await answer
            except TimeoutError:  # the guard was stopped from outside
                return False
        return (await self.wait()).tree_confirmed_dead

    async def wait(self) -> ChildEnd:
        """Wait until everything beneath is gone and both output streams are read to their end.

        Cancelled, it kills; the kill continues without the caller, and `wait` may be called again.
        """
        try:
            return await asyncio.shield(self._end)
        except asyncio.CancelledError:
            self.kill()
            raise

    # -- start

    def _launch(self) -> None:
        spec = self._spec
        try:
            marker = spec.env.get(MARKER, "")
            guard = PreparedGuard(marker) if self._guards is None else self._guards.take(marker)
            self._ends = self._link.launch(
                guard,
                spec.argv,
                cwd=spec.cwd,
                env=spec.env,
                linger_s=spec.linger_s,
                private_dir=spec.private_dir,
            )
        except LaunchError as error:
            self._fail_early(error.errno_name, str(error))
        except OSError as error:
            name, reason = errno.errorcode.get(error.errno or 0, "EIO"), error.strerror or str(error)
            # A guard that cannot be found says nothing about the command.
            self._fail_early("EIO" if error.errno in _OWN_FAULTS else name, f"cannot start the guard: {reason}")

    def _fail_early(self, errno_name: str, message: str) -> None:
        """End without a guard, and so without pipes."""
        self._gone, self._is_unguarded = (True, (), ()), True
        self._take_failure(errno_name, message)
        self._notify(self._handler.eof, "stdout")
        self._notify(self._handler.eof, "stderr")
        self._await_pipes()

    def _output(self, stream: Stream, fd: int) -> OutputPipe:
        def on_data(data: bytes) -> None:
            self._notify(self._handler.data, stream, data)

        def on_eof() -> None:
            self._notify(self._handler.eof, stream)
            self._finish_if_over()

        return OutputPipe(self._loop, fd, on_data, on_eof)

    def _begin(self) -> None:
        """Let the pipes flow; output waits until then, so that `spawned` is always first."""
        if self._begun.done():
            return
        self._begun.set_result(None)
        if self._ends is None:
            return
        stdin, stdout, stderr = self._ends
        self._stdin = InputPipe(self._loop, stdin)
        self._outputs = (self._output("stdout", stdout), self._output("stderr", stderr))
        for output in self._outputs:
            output.start()

    # -- the guard

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "spawned":
                self._leader = event["pid"], event["started"]
                self._notify(self._handler.spawned, event["pid"], event["pgid"])
                self._begin()
            case "spawn_failed":
                self._take_failure(event["errno"], event["message"])
            case "exited":
                self._take_exit(event["code"], event["signal"])
            case "declined":
                self._is_declined = True
            case "swept":
                self._answer_sweep(confirmed=event["confirmed"])
            case "gone":
                killed, survivors = tuple(event["killed"]), tuple(event["survivors"])
                self._gone = event["confirmed"], killed, survivors
            case _:
                return  # of a newer guard, or the refusal of an order: nothing depends on it

    def _take_failure(self, errno_name: str, message: str) -> None:
        self._spawn_error = errno_name
        self._notify(self._handler.spawn_failed, errno_name, message)
        self._begin()

    def _take_exit(self, code: int | None, signum: int | None) -> None:
        if self._has_exited or self._spawn_error is not None:
            return
        self._has_exited, self._code, self._signal = True, code, signum
        self._notify(self._handler.exited, code, signum)

    def _answer_sweep(self, *, confirmed: bool) -> None:
        answer = self._sweeps.popleft()
        if not answer.done():  # the waiter was cancelled
            answer.set_result(confirmed)

    def _guard_ended(self) -> None:
        self._is_unguarded = True
        while self._sweeps:
            self._answer_sweep(confirmed=self._gone is not None and self._gone[0])
        if self._gone is not None:
            self._await_pipes()
            return
        if self._is_declined:
            self._start_again()
            return
        # It was killed, and the tree has lost its keeper.
        if not self._begun.done():
            self._take_failure("EIO", "the guard ended before it reported the command's start")
        marker = self._spec.env.get(MARKER, "")
        search = self._loop.run_in_executor(None, _end_unguarded, marker, self._leader)
        search.add_done_callback(self._searched)

    def _start_again(self) -> None:
        """Take another guard: the one before was asked to end while it waited, and has started nothing."""
        assert self._ends is not None
        close_all(self._ends)
        self._ends = None
        if self._timers:  # the kill was ordered
            self._fail_early("ECANCELED", "it was killed before the command was started")
            return
        self._is_unguarded = self._is_declined = False
        self._launch()

    def _searched(self, search: asyncio.Future[tuple[bool, tuple[int, ...], tuple[int, ...]]]) -> None:
        self._gone = search.result()
        self._take_exit(None, None)
        self._await_pipes()

    # -- the end

    def _await_pipes(self) -> None:
        """End once the pipes are read: at once, unless a process outside holds one open."""
        self._is_ending = True
        if self._stdin is not None:
            self._stdin.abandon()
        for timer in self._timers:
            timer.cancel()
        self._timers = [self._loop.call_later(PIPE_BOUND_S, output.abandon) for output in self._outputs]
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if not self._is_ending or any(output.is_open for output in self._outputs):
            return
        assert self._gone is not None
        for timer in self._timers:
            timer.cancel()
        confirmed, killed, survivors = self._gone
        self._end.set_result(
            ChildEnd(
                code=self._code,
                signal=self._signal,
                spawn_error=self._spawn_error,
                tree_confirmed_dead=confirmed,
                killed=killed,
                survivors=survivors,
            )
        )

    def _notify(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a handler does, the pipes must flow on
            self._loop.call_exception_handler({"message": "a child's handler raised", "exception": error})


def _end_unguarded(marker: str, leader: tuple[int, int] | None) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """End what a killed guard has left; return whether all of it is confirmed dead, the killed, the survivors."""
    killed, survivors = kill_remaining(marker, leader)
    confirmed, orphans, left = sweep_orphans()
    survivors = tuple(dict.fromkeys((*survivors, *left)))
    return confirmed and not survivors, tuple(dict.fromkeys((*killed, *orphans))), survivors
