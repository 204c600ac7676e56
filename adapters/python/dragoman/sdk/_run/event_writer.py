"""The writer of one run's events: their order, sequence and envelope, redaction, size, and the heartbeat."""

import asyncio
import time
from collections.abc import Callable

from dragoman.protocol.event_buffer import EventBuffer
from dragoman.protocol.limits import HEARTBEAT_AFTER_S
from dragoman.protocol.order import TABLE, OrderError, Phase
from dragoman.protocol.outgoing import fit_event, redact_event
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.work import WorkSeen, note_work
from dragoman.v1 import event_pb2 as pb


class EventWriter:
    """Appends events to a run's buffer.

    Args:
        run_id: the run's.
        buffer: where readers find the events.
        attempt: the attempt before the next ``started``.
        redactor: returns the run's redactor.

    Attributes:
        attempt: the present attempt.
        position: where the run is in the order of events.
        heard_at: when the agent's last event came; the owner sets it.
    """

    def __init__(self, run_id: str, buffer: EventBuffer, attempt: int, redactor: Callable[[], Redactor]) -> None:
        self._run_id = run_id
        self._buffer = buffer
        self._redactor = redactor
        self.attempt = attempt
        self.position = Phase.INITIAL
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._written_at = self._loop.time()
        self._work = WorkSeen()
        self._heartbeat: asyncio.TimerHandle | None = None

    def write(self, event: pb.AgentEvent, *, is_redacted: bool = False) -> None:
        """Write an event.

        Raises:
            OrderError: no such event may come now.
        """
        kind = event.WhichOneof("body") or "an event without a body"
        following = TABLE[self.position].get(kind)
        if following is None:
            raise OrderError(f"{kind} in phase {self.position.value}")
        self._work.observe(event, kind)
        if kind == "attempt_ended" and event.attempt_ended.HasField("failure"):
            note_work(event.attempt_ended.failure, self._work.begun)
        elif kind == "result" and event.result.HasField("failure"):
            note_work(event.result.failure, self._work.begun)
        cut_bytes = 0 if is_redacted else redact_event(event, self._redactor())
        self.attempt += kind == "started"
        if kind == "session" and not event.session.display_id:
            event.session.display_id = event.session.native_id
        event.sequence = self._buffer.last_sequence + 1
        self._address(event)
        cut_bytes += fit_event(event)
        self._written_at = self._loop.time()
        self._buffer.append(event.SerializeToString(), event.sequence)
        self.position = following
        if cut_bytes and following is Phase.ATTEMPT:
            message = f"{cut_bytes} bytes of this {kind} were cut, as an event has at most 1 MiB."
            notice = pb.Notice(severity=pb.SEVERITY_WARNING, code="event_cut", message=message)
            self.write(pb.AgentEvent(notice=notice, origin=pb.EVENT_ORIGIN_ADAPTER))

    def send_ephemeral(self, event: pb.AgentEvent) -> None:
        """Send an event of the adapter to the attached clients; it is not kept."""
        event.origin = pb.EVENT_ORIGIN_ADAPTER
        self._address(event)
        self._buffer.send_ephemeral(event.SerializeToString())

    def arm_heartbeat(self) -> None:
        """Send a heartbeat whenever nothing was written for a while."""
        silent_s = self._loop.time() - self._written_at
        if silent_s >= HEARTBEAT_AFTER_S:
            beat = pb.Heartbeat(last_sequence=self._buffer.last_sequence)
            beat.idle.FromNanoseconds(int((self._loop.time() - self.heard_at) * 1e9))
            self.send_ephemeral(pb.AgentEvent(heartbeat=beat))
            silent_s = 0.0
        self._heartbeat = self._loop.call_later(HEARTBEAT_AFTER_S - silent_s, self.arm_heartbeat)

    def close(self) -> None:
        """End the stream: nothing more is written."""
        self._buffer.close()
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def _address(self, event: pb.AgentEvent) -> None:
        event.run_id, event.attempt = self._run_id, self.attempt
        event.time.FromNanoseconds(time.time_ns())


class RunCounts:
    """What is counted of a run's events.

    Attributes:
        counters: the numbers, for the result.
    """

    def __init__(self) -> None:
        self.counters = pb.RunCounters()
        self._tool_calls: set[str] = set()

    def count(self, event: pb.AgentEvent, kind: str) -> None:
        """Count an event that is emitted."""
        counters = self.counters
        if kind == "tool_result":
            status = event.tool_result.status
            counters.failed_tool_calls += status == pb.TOOL_STATUS_FAILED
            counters.denied_tool_calls += status == pb.TOOL_STATUS_DENIED
        elif kind == "tool_call":
            self._tool_calls.add(event.tool_call.id)  # emitted again whenever it changes
            counters.tool_calls = len(self._tool_calls)
        elif kind == "file_change":
            counters.file_changes += 1
        elif kind == "state":
            counters.retries += event.state.phase == pb.RUN_PHASE_RETRYING
        elif kind == "log" and event.log.stream == pb.OUTPUT_STREAM_STDOUT:
            counters.unparsed_lines += 1 + event.log.text.count("\n")  # several lines may be in one log
