"""Starting the guarded command: a clean session, default signals, the guard's own environment."""

from __future__ import annotations

import errno
import os
import signal
import sys

from dragoman.guard.processes import original_environment

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Sequence

# Not signal.valid_signals(): trying to make enum members of real-time signals takes a millisecond.
if sys.platform == "linux":
    _REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
else:
    _REAL_TIME = range(0)
_DEFAULTED = sorted({*range(1, 32), *_REAL_TIME} - {signal.SIGKILL, signal.SIGSTOP})


class SpawnError(Exception):
    """The command could not be started.

    Attributes:
        errno_name: As in ``errno.h``, for example ENOENT.
        message: For people.
    """

    def __init__(self, error: OSError, command: str) -> None:
        self.errno_name = errno.errorcode.get(error.errno or 0, "EIO")
        self.message = f"{error.strerror or error}: {command!r}"
        super().__init__(self.message)


def spawn(argv: Sequence[str], *, output: int | None = None) -> int:
    """Start a command and return its pid, which is its process group and session too.

    ``posix_spawn``, because it neither forks the interpreter nor runs Python between fork and exec.
    Every signal gets its default action (a background job of a shell ignores SIGINT, and that is
    inherited) and none is blocked.

    Args:
        argv: The command; looked up in ``PATH`` unless it contains a slash.
        output: Descriptor that becomes its stdout and stderr, stdin being empty then; None leaves
            all three as they are.

    Raises:
        SpawnError: The system would not start it.
    """
    actions: list[tuple[object, ...]] = []
    if output is not None:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ]
    try:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            original_environment(),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULTED,
        )
    except OSError as error:
        raise SpawnError(error, argv[0]) from None


def detach() -> None:
    """Let go of stdin, stdout and stderr: whoever reads them waits for the command, not for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
