"""Saying what a slow start waits for, every few seconds, until the agent gives its first sign."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from dragoman.protocol.clocks import Clocks
from dragoman.sdk._run.run import Run
from dragoman.v1 import event_pb2 as pb

REPORT_EVERY_S: Final = 5.0


class StartupReports:
    """Reports of one attempt's start: ephemeral states with a reason, so that none is kept. A context manager.

    Args:
        run: the run.
        clocks: its clocks; they know whether the agent has produced output.
    """

    def __init__(self, run: Run, clocks: Clocks) -> None:
        self._run = run
        self._clocks = clocks
        self._loop = asyncio.get_running_loop()
        self._reason: Callable[[], str] | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def waiting_for(self, reason: Callable[[], str] | None) -> None:
        """Report from now on what ``reason`` returns, e.g. "its gateway to answer"; None: nothing more."""
        self._reason = reason
        self._since = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(REPORT_EVERY_S, self._report) if reason is not None else None

    def __enter__(self) -> Self:
        """Begin with nothing to report."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all reports."""
        self.waiting_for(None)

    def _report(self) -> None:
        if self._reason is None or self._clocks.last_activity_at is not None:
            return
        waited_s = round(self._loop.time() - self._since)
        phase = self._run.phase or pb.RUN_PHASE_STARTING
        self._run.progress(phase, f"waiting for {self._reason()} ({waited_s} s)")
        self._timer = self._loop.call_later(REPORT_EVERY_S, self._report)
