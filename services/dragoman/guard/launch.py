"""Command lines that start a guard; for owners, not for the guard itself.

`run_guard` and `adapter_guard` return a guard's arguments: its options and the guarded command. `guard_command` turns
them into the command line to start. That line does not contain them: an agent that kills its own processes by a
pattern of their command lines (``pkill -f``) would kill its guard, too.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.guard.options import (
    ARGUMENTS_FD,
    DEFAULT_GRACE_S,
    DEFAULT_LINGER_S,
    DEFAULT_ORPHAN_AFTER_S,
    WAIT_FD,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# -I: neither the child's PYTHON* variables nor its cwd reach the guard. -S: no site-packages, which
# halves the start-up; where psutil has to answer for a missing /proc they must stay.
_FLAGS = ("-I", "-S") if sys.platform == "linux" else ("-I",)


def run_guard(
    argv: Sequence[str], *, control_fd: int, linger_s: float = DEFAULT_LINGER_S, remove: str | None = None
) -> list[str]:
    """Return the arguments of a guard that runs `argv` and is owned through `control_fd`.

    Start it with the environment, working directory, stdin, stdout and stderr meant for `argv`, in
    a session of its own, and with `control_fd` (one end of a stream socket pair) inherited. The
    other end speaks the protocol of `dragoman.guard.control`; closing it kills the process tree.
    """
    return [f"--control-fd={control_fd}", *run_options(linger_s, remove), "--", *argv]


def run_options(linger_s: float, remove: str | None, *, stays: bool = False) -> list[str]:
    """Return options of a guard that runs a command.

    Args:
        linger_s: Seconds between TERM and KILL for what the command leaves behind.
        remove: A directory that the guard removes at the end, even if the owner is gone.
        stays: Whether it waits for another command then, if this one has left nothing behind.
    """
    return [f"--linger={linger_s}", *([f"--remove={remove}"] if remove else []), *(["--stays"] if stays else [])]


class AdapterOptions(NamedTuple):
    """The options of a guard that runs an adapter. The folders of all paths must exist.

    Attributes:
        instance: The instance file that the guard writes.
        instance_id: Recorded in it; chosen by the launcher.
        control: The control socket that the guard listens on; its path may have at most 107 bytes.
        log: Where the adapter's output goes; rotated.
        listen: Recorded in the instance file: where the adapter listens.
        log_bytes: Size at which the log is rotated.
        log_keep: How many rotated logs are kept beside the current one.
        orphan_after_s: Seconds without its launcher and a connected router before the guard stops the adapter.
        grace_s: Seconds between TERM and KILL for the adapter.
        linger_s: Seconds between TERM and KILL for processes that outlive it.
    """

    instance: Path
    instance_id: str
    control: Path
    log: Path
    listen: str
    log_bytes: int = 8 << 20
    log_keep: int = 3
    orphan_after_s: float = DEFAULT_ORPHAN_AFTER_S
    grace_s: float = DEFAULT_GRACE_S
    linger_s: float = DEFAULT_LINGER_S


def adapter_guard(argv: Sequence[str], options: AdapterOptions, *, control_fd: int) -> list[str]:
    """Return the arguments of a guard that runs an adapter.

    Start it in a session of its own, without stdin, with stdout and stderr as pipes, and with `control_fd` inherited,
    one end of a stream socket pair. Close the other end once a router is connected; until then it claims the adapter
    as a router does, and no longer than this process lives. The guard
    closes both once the adapter runs. Before, it writes the ``spawned`` or ``spawn_failed`` event
    to stdout as one line of JSON, and errors to stderr. The instance file exists by then.
    """
    values = {name.removesuffix("_s"): value for name, value in options._asdict().items()}
    own = (f"--{name.replace('_', '-')}={value}" for name, value in values.items())
    return [f"--control-fd={control_fd}", *own, "--", *argv]


@contextmanager
def guard_command(arguments: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Yield the command line that starts a guard with these arguments, and the descriptor that it must inherit.

    Raises:
        OSError: There is no descriptor, or no memory, left.
        ValueError: An argument contains a zero byte.
    """
    fd = _anonymous_file()
    try:
        _write_arguments(fd, arguments)
        yield _command(f"{ARGUMENTS_FD}={fd}"), fd
    finally:
        os.close(fd)


def waiting_guard(control_fd: int) -> list[str]:
    """Return the command line of a guard that waits for its command.

    Start it in a session of its own, with `control_fd` inherited, one end of a stream socket pair as for `run_guard`.
    It ends when the other end is closed. Send it, in one message with any byte, the command's stdin, stdout and
    stderr, and the file that `waiting_arguments` yields.
    """
    return _command(f"{WAIT_FD}={control_fd}")


@contextmanager
def waiting_arguments(
    argv: Sequence[str], options: Sequence[str], *, control_fd: int, cwd: str, env: Mapping[str, str]
) -> Iterator[int]:
    """Yield a file with the arguments for a guard that waits.

    Args:
        argv: The command.
        options: Those of `run_options`.
        control_fd: What `waiting_guard` was given.
        cwd: The command's working directory.
        env: Its whole environment.

    Raises:
        OSError: There is no descriptor, or no memory, left.
        ValueError: No program can be started with such an argument or variable.
    """
    if any(not name or "=" in name for name in env):
        raise ValueError("illegal environment variable name")
    entries = [f"{name}={value}" for name, value in env.items()]
    own = [f"--control-fd={control_fd}", f"--cwd={cwd}", *options, f"--environment={len(entries)}", *entries]
    fd = _anonymous_file()
    try:
        _write_arguments(fd, [*own, "--", *argv])
        yield fd
    finally:
        os.close(fd)


def _command(argument: str) -> list[str]:
    return [sys.executable, *_FLAGS, str(Path(__file__).with_name("__main__.py")), argument]


def _write_arguments(fd: int, arguments: Sequence[str]) -> None:
    if any("\0" in argument for argument in arguments):
        raise ValueError("embedded null byte in an argument")
    with open(fd, "wb", closefd=False) as file:
        file.write(b"\0".join(map(os.fsencode, arguments)))
    os.lseek(fd, 0, os.SEEK_SET)


def _anonymous_file() -> int:
    """Return an open file without a name, in memory if the interpreter offers that.

    Interpreters built for old C libraries have no ``memfd_create``, whatever the kernel: those that uv installs.
    """
    if sys.platform == "linux" and hasattr(os, "memfd_create"):
        return os.memfd_create("arguments")
    import tempfile  # noqa: PLC0415 - of use only here

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
