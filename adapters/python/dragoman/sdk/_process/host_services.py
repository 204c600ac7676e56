"""What is done for an agent outside its own process: files of its workspace read and written, commands run.

Files are those below the workspace's roots, wherever links and ``..`` lead; commands run under a guard of their own,
with the agent's variables, and end with the attempt.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman.sdk._process.child import Child, ChildEnd, ChildSpec, Stream

MOST_FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a file that is read or written for an agent."""
MOST_OUTPUT_BYTES: Final = 1024 * 1024
"""Bytes that are kept of what a command prints, however many were asked for."""
_MOST_COMMANDS: Final = 64


class HostCallError(Exception):
    """What was asked for is not done; the text says why."""


class AbsentError(HostCallError):
    """There is no such file or command."""


class Command:
    """A command that was run for the agent, and what it has printed."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = max(0, min(most_bytes, MOST_OUTPUT_BYTES))
        self._output = bytearray()
        self.truncated = False
        """Whether the beginning of the output is no longer kept."""
        self.child: Child | None = None
        self.spawn_error = ""
        self.exit: tuple[int | None, int | None] | None = None
        """Exit code and signal, once it has ended."""
        self.ended = asyncio.Event()

    @property
    def output(self) -> str:
        """The end of what it has printed, from a character's beginning."""
        data = bytes(self._output)
        if self.truncated:
            while data and data[0] & 0xC0 == 0x80:
                data = data[1:]
        return data.decode("utf-8", "replace")

    # What the child reports (ChildHandler).

    def spawned(self, pid: int, pgid: int) -> None:
        """It runs."""

    def spawn_failed(self, errno_name: str, message: str) -> None:
        """It could not be started."""
        del message
        self.spawn_error = errno_name
        self.ended.set()

    def data(self, stream: Stream, data: bytes) -> None:
        """Keep the end of what it prints; both streams are one, as in a terminal."""
        del stream
        self._output += data
        excess = len(self._output) - self._most_bytes
        if excess > 0:
            self.truncated = True
            del self._output[:excess]

    def eof(self, stream: Stream) -> None:
        """A stream has ended."""

    def exited(self, code: int | None, signal: int | None) -> None:
        """It has ended."""
        self.exit = code, signal


