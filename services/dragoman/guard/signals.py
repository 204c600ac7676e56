"""The signals that the guard receives, as a descriptor to select on."""

from __future__ import annotations

import os

from dragoman.guard.plain_signal import signal

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
"""Forwarded to the command by a guard without an owner."""

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
"""Ignored by a guard with an owner, as they concern the command's terminal only."""


class Signals:
    """Records the signals that arrive, and makes `fd` readable.

    Args:
        recorded: Signals to record; SIGCHLD makes `fd` readable but is not recorded.
    """

    def __init__(self, recorded: Sequence[int]) -> None:
        self.fd, writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(writer, False)
        self._pending: list[int] = []
        # The handlers record the signals; the descriptor only wakes the loop, so it may be full.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for signum in recorded:
            signal.signal(signum, self._record)
        # A launcher's thread may have blocked any of these, and a mask is inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def ignore(self, ignored: Sequence[int]) -> None:
        """Ignore these signals; the guarded command gets them with their default action."""
        for signum in ignored:
            signal.signal(signum, signal.SIG_IGN)

    def received(self) -> list[int]:
        """Return the signals that have arrived since the last call, in order."""
        pending, self._pending = self._pending, []
        return pending

    def clear(self) -> None:
        """Empty the descriptor."""
        try:
            os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return

    def _record(self, signum: int, _frame: object) -> None:
        self._pending.append(signum)
