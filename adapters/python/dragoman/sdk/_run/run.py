"""One run as its adapter sees it: the writer of its events, its clock of life, its questions, its end.

The writer gives sequences, fills the envelope, redacts, keeps events within their size, and appends them to the
run's ``EventBuffer``; streams read from there. Everything happens in one event loop and without awaiting, so events
have one order. The adapter's ``execute`` returns the ``Result``; the service writes it, last.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dragoman.protocol.event_buffer import EventBuffer
from dragoman.protocol.keepalive import KeepaliveStreams
from dragoman.protocol.order import OrderError, Phase
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.tracing import NO_TRACE, RunSpan
from dragoman.protocol.work import note_work
from dragoman.sdk._output.text_streams import KINDS, TextStreams
from dragoman.sdk._process.prepared_guard import SpareGuards
from dragoman.sdk._run.budget import BudgetKeeper
from dragoman.sdk._run.changes import RunChanges
from dragoman.sdk._run.event_writer import EventWriter, RunCounts
from dragoman.sdk._run.faults import Faults
from dragoman.sdk._run.files import RunFiles
from dragoman.sdk._run.inputs import Inputs, Resolution
from dragoman.sdk._run.sent_inputs import ATTEMPT_ENDED, CANCELLED, RUN_ENDED, SentInputs
from dragoman.sdk._run.turns import Turns, printed
from dragoman.sdk._run.updates import RunUpdates
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field

_STATE_ORIGINS = {pb.RUN_PHASE_CANCELLING: pb.EVENT_ORIGIN_OPERATOR}
_FAILURES = frozenset({pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT, pb.OUTCOME_LOST})
_NO_REASON = pb.Failure(
    kind=pb.FAILURE_KIND_INTERNAL, code="no_reason", message="The adapter did not say why the run failed."
)
_NOT_EMITTED = frozenset({"started", "attempt_ended", "result"})


class Cancellation(Struct):
    """The request to stop a run, if there is one."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the request, and again at each shorter grace; the waiter clears it."""
    deadline: float | None = None
    """Loop time by which the run must be over. None until requested."""
    reason: str = ""

    @property
    def is_requested(self) -> bool:
        """Whether the run is to be stopped."""
        return self.deadline is not None