class HostServices:
    """The workspace of one attempt, for what is done in the agent's name.

    Args:
        roots: directories that files must be in; the first is the working directory.
        environment: the variables that commands get.
    """

    def __init__(self, roots: Sequence[str], environment: Mapping[str, str]) -> None:
        self._roots = tuple(roots)
        self._environment = environment
        self._commands: dict[str, Command] = {}
        self._waits: set[asyncio.Task[ChildEnd]] = set()
        self._all_gone = True
        self._last_id = 0
        self._is_closed = False

    # Files.

    async def read_text(self, path: str) -> str:
        """Return a file's text.

        Raises:
            AbsentError: there is no such file.
            HostCallError: it is outside the workspace, no regular file, too large, or cannot be read.
        """
        return await asyncio.to_thread(self._read, path)

    async def write_text(self, path: str, text: str) -> None:
        """Write a file; make it, and the directories it is in, if need be.

        Raises:
            HostCallError: it is outside the workspace, no regular file, too large, or cannot be written.
        """
        await asyncio.to_thread(self._write, path, text)

    def _read(self, path: str) -> str:
        with os.fdopen(self._open(path, os.O_RDONLY), "rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
        if len(data) > MOST_FILE_BYTES:
            raise HostCallError(f"{path} has more than {MOST_FILE_BYTES} bytes")
        return data.decode("utf-8", "replace")

    def _write(self, path: str, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MOST_FILE_BYTES:
            raise HostCallError(f"the text has more than {MOST_FILE_BYTES} bytes")
        with os.fdopen(self._open(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.truncate(0)
            file.write(data)

    def _open(self, path: str, flags: int) -> int:
        try:
            root, parts = self._place(path)
            return _open_beneath(root, parts, flags)
        except FileNotFoundError:
            raise AbsentError(f"Resource not found: {path}") from None
        except OSError as error:
            raise HostCallError(f"{path}: {error.strerror or type(error).__name__}") from None
        except ValueError:  # a zero byte
            raise HostCallError("this is no path") from None

    def _place(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Return the root that a path is really in, and the way from there; it has no links."""
        if not os.path.isabs(path):  # noqa: PTH117 - a string is at hand
            raise HostCallError("give an absolute path")
        real = os.path.realpath(path)
        for root in map(os.path.realpath, self._roots):
            if real.startswith(root.rstrip("/") + "/"):
                return root, Path(real).relative_to(root).parts
        raise HostCallError(f"{path} is outside the workspace")

    # Commands.

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
    ) -> str:
        """Run a command; return the id by which it is known here.

        Args:
            argv: the command; looked up in the agent's PATH.
            cwd: where it runs. Empty: the working directory.
            env: variables beside the agent's.
            most_bytes: bytes of output to keep. None: ``MOST_OUTPUT_BYTES``.

        Raises:
            AbsentError: there is no such command.
            HostCallError: it cannot be started, its directory is outside the workspace, or too many are known.
        """
        where = self._directory(cwd)
        if len(self._commands) >= _MOST_COMMANDS or self._is_closed:
            raise HostCallError(f"no more than {_MOST_COMMANDS} commands are kept; release some")
        command = Command(MOST_OUTPUT_BYTES if most_bytes is None else most_bytes)
        environment = {**self._environment, **(env or {})}
        try:
            child = await Child.start(ChildSpec(argv=tuple(argv), cwd=where, env=environment), command)
        except ValueError:  # a zero byte
            raise HostCallError("this is no command line") from None
        command.child = child
        child.close_stdin()
        self._watch(command, child)
        if command.spawn_error:
            kind = AbsentError if command.spawn_error == errno.errorcode[errno.ENOENT] else HostCallError
            raise kind(f"{argv[0]} could not be started ({command.spawn_error})")
        self._last_id += 1
        command_id = f"command-{self._last_id}"
        self._commands[command_id] = command
        return command_id

    def _watch(self, command: Command, child: Child) -> None:
        def over(task: "asyncio.Task[ChildEnd]") -> None:
            self._waits.discard(task)
            end = None if task.cancelled() else task.result()
            self._all_gone = self._all_gone and end is not None and end.tree_confirmed_dead
            if end is not None and command.exit is None:
                command.exit = end.code, end.signal
            command.ended.set()

        task = asyncio.create_task(child.wait())
        self._waits.add(task)
        task.add_done_callback(over)

    def _directory(self, cwd: str) -> str:
        if not cwd:
            return self._roots[0] if self._roots else "/"
        real = os.path.realpath(cwd) if os.path.isabs(cwd) else ""  # noqa: PTH117 - a string is at hand
        for root in map(os.path.realpath, self._roots):
            if real == root or real.startswith(root.rstrip("/") + "/"):
                return real
        raise HostCallError(f"{cwd} is outside the workspace")

    def command(self, command_id: str) -> Command:
        """Return a command.

        Raises:
            AbsentError: none is known by this id.
        """
        if command_id not in self._commands:
            raise AbsentError(f"no command is known as {command_id!r}")
        return self._commands[command_id]

    def kill(self, command_id: str) -> None:
        """End a command and all it has started; it stays known.

        Raises:
            AbsentError: none is known by this id.
        """
        child = self.command(command_id).child
        if child is not None:
            child.kill()

    def release(self, command_id: str) -> None:
        """End a command and forget it.

        Raises:
            AbsentError: none is known by this id.
        """
        self.kill(command_id)
        del self._commands[command_id]

    async def close(self) -> bool:
        """End every command, and return whether all they have started is confirmed dead."""
        self._is_closed = True
        for command in self._commands.values():
            if command.child is not None:
                command.child.kill()
        await asyncio.gather(*self._waits, return_exceptions=True)
        return self._all_gone


def _open_beneath(root: str, parts: Sequence[str], flags: int) -> int:
    """Open a file step by step, following no link: one that is there now was not when the path was looked at.

    With O_CREAT, directories on the way are made.
    """
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            if flags & os.O_CREAT:
                _make_directory(part, here)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = below
        # Non-blocking: a named pipe without an other end must not stop us.
        open_flags = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(parts[-1], open_flags, 0o666, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "is no regular file")
    return file


def _make_directory(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o777, dir_fd=parent)
    except FileExistsError:
        return
