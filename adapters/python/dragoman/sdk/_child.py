"""One child process under its guard, in the event loop.

The guard (`dragoman.guard`) is the child's parent. It tells by a socket what happens to the child,
and proves at the end that nothing beneath it is left. This module holds the other end of that
socket and the child's three pipes, and turns all of it into callbacks.

Everything here is synchronous but `Child.start` and `Child.wait`, and these only wait: there is no
await at which a cancellation could catch a half-started or half-ended child.

If this process dies, the socket closes and the guard kills everything. If the guard dies, the
socket closes here, and `dragoman.sdk._processes` finds and kills what can be found.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from dragoman.guard.options import DEFAULT_LINGER_S
from dragoman.guard.tree import KILL_BOUND_S, MARKER
from dragoman.sdk._guard_link import GuardLink, LaunchError
from dragoman.sdk._pipes import InputPipe, OutputPipe, Pipes
from dragoman.sdk._processes import kill_remaining

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping

Stream = Literal["stdout", "stderr"]
Target = Literal["leader", "group", "tree"]

PIPE_BOUND_S = 1.0
"""Seconds that pipes may stay open after all known writers are gone: somebody outside holds one."""

STUCK_AFTER_S = KILL_BOUND_S + 3.0
"""Seconds after a kill order by which a guard has ended, or is killed itself."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
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
        """Take output; never empty, cut anywhere."""

    def eof(self, stream: Stream) -> None:
        """Note that a stream has no more output."""

    def exited(self, code: int | None, signal: int | None) -> None:
        """Note how the command ended; both are None if its guard died and nobody knows."""


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child and everything beneath it ended.

    Attributes:
        code: Exit code; None if it was killed by a signal, never ran, or nobody knows.
        signal: Number of the signal that killed it, else None.
        spawn_error: Name of the error if it never ran, else None.
        tree_confirmed_dead: Nothing it started is left. Proof on Linux; where there is no
            subreaper, or the guard was killed, what scans of the table of processes show.
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

    def __init__(self, spec: ChildSpec, handler: ChildHandler) -> None:
        self._spec = spec
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._end: asyncio.Future[ChildEnd] = self._loop.create_future()
        self._link = GuardLink(self._loop, self._take, self._guard_ended)
        self._leader: tuple[int, int] | None = None
        self._has_exited = False
        self._code: int | None = None
        self._signal: int | None = None
        self._spawn_error: str | None = None
        self._gone: tuple[bool, tuple[int, ...], tuple[int, ...]] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._is_ending = False
        self._stdin: InputPipe | None = None
        self._outputs: tuple[OutputPipe, ...] = ()

    @classmethod
    async def start(cls, spec: ChildSpec, handler: ChildHandler) -> Self:
        """Start a command under a guard; return once it runs or is known not to.

        Cancelled, it leaves nothing running: the kill goes on without the caller.
        """
        child = cls(spec, handler)
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

    def kill(self) -> None:
        """Kill everything beneath, now. Harmless when it has ended."""
        self._link.order({"kill": True})
        self._link.wake()  # a child may have stopped its guard
        if not self._timers and not self._end.done():
            self._timers.append(self._loop.call_later(STUCK_AFTER_S, self._link.kill))

    async def wait(self) -> ChildEnd:
        """Wait until everything beneath is gone and both output streams are read to their end.

        Cancelled, it kills; the kill goes on without the caller, and `wait` may be called again.
        """
        try:
            return await asyncio.shield(self._end)
        except asyncio.CancelledError:
            self.kill()
            raise

    # -- start

    def _launch(self) -> None:
        try:
            pipes = Pipes()
        except OSError as error:
            self._fail_early(errno.errorcode.get(error.errno or 0, "EIO"), error.strerror or str(error))
            return
        stdin, stdout, stderr = pipes.ours
        self._stdin = InputPipe(self._loop, stdin)
        self._outputs = (self._output("stdout", stdout), self._output("stderr", stderr))
        spec = self._spec
        try:
            self._link.launch(
                spec.argv,
                cwd=spec.cwd,
                env=spec.env,
                stdio=pipes.theirs,
                linger_s=spec.linger_s,
                private_dir=spec.private_dir,
            )
        except LaunchError as error:
            self._fail_early(error.errno_name, str(error))
        finally:
            pipes.close_theirs()

    def _fail_early(self, errno_name: str, message: str) -> None:
        """End without a guard; the pipes, if there are any, are read to their end first."""
        self._gone = True, (), ()
        self._take_failure(errno_name, message)
        if not self._outputs:
            self._tell(self._handler.eof, "stdout")
            self._tell(self._handler.eof, "stderr")
        self._await_pipes()

    def _output(self, stream: Stream, fd: int) -> OutputPipe:
        def on_data(data: bytes) -> None:
            self._tell(self._handler.data, stream, data)

        def on_eof() -> None:
            self._tell(self._handler.eof, stream)
            self._finish_if_over()

        return OutputPipe(self._loop, fd, on_data, on_eof)

    def _begin(self) -> None:
        """Let the pipes flow; output waits until then, so that `spawned` is always first."""
        if not self._begun.done():
            self._begun.set_result(None)
            for output in self._outputs:
                output.start()

    # -- the guard

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "spawned":
                self._leader = event["pid"], event["started"]
                self._tell(self._handler.spawned, event["pid"], event["pgid"])
                self._begin()
            case "spawn_failed":
                self._take_failure(event["errno"], event["message"])
            case "exited":
                self._take_exit(event["code"], event["signal"])
            case "gone":
                killed, survivors = tuple(event["killed"]), tuple(event["survivors"])
                self._gone = event["confirmed"], killed, survivors
            case _:
                return  # of a newer guard, or the refusal of an order: nothing depends on it

    def _take_failure(self, errno_name: str, message: str) -> None:
        self._spawn_error = errno_name
        self._tell(self._handler.spawn_failed, errno_name, message)
        self._begin()

    def _take_exit(self, code: int | None, signum: int | None) -> None:
        if self._has_exited or self._spawn_error is not None:
            return
        self._has_exited, self._code, self._signal = True, code, signum
        self._tell(self._handler.exited, code, signum)

    def _guard_ended(self) -> None:
        if self._gone is not None:
            self._await_pipes()
            return
        # It was killed, and the tree has lost its keeper.
        if not self._begun.done():
            self._take_failure("EIO", "the guard ended before it told of the command's start")
        marker = self._spec.env.get(MARKER, "")
        sweep = self._loop.run_in_executor(None, kill_remaining, marker, self._leader)
        sweep.add_done_callback(self._swept)

    def _swept(self, sweep: asyncio.Future[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        killed, survivors = sweep.result()
        self._gone = not survivors, killed, survivors
        self._take_exit(None, None)
        self._await_pipes()

    # -- the end

    def _await_pipes(self) -> None:
        """End once the pipes are read: at once, unless somebody outside holds one open."""
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

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a handler does, the pipes must flow on
            self._loop.call_exception_handler({"message": "a child's handler raised", "exception": error})