class Run:
    """One run. Made by the service; adapters use ``started``, ``emit``, ``ask`` and ``cancellation``.

    Attributes:
        request: what was asked, validated.
        run_id: its id.
        accepted: what the adapter's ``accept`` returned for the request.
        redactor: knows the secrets of the run; the adapter sets it before the first event.
        counters: what was counted; put into the result.
        attempt: the present attempt; 0 before the first ``started``.
        faults: reports exceptions of the adapter's own code.
    """

    def __init__(
        self,
        request: adapter_pb2.ExecuteRequest,
        accepted: Any,
        *,
        adapter: str,
        instance_id: str,
    ) -> None:
        self.request = request
        self.run_id = request.run_id
        self.accepted = accepted
        self.adapter = adapter
        self.instance_id = instance_id
        self.router_token = ""
        """A token for calls about this run at the router that sent it; empty if there is none. It is a secret."""
        self.span = RunSpan(NO_TRACE)
        """Its span, and the trace that its agent is to continue."""
        self.secrets: tuple[str, ...] = ()
        """What is secret in the request, once it was looked for."""
        self.redactor = Redactor([request.auth_token] if request.auth_token else [])
        first = request.relay.first_sequence or 1
        self.event_buffer = EventBuffer(request.run_id, first_sequence=first)
        self.attempt = max(0, request.relay.first_attempt - 1)
        self.first_sequence = first
        self._writer = EventWriter(self.run_id, self.event_buffer, self.attempt, lambda: self.redactor)
        self._counts = RunCounts()
        self.counters = self._counts.counters
        self.phase = pb.RUN_PHASE_UNSPECIFIED
        self.inputs = Inputs(self)
        self.sent = SentInputs(self)
        """What callers send while it runs."""
        self.updates = RunUpdates(self)
        """What callers change while it runs."""
        self.turns = Turns()
        """Its turns in the present attempt."""
        self.attempting = asyncio.Event()
        """Set while an attempt is open, and once there is no more to come."""
        self.faults = Faults(self.run_id, self.notice)
        self.cancellation = Cancellation()
        self.guards = SpareGuards()
        """Where the guards of this run's processes come from."""
        self.finished = asyncio.Event()
        self.result: pb.Result | None = None
        self.result_sequence = 0
        self.keepalive: KeepaliveStreams | None = None
        self.changes: RunChanges | None = None
        """What it changes in its workspace, if that is tracked."""
        self.budget = BudgetKeeper(self) if request.limits.budget.ByteSize() else None
        """Keeps its budget, if it has one."""
        self.files: RunFiles | None = None
        """The files that came with its prompt, and those that its agent leaves. None: it can have none."""
        self._loop = asyncio.get_running_loop()
        self.accepted_at = self._loop.time()
        self._text_streams = TextStreams(
            lambda: self.redactor, lambda event: self._writer.write(event, is_redacted=True), self._writer.write
        )
        self._observers: list[Callable[[pb.AgentEvent], None]] = []

    def __repr__(self) -> str:
        return f"<Run {self.run_id} of {self.adapter} attempt={self.attempt} {self.event_buffer!r}>"

    # What adapters call.

    def started(self, started: pb.Started) -> None:
        """Open the next attempt. Call it before anything is spawned.

        Raises:
            OrderError: the attempt before is still open.
        """
        started.adapter = self.adapter
        started.instance_id = self.instance_id
        started.labels.update(self.request.labels)
        event = pb.AgentEvent(started=started, origin=pb.EVENT_ORIGIN_ADAPTER)
        self._writer.write(event)
        self.attempt = self._writer.attempt
        self.turns = Turns(printed(self.counters))
        self.attempting.set()
        if self.budget is not None:
            self.budget.observe(event)

    def attempt_ended(self, ended: pb.AttemptEnded) -> None:
        """Close an attempt that is followed by another."""
        self.attempting.clear()
        self.inputs.drop_all()
        self.sent.drop_all(ATTEMPT_ENDED)
        self.updates.end_attempt()
        self._text_streams.end_all()
        event = pb.AgentEvent(attempt_ended=ended, origin=pb.EVENT_ORIGIN_ADAPTER)
        if self.budget is not None:
            self.budget.observe(event)  # before it is written: no notice may follow it
        self._writer.write(event)

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
            self._writer.heard_at = self._loop.time()
        kind = event.WhichOneof("body") or ""
        if kind in _NOT_EMITTED:
            raise OrderError(f"{kind} is not emitted; it has a method of its own, or is returned")
        if self.turns.number > 1:
            self.turns.adjust(event, kind)
        if kind == "message" and event.message.input_id:
            self.sent.settle(event.message)
        for observer in self._observers:
            observer(event)
        if kind in KINDS:
            self._text_streams.take(event, kind)
            return
        if kind == "state" and self.cancellation.is_requested:
            return  # the agent may still be trying its model again; the run is being cancelled
        if kind == "tool_result":
            self._text_streams.end_output(event.tool_result.tool_call_id)
        self._counts.count(event, kind)
        if kind == "state":
            self.phase = event.state.phase
        self._writer.write(event)
        if self.budget is not None:
            self.budget.observe(event)

    def end_turn(self) -> None:
        """Note that the agent's turn is over: nothing of it follows."""
        self.sent.end_turn()
        self.updates.end_turn()
        self._text_streams.end_all()

    def emit_all(self, events: Iterable[pb.AgentEvent]) -> None:
        """Write several events."""
        for event in events:
            self.emit(event)

    @contextlib.contextmanager
    def observed(self, observer: Callable[[pb.AgentEvent], None]) -> Iterator[None]:
        """Call ``observer`` with each event that is emitted while the context lasts, before it is written."""
        self._observers = [*self._observers, observer]
        try:
            yield
        finally:
            self._observers = [item for item in self._observers if item is not observer]

    def state(self, phase: pb.RunPhase.ValueType, **fields: Any) -> None:
        """Emit the phase. ``fields`` are those of ``State``."""
        origin = _STATE_ORIGINS.get(phase, pb.EVENT_ORIGIN_ADAPTER)
        self._writer.write(pb.AgentEvent(state=pb.State(phase=phase, **fields), origin=origin))
        self.phase = phase

    def progress(self, phase: pb.RunPhase.ValueType, reason: str) -> None:
        """Emit to the attached clients what the run waits for; the event is ephemeral."""
        self._writer.send_ephemeral(pb.AgentEvent(state=pb.State(phase=phase, reason=self.redactor.text(reason))))

    def notice(self, severity: pb.Severity.ValueType, code: str, message: str, hint: str = "") -> None:
        """Emit a notice for people."""
        notice = pb.Notice(severity=severity, code=code, message=message, hint=hint)
        self._writer.write(pb.AgentEvent(notice=notice, origin=pb.EVENT_ORIGIN_ADAPTER))

    async def ask(self, request: pb.InputRequest) -> Resolution:
        """Ask the caller, and wait for the answer, its default at expiry, or the request's withdrawal."""
        return await self.inputs.ask(request)

    # What the service calls.

    def begin(self) -> None:
        """Start the heartbeat."""
        self._writer.arm_heartbeat()

    def cancel(self, grace_s: float, reason: str = "") -> None:
        """Request the run's end within ``grace_s``. A later, shorter grace shortens it; a longer one is ignored."""
        cancellation = self.cancellation
        deadline = self._loop.time() + max(0.0, grace_s)
        if self.finished.is_set():
            return
        if cancellation.deadline is None:
            cancellation.reason = reason
            if self._writer.position is Phase.ATTEMPT:
                self.state(pb.RUN_PHASE_CANCELLING, reason=reason)
            self.inputs.drop_all()  # no answers are awaited any more
            self.sent.close(CANCELLED)
            self.updates.close()
        elif deadline >= cancellation.deadline:
            return
        cancellation.deadline = deadline
        cancellation.changed.set()

    def finish(self, result: pb.Result) -> None:
        """Write the result, last, and close the run. Only the first call counts."""
        if self.finished.is_set():
            return
        is_early = self._writer.position is Phase.INITIAL
        if is_early:
            self.started(pb.Started())  # a run that failed before its first attempt has this event too
        self.inputs.drop_all()
        self.sent.close(RUN_ENDED)
        self.updates.close()
        self._text_streams.end_all()
        if result.outcome in _FAILURES and not result.HasField("failure"):
            result.failure.CopyFrom(_NO_REASON)
        if is_early and result.HasField("failure"):
            note_work(result.failure, begun=False)  # nothing is started before an attempt is
        result.counters.CopyFrom(self.counters)
        result.duration.FromNanoseconds(int((self._loop.time() - self.accepted_at) * 1e9))
        event = pb.AgentEvent(result=result, origin=pb.EVENT_ORIGIN_ADAPTER)
        self._writer.write(event)
        self.result = event.result
        self.result_sequence = event.sequence
        self._writer.close()
        if self.keepalive is not None:
            self.keepalive.close()
        self.finished.set()
        self.attempting.set()
