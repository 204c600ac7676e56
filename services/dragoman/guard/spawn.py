"""Starting the guarded command: a clean session, default signals, the guard's own environment."""

from __future__ import annotations

import errno
import os
import sys

from dragoman.guard.plain_signal import signal
from dragoman.guard.processes import original_environment

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Not signal.valid_signals(): converting real-time signals to enum members takes a millisecond.
if sys.platform == "linux":
    _REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
else:
    _REAL_TIME = range(0)
_DEFAULTED = sorted({*range(1, 32), *_REAL_TIME} - {signal.SIGKILL, signal.SIGSTOP})


class SpawnError(Exception):
    """The command could not be started.

    Attributes:
        errno_name: As in ``errno.h``, for example ENOENT.
        message: What went wrong, for people.
    """

    def __init__(self, error: OSError, what: str) -> None:
        self.errno_name = errno.errorcode.get(error.errno or 0, "EIO")
        self.message = f"{error.strerror or error}: {what}"
        super().__init__(self.message)


def spawn(
    argv: Sequence[str],
    *,
    output: int | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: str | None = None,
    environment: Sequence[str] | None = None,
) -> int:
    """Start a command and return its pid, which is its process group and session too.

    ``posix_spawn``, because it neither forks the interpreter nor runs Python between fork and exec.
    Every signal gets its default action (a background job of a shell ignores SIGINT, and that is
    inherited) and none is blocked.

    Args:
        argv: The command; looked up in ``PATH`` unless it contains a slash.
        output: Descriptor that becomes its stdout and stderr, stdin being empty then; None leaves
            all three as they are.
        variables: Variables added to the environment.
        cwd: Working directory, of the guard too from then on; None leaves it as it is.
        environment: ``NAME=value`` of each variable; None means the guard's own environment.

    Raises:
        SpawnError: The system could not start it.
    """
    actions: list[tuple[object, ...]] = []
    if output is not None:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ]
    if cwd is not None:
        try:
            os.chdir(cwd)
        except OSError as error:
            raise SpawnError(error, f"working directory {cwd!r}") from None
    entries = original_environment() if environment is None else _environment(environment)
    entries.update({os.fsencode(name): os.fsencode(value) for name, value in (variables or {}).items()})
    try:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            entries,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULTED,
        )
    except NotImplementedError:  # built for a C library without setsid in posix_spawn, as those that uv installs are
        return _fork(argv, entries, output)
    except OSError as error:
        raise SpawnError(error, repr(argv[0])) from None


def _fork(argv: Sequence[str], entries: Mapping[bytes, bytes], output: int | None) -> int:
    """Do what ``spawn`` does, by fork and exec: the guard has one thread.

    Raises:
        SpawnError: The system could not start it.
    """
    reader, writer = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for signum in _DEFAULTED:
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if output is not None:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
            os.closerange(3, writer)
            os.closerange(writer + 1, 256)
            os.execvpe(argv[0], list(argv), entries)  # noqa: S606 - no shell
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(writer)
    with open(reader, "rb") as report:
        number = report.read()
    if number:
        os.waitpid(pid, 0)
        raise SpawnError(OSError(int(number), os.strerror(int(number))), repr(argv[0]))
    return pid


def _environment(entries: Sequence[str]) -> dict[bytes, bytes]:
    """Return an environment, in whose ``PATH`` commands are looked up from now on."""
    pairs = (os.fsencode(entry).partition(b"=") for entry in entries)
    environment = {name: value for name, _, value in pairs}
    os.environb.pop(b"PATH", None)
    if b"PATH" in environment:
        os.environb[b"PATH"] = environment[b"PATH"]
    return environment


def detach() -> None:
    """Release stdin, stdout and stderr: their readers wait for the command to close them, not for the guard."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
