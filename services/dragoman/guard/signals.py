"""Signals that the guard itself receives, as something to select on."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing itself is a slow import; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Sequence

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Passed on to the command by a guard that nobody owns."""

IGNORED = (
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
"""Not for an owned guard: the command's terminal, if any, is no business of its keeper."""


class Signals:
    """Keeps the signals that arrive, and wakes whoever selects on `fd`.

    Args:
        taken: Signals to keep; SIGCHLD wakes, but is not kept.
    """

    def __init__(self, taken: Sequence[int]) -> None:
        self.fd, writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(writer, False)
        self._pending: list[int] = []
        # What arrives is kept by the handlers; the descriptor only wakes, so it may well be full.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for signum in taken:
            signal.signal(signum, self._keep)
        # A launcher's thread may have blocked any of these, and a mask is inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def ignore(self, ignored: Sequence[int]) -> None:
        """Ignore these signals; the guarded command gets them with their default action."""
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)

    def taken(self) -> list[int]:
        """Return the signals that have arrived since the last call, in order."""
        pending, self._pending = self._pending, []
        return pending

    def clear(self) -> None:
        """Make the descriptor quiet again."""
        try:
            os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return

    def _keep(self, signum: int, _frame: object) -> None:
        self._pending.append(signum)
