"""Looking for programs and asking them short questions. Nothing here raises for what it finds, or takes long."""

import asyncio
import contextlib
import os
import re
import signal
import stat
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman.sdk._encoding.config import as_string
from dragoman.sdk._encoding.framing import Framing, make_splitter
from dragoman.sdk._encoding.json_text import read_json_object
from dragoman.sdk._encoding.lines import Line, without_terminal_orders
from msgspec import Struct

_VERSION: Final = re.compile(r"(?<![\w.])v?(\d+\.\d+(?:\.\d+)*(?:[-+][0-9A-Za-z.+-]*[0-9A-Za-z])?)(?![\w])")
_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")  # packages of one platform may append its name
_NODE_LINE: Final = b"#!/usr/bin/env node"
_ABOUT_OTHERS: Final = re.compile("warn|deprecat", re.IGNORECASE)
_END_BOUND_S: Final = 2.0  # that a program may take to end by itself once it has answered
_MOST_LINE_BYTES: Final = 1024 * 1024
_MOST_LINES: Final = 1024  # that wait to be read; with so many, a program's output is not read on
_PIPES: Final = frozenset({1, 2})
_PIPE_BOUND_S: Final = 0.5  # that an ended program's pipes may stay open: what it left behind may hold them
_KILL_BOUND_S: Final = 2.0  # that a killed program may take to be gone


class Probe(Struct, frozen=True):
    """The answer of a program to a short question."""

    exit_code: int | None
    """None if it could not be started, was ended by a signal, or was killed."""

    stdout: str
    """Its output, also if it was killed afterwards."""

    stderr: str
    timed_out: bool = False
    error: str = ""
    """Why there is no exit code: "Permission denied", "ended by SIGSEGV". Empty if it was killed for its time."""


def find_executable(names: Sequence[str], path_env: str, command: str = "") -> Path | None:
    """Return the absolute path of a program; None if there is none.

    Args:
        names: Names to look for, best first.
        path_env: The value of PATH. Parts of it that are not absolute are passed over: they would lead
            to whatever lies in the working directory.
        command: The name or absolute path that a user set; nothing else is taken in its place. Empty: none is set.
    """
    searched = [directory for directory in map(Path, path_env.split(os.pathsep)) if directory.is_absolute()]
    if command:
        return next(_named(command, searched), None)
    return next((path for name in names for path in _candidates(name, searched)), None)


def packaged_version(executable: Path) -> str:
    """Return the version of the npm package that a program is from; empty if there is none, or it is not a release.

    Args:
        executable: the program, or a link to it.
    """
    for folder in executable.resolve().parents:
        scope = folder.parent if folder.parent.name.startswith("@") else folder
        if scope.parent.name == "node_modules":
            version = as_string(read_json_object(folder / "package.json").get("version"), "")
            return version if _RELEASE.fullmatch(version) else ""
    return ""


def script_version(executable: Path, package: str, path_env: str) -> str:
    """Return the version of an npm package if a program is one of its commands that Node.js is there to run.

    Anything else is empty: that program has to be asked. Whether Node.js is too old for it is not looked at.

    Args:
        executable: the program, or a link to it.
        package: the package's name, e.g. ``@google/gemini-cli``.
        path_env: the value of PATH that the program gets.
    """
    script = executable.resolve()
    try:
        with script.open("rb") as file:
            runs_on_node = file.readline(len(_NODE_LINE) + 1).rstrip() == _NODE_LINE
    except OSError:
        return ""
    if not runs_on_node or find_executable(["node"], path_env) is None:
        return ""
    for folder in script.parents:
        about = read_json_object(folder / "package.json")
        if about.get("name") == package:
            commands = about.get("bin")
            files = commands.values() if isinstance(commands, dict) else [commands]
            is_command = any(isinstance(file, str) and (folder / file).resolve() == script for file in files)
            version = as_string(about.get("version"), "")
            return version if is_command and _RELEASE.fullmatch(version) else ""
    return ""


def parse_version(text: str) -> str | None:
    """Return the first version number in ``text``, e.g. ``2.1.330``; None if there is none.

    Warnings come last: they are about the versions of other things.
    """
    lines = without_terminal_orders(text).splitlines()
    for line in sorted(lines, key=lambda line: _ABOUT_OTHERS.search(line) is not None):
        match = _VERSION.search(line)
        if match:
            return match[1]
    return None


