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
from dragoman.sdk._events import fit_event, redact_event, split_text
from dragoman.sdk._inputs import Inputs, Resolution
from dragoman.sdk._redaction import Redactor, StreamRedactor
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

_STATE_ORIGINS = {pb.RUN_PHASE_CANCELLING: pb.EVENT_ORIGIN_OPERATOR}


@dataclass(slots=True)
class _Item:
    """A text or reasoning item that is being written."""

    redactor: StreamRedactor
    offset: int = 0


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
        self.phase = pb.RUN_PHASE_UNSPECIFIED
        self.inputs = Inputs(self)
        self.cancel_wish = CancelWish()
        self.finished = asyncio.Event()
        self.result: pb.Result | None = None
        self.result_sequence = 0
        self.holders: Holders | None = None
        self.accepted_at = time.monotonic()
        self._items: dict[tuple[str, str], _Item] = {}
        self._last_event = self._last_agent_event = time.monotonic()
        self._heartbeat: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.adapter} attempt={self.attempt} {self.fanout!r}>"

    # What adapters call.

    def started(self, started: pb.Started) -> None:
        """Open the next attempt. Call it before anything is spawned."""
        self.attempt += 1
        self._items.clear()
        started.adapter = self.adapter
        started.instance_id = self.instance_id
        started.labels.update(self.request.labels)
        self._write(pb.AgentEvent(started=started, origin=pb.EVENT_ORIGIN_ADAPTER))

    def attempt_ended(self, ended: pb.AttemptEnded) -> None:
        """Close an attempt that is followed by another."""
        self.inputs.drop_all()
        self._flush_items()
        self._write(pb.AgentEvent(attempt_ended=ended, origin=pb.EVENT_ORIGIN_ADAPTER))

    def emit(self, event: pb.AgentEvent) -> None:
        """Write an event of the agent: a body, and lineage or native if known. The rest is filled in.

        Text and thinking need no offset: it is computed after redaction. One without content says that its
        item is complete. An event without origin is the agent's.
        """
        if event.origin == pb.EVENT_ORIGIN_UNSPECIFIED:
            event.origin = pb.EVENT_ORIGIN_AGENT
        self._last_agent_event = time.monotonic()
        kind = event.WhichOneof("body")
        if kind == "text":
            self._write_piece(event, event.text, kind)
        elif kind == "thinking":
            self._write_piece(event, event.thinking, kind)
        elif kind == "tool_output":
            self._write_tool_output(event)
        else:
            self._count(event, kind)
            self._write(event)

    def emit_all(self, events: Iterable[pb.AgentEvent]) -> None:
        """Write several events."""
        for event in events:
            self.emit(event)

    def state(self, phase: pb.RunPhase.ValueType, **fields: Any) -> None:
        """Tell the phase. ``fields`` are those of ``State``."""
        self.phase = phase
        origin = _STATE_ORIGINS.get(phase, pb.EVENT_ORIGIN_ADAPTER)
        self._write(pb.AgentEvent(state=pb.State(phase=phase, **fields), origin=origin))

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
        deadline = asyncio.get_running_loop().time() + max(0.0, grace_s)
        if self.finished.is_set():
            return
        if wish.deadline is None:
            wish.reason = reason
            if self.attempt:
                self.state(pb.RUN_PHASE_CANCELLING, reason=reason)
        elif deadline >= wish.deadline:
            return
        wish.deadline = deadline
        wish.changed.set()

    def finish(self, result: pb.Result) -> None:
        """Write the result, last, and close the run. Only the first call counts."""
        if self.finished.is_set():
            return
        self.inputs.drop_all()
        self._flush_items()
        result.counters.CopyFrom(self.counters)
        result.duration.FromNanoseconds(int((time.monotonic() - self.accepted_at) * 1e9))
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
        return time.monotonic() - self._last_agent_event

    # The writer.

    def _write_piece(self, event: pb.AgentEvent, piece: pb.Text | pb.Thinking, kind: str) -> None:
        key = (kind, piece.item_id)
        content = piece.WhichOneof("content")
        item = self._items.get(key)
        if content == "whole":
            self._items.pop(key, None)
            shown = self.redactor.text(piece.whole)
            event.redacted = event.redacted or (shown is not piece.whole and shown != piece.whole)
            piece.whole = shown
            self._items[key] = _Item(self.redactor.stream(), len(shown.encode()))
            self._write(event, is_redacted=True)
        elif content == "delta":
            if item is None:
                item = self._items[key] = _Item(self.redactor.stream())
            self._write_delta(event, piece, item, item.redactor.feed(piece.delta))
        elif item is not None:
            self._write_delta(event, piece, item, item.redactor.flush())
            del self._items[key]

    def _write_delta(self, event: pb.AgentEvent, piece: pb.Text | pb.Thinking, item: _Item, shown: str) -> None:
        for part in split_text(shown):
            out = pb.AgentEvent()
            out.CopyFrom(event)
            body = out.text if isinstance(piece, pb.Text) else out.thinking
            body.delta = part
            body.offset = item.offset
            item.offset += len(part.encode())
            # Whether this very piece hid a secret cannot be told apart from what the agent wrote itself.
            out.redacted = "[redacted]" in part
            self._write(out, is_redacted=True)

    def _flush_items(self) -> None:
        for (kind, item_id), item in list(self._items.items()):
            event = pb.AgentEvent(origin=pb.EVENT_ORIGIN_AGENT)
            if kind == "tool_output":
                call_id, _, stream = item_id.rpartition("/")
                event.tool_output.tool_call_id = call_id
                event.tool_output.stream = pb.OutputStream.Value(stream)
                self._write_output(event, item, item.redactor.flush())
            else:
                piece = event.text if kind == "text" else event.thinking
                piece.item_id = item_id
                self._write_delta(event, piece, item, item.redactor.flush())
        self._items.clear()

    def _write_tool_output(self, event: pb.AgentEvent) -> None:
        output = event.tool_output
        key = ("tool_output", f"{output.tool_call_id}/{pb.OutputStream.Name(output.stream)}")
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(self.redactor.stream())
        shown = item.redactor.feed(output.text)
        if shown != output.text:
            output.raw = b""  # it would show what was taken out, or held back
        self._write_output(event, item, shown)

    def _write_output(self, event: pb.AgentEvent, item: _Item, shown: str) -> None:
        for part in split_text(shown):
            out = pb.AgentEvent()
            out.CopyFrom(event)
            out.redacted = "[redacted]" in part
            out.tool_output.text = part
            if part != shown:
                out.tool_output.raw = b""
            out.tool_output.offset = item.offset
            item.offset += len(part.encode())
            self._write(out, is_redacted=True)

    def _count(self, event: pb.AgentEvent, kind: str | None) -> None:
        counters = self.counters
        if kind == "tool_result":
            status = event.tool_result.status
            counters.failed_tool_calls += status == pb.TOOL_STATUS_FAILED
            counters.denied_tool_calls += status == pb.TOOL_STATUS_DENIED
        elif kind == "tool_call":
            counters.tool_calls += event.tool_call.status == pb.TOOL_STATUS_RUNNING
        elif kind == "file_change":
            counters.file_changes += 1
        elif kind == "state":
            counters.retries += event.state.phase == pb.RUN_PHASE_RETRYING
            self.phase = event.state.phase
        elif kind == "log":
            counters.unparsed_lines += event.log.stream == pb.OUTPUT_STREAM_STDOUT

    def _write(self, event: pb.AgentEvent, *, is_redacted: bool = False) -> None:
        if not is_redacted:
            redact_event(event, self.redactor)
        event.sequence = self.fanout.last_sequence + 1
        event.run_id = self.run_id
        event.attempt = self.attempt
        event.time.FromNanoseconds(time.time_ns())
        fit_event(event)
        self._last_event = time.monotonic()
        self.fanout.append(event.SerializeToString(), event.sequence)

    def _arm_heartbeat(self) -> None:
        if self.finished.is_set():
            return
        silent = time.monotonic() - self._last_event
        if silent >= HEARTBEAT_AFTER_S:
            self._send_heartbeat()
            silent = 0.0
        loop = asyncio.get_running_loop()
        self._heartbeat = loop.call_later(HEARTBEAT_AFTER_S - silent, self._arm_heartbeat)

    def _send_heartbeat(self) -> None:
        beat = pb.Heartbeat(last_sequence=self.fanout.last_sequence)
        beat.idle.FromNanoseconds(int(self.idle_s() * 1e9))
        event = pb.AgentEvent(heartbeat=beat, run_id=self.run_id, attempt=self.attempt)
        event.origin = pb.EVENT_ORIGIN_ADAPTER
        event.time.FromNanoseconds(time.time_ns())
        self.fanout.send_ephemeral(event.SerializeToString())
