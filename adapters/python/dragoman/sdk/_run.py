"""One run as its adapter sees it: the writer of its events, its clock of life, its questions, its end.

The writer gives sequences, fills the envelope, redacts, keeps events within their size, and appends them to the
run's ``Fanout``; streams read from there. Everything happens in one event loop and without awaiting, so events
have one order. The adapter's ``execute`` returns the ``Result``; the service writes it, last.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dragoman.protocol.fanout import Fanout
from dragoman.protocol.holding import Holders
from dragoman.protocol.limits import HEARTBEAT_AFTER_S
from dragoman.protocol.order import TABLE, OrderError, Phase
from dragoman.sdk._events import fit_event, redact_event
from dragoman.sdk._inputs import Inputs, Resolution
from dragoman.sdk._pieces import KINDS, Pieces
from dragoman.sdk._redaction import Redactor
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_STATE_ORIGINS = {pb.RUN_PHASE_CANCELLING: pb.EVENT_ORIGIN_OPERATOR}
_NOT_EMITTED = frozenset({"started", "attempt_ended", "result"})


@dataclass(slots=True)
class CancelWish:
    """That somebody wants the run stopped."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody asked, and again with each shorter grace; who waits clears it."""
    deadline: float | None = None
    """Loop time by which the run must be over. None until asked."""
    reason: str = ""

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked."""
        return self.deadline is not None


class Run:
    """One run. Made by the service; adapters use ``started``, ``emit``, ``ask`` and ``cancel_wish``.

    Attributes:
        request: what was asked, validated.
        run_id: its id.
        accepted: what the adapter's ``accept`` returned for the request.
        redactor: knows the secrets of the run; the adapter sets it before the first event.
        fanout: its events.
        counters: what was counted; put into the result.
        attempt: the present attempt; 0 before the first ``started``.
    """

    def __init__(
        self,
        request: adapter_pb2.ExecuteRequest,
        accepted: Any,
        *,
        adapter: str,
        instance_id: str,
        fanout: Fanout | None = None,
    ) -> None:
        self.request = request
        self.run_id = request.run_id
        self.accepted = accepted
        self.adapter = adapter
        self.instance_id = instance_id
        self.redactor = Redactor([request.auth_token] if request.auth_token else [])
        first = request.relay.first_sequence or 1
        self.fanout = fanout or Fanout(request.run_id, first_sequence=first)
        self.counters = pb.RunCounters()
        self.attempt = max(0, request.relay.first_attempt - 1)
        self.first_sequence = first
        self.phase = pb.RUN_PHASE_UNSPECIFIED
        self.inputs = Inputs(self)
        self.cancel_wish = CancelWish()
        self.finished = asyncio.Event()
        self.result: pb.Result | None = None
        self.result_sequence = 0
        self.holders: Holders | None = None
        self._loop = asyncio.get_running_loop()
        self.accepted_at = self._loop.time()
        self._position = Phase.INITIAL
        self._pieces = Pieces(lambda: self.redactor, lambda event: self._write(event, is_redacted=True), self._write)
        self._tool_calls: set[str] = set()
        self._last_event = self._last_agent_event = self.accepted_at
        self._heartbeat: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.adapter} attempt={self.attempt} {self.fanout!r}>"

    # What adapters call.

    def started(self, started: pb.Started) -> None:
        """Open the next attempt. Call it before anything is spawned.

        Raises:
            OrderError: the attempt before is still open.
        """
        started.adapter = self.adapter
        started.instance_id = self.instance_id
        started.labels.update(self.request.labels)
        self._write(pb.AgentEvent(started=started, origin=pb.EVENT_ORIGIN_ADAPTER))

    def attempt_ended(self, ended: pb.AttemptEnded) -> None:
        """Close an attempt that is followed by another."""
        self.inputs.drop_all()
        self._pieces.end_all()
        self._write(pb.AgentEvent(attempt_ended=ended, origin=pb.EVENT_ORIGIN_ADAPTER))

    def emit(self, event: pb.AgentEvent) -> None:
        """Write an event of the agent: a body, and lineage or native if known. The rest is filled in.

        Text and thinking need no offset: it is computed after redaction. One without content says that its
        item is complete. An event without origin is the agent's. ``native.text`` may be of any length.

        Raises:
            OrderError: no such event may come now, or it is one that has a method of its own.
        """
        if event.origin == pb.EVENT_ORIGIN_UNSPECIFIED:
            event.origin = pb.EVENT_ORIGIN_AGENT
        if event.origin == pb.EVENT_ORIGIN_AGENT:
            self._last_agent_event = self._loop.time()
        kind = event.WhichOneof("body") or ""
        if kind in _NOT_EMITTED:
            raise OrderError(f"{kind} is not emitted; it has a method of its own, or is returned")
        if kind in KINDS:
            self._pieces.take(event, kind)
            return
        if kind == "state" and self.cancel_wish.is_asked:
            return  # the agent may still be trying its model again; the run is being cancelled
        if kind == "tool_result":
            self._pieces.end_output(event.tool_result.tool_call_id)
        self._count(event, kind)
        self._write(event)

    def emit_all(self, events: Iterable[pb.AgentEvent]) -> None:
        """Write several events."""
        for event in events:
            self.emit(event)

    def state(self, phase: pb.RunPhase.ValueType, **fields: Any) -> None:
        """Tell the phase. ``fields`` are those of ``State``."""
        origin = _STATE_ORIGINS.get(phase, pb.EVENT_ORIGIN_ADAPTER)
        self._write(pb.AgentEvent(state=pb.State(phase=phase, **fields), origin=origin))
        self.phase = phase

    def notice(self, severity: pb.Severity.ValueType, code: str, message: str, hint: str = "") -> None:
        """Tell something a person should know."""
        notice = pb.Notice(severity=severity, code=code, message=message, hint=hint)
        self._write(pb.AgentEvent(notice=notice, origin=pb.EVENT_ORIGIN_ADAPTER))

    async def ask(self, request: pb.InputRequest) -> Resolution:
        """Ask the caller, and wait for the answer, its default at expiry, or the request's withdrawal."""
        return await self.inputs.ask(request)

    # What the service calls.

    def begin(self) -> None:
        """Start the heartbeat."""
        self._arm_heartbeat()

    def cancel(self, grace_s: float, reason: str = "") -> None:
        """Wish the run stopped within ``grace_s``. A later, shorter grace shortens it; a longer one is ignored."""
        wish = self.cancel_wish
        deadline = self._loop.time() + max(0.0, grace_s)
        if self.finished.is_set():
            return
        if wish.deadline is None:
            wish.reason = reason
            if self._position is Phase.ATTEMPT:
                self.state(pb.RUN_PHASE_CANCELLING, reason=reason)
            self.inputs.drop_all()  # nobody waits for answers any more
        elif deadline >= wish.deadline:
            return
        wish.deadline = deadline
        wish.changed.set()

    def finish(self, result: pb.Result) -> None:
        """Write the result, last, and close the run. Only the first call counts."""
        if self.finished.is_set():
            return
        if self._position is Phase.INITIAL:
            self.started(pb.Started())  # a run that failed before its first attempt has one all the same
        self.inputs.drop_all()
        self._pieces.end_all()
        result.counters.CopyFrom(self.counters)
        result.duration.FromNanoseconds(int((self._loop.time() - self.accepted_at) * 1e9))
        event = pb.AgentEvent(result=result, origin=pb.EVENT_ORIGIN_ADAPTER)
        self._write(event)
        self.result = event.result
        self.result_sequence = event.sequence
        self.fanout.close()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self.holders is not None:
            self.holders.close()
        self.finished.set()

    def idle_s(self) -> float:
        """Seconds since the agent's last event."""
        return self._loop.time() - self._last_agent_event

    # The writer.

    def _count(self, event: pb.AgentEvent, kind: str) -> None:
        counters = self.counters
        if kind == "tool_result":
            status = event.tool_result.status
            counters.failed_tool_calls += status == pb.TOOL_STATUS_FAILED
            counters.denied_tool_calls += status == pb.TOOL_STATUS_DENIED
        elif kind == "tool_call":
            self._tool_calls.add(event.tool_call.id)  # told again whenever it changes
            counters.tool_calls = len(self._tool_calls)
        elif kind == "file_change":
            counters.file_changes += 1
        elif kind == "state":
            counters.retries += event.state.phase == pb.RUN_PHASE_RETRYING
            self.phase = event.state.phase
        elif kind == "log":
            counters.unparsed_lines += event.log.stream == pb.OUTPUT_STREAM_STDOUT

    def _write(self, event: pb.AgentEvent, *, is_redacted: bool = False) -> None:
        kind = event.WhichOneof("body") or "an event without a body"
        following = TABLE[self._position].get(kind)
        if following is None:
            raise OrderError(f"{kind} in phase {self._position.value}")
        cut_bytes = 0 if is_redacted else redact_event(event, self.redactor)
        self.attempt += kind == "started"
        event.sequence = self.fanout.last_sequence + 1
        event.run_id = self.run_id
        event.attempt = self.attempt
        event.time.FromNanoseconds(time.time_ns())
        cut_bytes += fit_event(event)
        self._last_event = self._loop.time()
        self.fanout.append(event.SerializeToString(), event.sequence)
        self._position = following
        if cut_bytes and following is Phase.ATTEMPT:
            message = f"{cut_bytes} bytes of this {kind} were cut, as an event has at most 1 MiB."
            self.notice(pb.SEVERITY_WARNING, "event_cut", message)

    def _arm_heartbeat(self) -> None:
        if self.finished.is_set():
            return
        silent = self._loop.time() - self._last_event
        if silent >= HEARTBEAT_AFTER_S:
            self._send_heartbeat()
            silent = 0.0
        self._heartbeat = self._loop.call_later(HEARTBEAT_AFTER_S - silent, self._arm_heartbeat)

    def _send_heartbeat(self) -> None:
        beat = pb.Heartbeat(last_sequence=self.fanout.last_sequence)
        beat.idle.FromNanoseconds(int(self.idle_s() * 1e9))
        event = pb.AgentEvent(heartbeat=beat, run_id=self.run_id, attempt=self.attempt)
        event.origin = pb.EVENT_ORIGIN_ADAPTER
        event.time.FromNanoseconds(time.time_ns())
        self.fanout.send_ephemeral(event.SerializeToString())