def version_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which compare as versions do."""
    digits = version.split("-", 1)[0].split("+", 1)[0].split(".")
    return tuple(int(part) for part in digits if part.isdecimal())


async def converse(
    argv: Sequence[str],
    env: Mapping[str, str],
    lines: bytes,
    is_answer: Callable[[str], bool],
    timeout_s: float,
    framing: Framing = "lines",
) -> str:
    """Start a program, give it lines, and return the first line of its output that is the answer; see ``dialogue``.

    Args:
        argv: the program, absolute, and its arguments.
        env: its whole environment.
        lines: what it gets at its standard input, which stays open until it has answered.
        is_answer: whether a line, without its newline, is the answer.
        timeout_s: seconds until it is killed.
        framing: how its output is cut into lines.

    Returns:
        The line. Empty: it ended or its time was over before it answered, or it could not be started.
    """
    async with contextlib.aclosing(dialogue(argv, env, lines, timeout_s, framing=framing)) as heard:
        async for line in heard:
            if is_answer(line):
                return line
    return ""


async def dialogue(
    argv: Sequence[str],
    env: Mapping[str, str],
    lines: bytes,
    timeout_s: float,
    *,
    with_errors: bool = False,
    framing: Framing = "lines",
) -> AsyncGenerator[str, None]:
    """Start a program, give it lines, and yield those of its output, without their newlines.

    It runs in the root directory, in a session of its own. Once the program has ended or its time is over, or when
    this is cancelled, its process group is killed. Closed, this gives it its end of input first, and a moment to end
    by itself.

    Args:
        argv: the program, absolute, and its arguments.
        env: its whole environment.
        lines: what it gets at its standard input, which stays open.
        timeout_s: seconds until it is killed.
        with_errors: whether lines of its standard error are among them.
        framing: how its output is cut into lines.
    """
    loop = asyncio.get_running_loop()
    watch, end_at = _Lines(loop, {1, 2} if with_errors else {1}, framing), loop.time() + timeout_s
    try:
        transport = await _started(watch, argv, env)
    except (OSError, ValueError):
        return
    watch.transport, pipe = transport, transport.get_pipe_transport(0)
    try:
        if isinstance(pipe, asyncio.WriteTransport):
            pipe.write(lines)
        with contextlib.suppress(TimeoutError):
            while (line := await asyncio.wait_for(watch.next_line(), end_at - loop.time())) is not None:
                yield line
    except GeneratorExit:
        watch.drop_lines()
        if isinstance(pipe, asyncio.WriteTransport):
            pipe.close()
        await asyncio.wait({watch.exited}, timeout=_END_BOUND_S)
        raise
    finally:
        _kill_group(transport.get_pid())
        await asyncio.wait({watch.exited}, timeout=_KILL_BOUND_S)
        transport.close()


async def probe(
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float,
    max_output: int = 64 * 1024,
) -> Probe:
    """Start a program, give it no input, and return its output.

    It runs in the root directory, where it finds no project to look at.
    It runs in a session of its own. At its time, and afterwards in any case, its process group is
    killed: neither one that ignores SIGTERM nor one that leaves children behind costs more than
    ``timeout_s``. Cancelled, it kills too.

    Args:
        argv: The program, absolute or looked up in the PATH of ``env``, and its arguments.
        env: Its whole environment.
        timeout_s: Seconds until it is killed.
        max_output: Bytes of each stream that are kept, from its beginning; the rest is read and dropped.
    """
    watch = _Watch(asyncio.get_running_loop(), max_output)
    try:
        transport = await _started(watch, argv, env, stdin=asyncio.subprocess.DEVNULL)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Probe(None, "", "", error=reason or "it cannot be started")
    try:
        await asyncio.wait({watch.exited}, timeout=timeout_s)
        timed_out = not watch.exited.done()
        if not timed_out:
            await asyncio.wait({watch.closed}, timeout=_PIPE_BOUND_S)
    finally:
        _kill_group(transport.get_pid())
        await asyncio.wait({watch.exited}, timeout=_KILL_BOUND_S)
        transport.close()
    return watch.answer(transport.get_returncode(), timed_out=timed_out)


class _Watch(asyncio.SubprocessProtocol):
    """Collects what a process says, and notes its end and that of its pipes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_output: int) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._most = max_output
        self._open = set(_PIPES)
        self._output = {pipe: bytearray() for pipe in _PIPES}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        kept = self._output[fd]
        kept += data[: max(0, self._most - len(kept))]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc  # however a pipe ends, nothing more comes
        self._open.discard(fd)
        if not self._open and not self.closed.done():
            self.closed.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def answer(self, returncode: int | None, *, timed_out: bool) -> Probe:
        stdout, stderr = (self._output[pipe].decode("utf-8", "replace") for pipe in sorted(_PIPES))
        if timed_out:
            return Probe(None, stdout, stderr, timed_out=True)
        if returncode is None or returncode < 0:
            return Probe(None, stdout, stderr, error=f"ended by {_signal_name(returncode)}")
        return Probe(returncode, stdout, stderr)


