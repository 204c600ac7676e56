"""An agent's standard input, and the reading of its output at the pace of the run's clients."""

from collections.abc import Callable

from dragoman.protocol.limits import BACKLOG_BYTES
from dragoman.sdk._process.child import Child
from dragoman.sdk._run.run import Run


class AgentInput:
    """What an agent is written to. It is queued until there is a child."""

    def __init__(self, first: bytes, *, closes: bool) -> None:
        self._queued = [first]
        self.is_closed = closes
        self._child: Child | None = None

    def attach(self, child: Child) -> None:
        """Write what was queued."""
        self._child = child
        for data in self._queued:
            child.write_stdin(data)
        if self.is_closed:
            child.close_stdin()

    def write(self, data: bytes) -> None:
        """Write, or queue."""
        if self._child is None:
            self._queued.append(data)
        else:
            self._child.write_stdin(data)

    def close(self) -> None:
        """Close it once everything is written."""
        self.is_closed = True
        if self._child is not None:
            self._child.close_stdin()


class OutputPace:
    """Reads an agent's output only as fast as the run's clients read its events.

    Args:
        run: whose clients they are.
        on_change: called when reading was paused or resumed.
    """

    def __init__(self, run: Run, on_change: Callable[[], None]) -> None:
        self._run = run
        self._on_change = on_change
        self._child: Child | None = None
        self.is_paused = False

    def attach(self, child: Child) -> None:
        """Pause and resume the output of this child."""
        self._child = child
        self._run.event_buffer.on_taken = self._events_taken

    def check(self) -> None:
        """Read no more output if too many events wait for the run's clients; none wait for a run without any."""
        is_behind = self._run.event_buffer.unread_bytes > BACKLOG_BYTES
        if is_behind and self._child is not None and self._run.keepalive is not None:
            self._child.pause_output()
            self._set(is_paused=True)

    def resume(self) -> None:
        """Read output again: its events were taken, or the agent is to stop and must not wait in a write."""
        if self.is_paused and self._child is not None:
            self._child.resume_output()
            self._set(is_paused=False)

    def _events_taken(self) -> None:
        if self._run.event_buffer.unread_bytes <= BACKLOG_BYTES // 2:
            self.resume()

    def _set(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused
        self._on_change()