class _Lines(_Watch):
    """Queues the lines of a program; it waits while many do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pipes: Collection[int], framing: Framing) -> None:
        super().__init__(loop, 0)
        self._loop = loop
        self._splitters = {pipe: make_splitter(framing, _MOST_LINE_BYTES) for pipe in pipes}
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._paused: set[int] = set()
        self.transport: asyncio.SubprocessTransport | None = None
        """Of the process; set once it is known. Until then its output is read in any case."""
        self._end: asyncio.TimerHandle | None = None

    async def next_line(self) -> str | None:
        """Return the next line; None once there are no more."""
        line = await self._lines.get()
        if self._paused and self._lines.empty():
            self._resume()
        return line

    def drop_lines(self) -> None:
        """Queue no more lines: the program can print what it wants, and so come to its end."""
        self._splitters = {}
        self._resume()

    def _resume(self) -> None:
        while self._paused:
            self._pipe(self._paused.pop()).resume_reading()
        self._end_soon()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd not in self._splitters:
            return
        self._heard(self._splitters[fd].feed(data))
        if self.transport is not None and self._lines.qsize() >= _MOST_LINES:
            self._pipe(fd).pause_reading()
            self._paused.add(fd)
            self._end_soon()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        self._paused.discard(fd)
        if fd in self._splitters:
            self._heard(self._splitters[fd].finish())  # which may lack its newline
            if not self._open & self._splitters.keys():
                self._lines.put_nowait(None)

    def process_exited(self) -> None:
        super().process_exited()
        self._end_soon()

    def _end_soon(self) -> None:
        """Give an ended program's pipes their time, from now on; it does not pass while they are not read."""
        if self._end is not None:
            self._end.cancel()
        if self.exited.done() and not self._paused:
            self._end = self._loop.call_later(_PIPE_BOUND_S, self._abandon)

    def _abandon(self) -> None:
        """End them, whatever still holds the pipes."""
        for splitter in self._splitters.values():
            self._heard(splitter.finish())
        self._lines.put_nowait(None)

    def _pipe(self, fd: int) -> asyncio.ReadTransport:
        assert self.transport is not None
        pipe = self.transport.get_pipe_transport(fd)
        assert isinstance(pipe, asyncio.ReadTransport)
        return pipe

    def _heard(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._lines.put_nowait(line.data.decode("utf-8", "replace"))


def _signal_name(returncode: int | None) -> str:
    try:
        return signal.Signals(-(returncode or 0)).name
    except ValueError:  # a real-time signal, or an unknown one
        return "an unknown signal"


async def _started(
    watch: _Watch, argv: Sequence[str], env: Mapping[str, str], stdin: int = asyncio.subprocess.PIPE
) -> asyncio.SubprocessTransport:
    """Start a program in the root directory and in a session of its own; cancelled, have it killed once it runs."""
    loop = asyncio.get_running_loop()
    starting = loop.create_task(
        loop.subprocess_exec(lambda: watch, *argv, stdin=stdin, env=dict(env), cwd="/", start_new_session=True)
    )
    try:
        # Cancelled itself, it would kill the program alone, and wait for ever if its pipes were not connected yet.
        transport, _ = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_kill_started)
        raise
    return transport


def _kill_started(starting: "asyncio.Future[tuple[asyncio.SubprocessTransport, _Watch]]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        transport, _ = starting.result()
        _kill_group(transport.get_pid())
        transport.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _candidates(name: str, directories: Sequence[Path]) -> Iterator[Path]:
    if name and "/" not in name:
        yield from (directory / name for directory in directories if _is_executable(directory / name))


def _named(name: str, directories: Sequence[Path]) -> Iterator[Path]:
    path = Path(name)
    if path.is_absolute() and _is_executable(path):
        yield path
    yield from _candidates(name, directories)


def _is_executable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode) and os.access(path, os.X_OK)
    except (OSError, ValueError):  # not there, not allowed to look, or no path at all
        return False
