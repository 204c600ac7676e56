"""One run in the router: it owns its state, executes what that decides, and is the only one that writes it.

Other modules read a run, give it inputs by ``send``, or await a state by ``until``. Events that change no state go by
``append``.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dragoman.protocol.errors import DragomanError
from dragoman.protocol.event_buffer import EventBuffer, SharedBound
from dragoman.protocol.keepalive import KeepaliveStreams
from dragoman.protocol.limits import MAX_EVENT_BYTES, MIB
from dragoman.protocol.logs import Logger
from dragoman.protocol.signals import Signal
from dragoman.protocol.texts import enum_name
from dragoman.protocol.tracing import NO_TRACE, RunSpan
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.errors import elsewhere
from dragoman.router.model.ports import Clock
from dragoman.router.model.run_record import RunRecord, router_failed
from dragoman.router.model.tasks import Tasks, nothing
from dragoman.router.policy.fallback import attempt_ended
from dragoman.router.policy.next_step import Rules
from dragoman.router.policy.spending import Tally
from dragoman.router.runs import actions as do
from dragoman.router.runs.course import Course
from dragoman.router.runs.inputs import (
    Abandoned,
    Assigned,
    AttemptEnded,
    AttemptEndStored,
    Durable,
    Input,
    LeaseLost,
    ResultStored,
)
from dragoman.router.runs.machine import RunMachine
from dragoman.router.runs.notices import RunNotices
from dragoman.router.runs.sessions import RunSession
from dragoman.router.runs.state import (
    Deciding,
    Live,
    Queued,
    Rejected,
    Superseded,
    has_adapter,
)
from dragoman.router.storage.ledger import RunLedger
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb
from google.protobuf import duration_pb2
from msgspec import Struct, field

_MEMORY_BYTES = MIB // 4
"""What of a run stays in memory, once the log has it, for readers that come later or are slower."""
_LAG_BYTES = 2 * MAX_EVENT_BYTES
"""How far a reader may be behind what is published: a batch, or an event, drops none that keeps up."""
_ALL_MEMORY_BYTES = 64 * MIB
"""The same of all runs; beyond it, each keeps less."""
_STORED_S = 2.0
"""How long the result waits to be stored before it is published; only a log that is out of order takes longer."""

_log = Logger("dragoman.router")


class RunHost(Struct):
    """What the runs' registry gives all its runs."""

    clock: Clock
    tasks: Tasks
    """Tasks that outlive the calls that start them."""
    memory: SharedBound = field(default_factory=lambda: SharedBound(_ALL_MEMORY_BYTES))
    """Bounds what the events of all runs take."""
    closed: Callable[["Run"], None] = nothing
    """Called once the run is over: its result is published, it is rejected, or another router owns it."""
    orphaned: Callable[["Run"], None] = nothing
    """Called once no client has kept the run alive for too long."""
    heard: Callable[["Run", pb.AgentEvent], None] = nothing
    """Called with each question and each notice of the run, once that is published."""


class Run(RunMachine):
    """One run.

    Args:
        beginning: its first state; ``None`` for a new one.
    """

    ledger: RunLedger
    """Its entry in the run log. Set by its maker, as that entry is made of the run."""

    def __init__(
        self,
        record: RunRecord,
        backend: AdapterBackend,
        host: RunHost,
        beginning: Live | None = None,
    ) -> None:
        super().__init__(beginning or Queued())
        self.record = record
        self.run_id = record.run_id
        self.backend = backend
        """The present adapter."""
        self.backends = [backend]
        """All adapters that the run was sent to, the present one last."""
        self.fanout = EventBuffer(
            record.run_id,
            capacity_bytes=_MEMORY_BYTES,
            reader_lag_bytes=_LAG_BYTES,
            first_sequence=record.last_sequence + 1,
            stored=lambda: self.ledger.logged,
            shared=host.memory,
        )
        self.inherited_events = record.last_sequence
        """How many events other routers had of it."""
        self.span = RunSpan(NO_TRACE)
        """Its span, and the trace that its adapters are to continue."""
        self.adapter_token = ""
        """A credential for calls of its adapters about it; empty for none."""
        self.notices = RunNotices(record, self.fanout, host.clock, self.hear)
        self.keepalive = KeepaliveStreams(record.orphan_after_s, lambda: host.orphaned(self))
        """The streams that keep the run alive."""
        self.session: RunSession | None = None
        """What becomes of its session; ``None`` if that is not stored here."""
        self.spending: Tally | None = None
        """Counts what it spends of the operator's budgets; ``None`` if none applies to it."""
        self.course = Course(Rules(adapter_pb2.Fallback()))
        """What may follow a failure: nothing, unless its attempts are planned."""
        self.suggest: Callable[[pb.FailureKind.ValueType], list[str]] = lambda _kind: []
        """Returns the adapters that could take over from the present one, by how that failed."""
        self.grace: duration_pb2.Duration | None = None
        """Its ``limits.grace``, if its adapter leaves its limits to the router."""
        self.end_upstream: Callable[[], object] = nothing
        """Ends the stream from its adapter, which is all that stops an adapter without Cancel."""
        self.streams_end = Signal()
        """Set when its readers' streams are to end before it does, as the router stops."""
        self.log = _log.bind(run_id=record.run_id, adapter=record.adapter)
        self.tasks = host.tasks
        self._host = host
        self._instance: AdapterInstance | None = None
        self._failed_at = backend, ""
        """Where the last failed attempt was: its adapter, and that one's process."""
        self._work: asyncio.Task[None] | None = None

    @property
    def instance(self) -> AdapterInstance | None:
        """The process that has it, or was asked to take it; ``None`` while there is none."""
        return self._instance if has_adapter(self.state) else None

    @property
    def refusal(self) -> DragomanError | None:
        """The status that its readers get instead of a result."""
        if isinstance(self.state, Superseded):
            return elsewhere(self.run_id)
        return self.state.error if isinstance(self.state, Rejected) else None

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start what follows it, which ends when another router takes the run. If it fails, the run is lost."""
        self._work = self.tasks.start(_guarded(self, work), f"{name} {self.run_id}")

    def assign(self, instance: AdapterInstance, *, is_bound: bool = False) -> None:
        """Say which process gets it, and whether only this router can follow it there."""
        is_registered = self.backend.record.is_registered
        self.send(Assigned(Dispatched(instance.channel.address, instance.instance_id, is_bound, is_registered)))
        self._instance = instance
        self.notices.status = b""
        self.record.instance_id = instance.instance_id
        self.log = self.log.bind(instance=instance.instance_id)

    def append(self, sequence: int, data: bytes, *, changes_record: bool) -> None:
        """Publish and store an event of the adapter that changes no state, but perhaps the record."""
        self.fanout.append(data, sequence)
        self.ledger.append(sequence, data, changes_row=changes_record)
        self._conditions.check()

    def move(self, backend: AdapterBackend) -> None:
        """Say which adapter gets it next."""
        self.backend, self.backends = backend, [*self.backends, backend]
        self.record.adapter = backend.record.type
        self.log = self.log.bind(adapter=backend.record.type)
        if self.session is not None:
            self.session.begin_anew()

    async def end_attempt(self, next_adapter: str, reason: str) -> None:
        """End the failed attempt, as another one follows; unless the run was cancelled or ended meanwhile.

        The end of the attempt is stored before it is published: a router that recovers the run must not get the
        adapter's result under the same sequence. Should the log fail just then, the run waits for it.
        """
        before = self.state
        assert isinstance(before, Deciding)
        if before.progress.is_cancelling:
            return
        ended = attempt_ended(before.result.result, next_adapter, " ".join([reason, *self.notices.rejections]))
        if self.session is not None:
            await self.session.hear(pb.AgentEvent(attempt_ended=ended))
        if self.state is not before:
            return
        self.notices.rejections = ()  # the event has them
        sequence, data = self.record.end_attempt(ended, self._host.clock.time())
        self.send(AttemptEnded(Durable(sequence, data, is_own=True)))
        await self.until(lambda state: not isinstance(state, Deciding))

    def exhaust(self, result: pb.Result) -> None:
        """End it as its last attempt ended, and where that was, as none follows after all; or, if none began, so."""
        self.backend, self.record.instance_id = self._failed_at
        self.record.adapter = self.backend.record.type
        self.log = self.log.bind(adapter=self.record.adapter, instance=self.record.instance_id)
        ending = pb.Result()
        ending.CopyFrom(result)
        self.send(Abandoned(ending))

    def end_streams(self, *, stop: bool = False) -> None:
        """End its readers' streams before it ends, as the router stops.

        Args:
            stop: whether no attempt of it may begin here any more.
        """
        self.streams_end.set()
        self.notices.stop()
        if stop and self._work is not None:
            self._work.cancel()

    def hear(self, event: pb.AgentEvent) -> None:
        """Take note of a question, or of a notice, which is in its row, too."""
        self.ledger.changed()
        self._host.heard(self, event)

    # What its states have done.

    def _execute(self, action: do.Action) -> None:
        match action:
            case do.ReportStatus(status):
                self.record.phase = status.phase
                self.ledger.changed()
                self.notices.report(status)
            case do.StoreAttemptEnd(event):
                self._failed_at = self.backend, self.record.instance_id
                self.ledger.append(event.sequence, event.data)
                self.tasks.start(self._await_stored(event, AttemptEndStored()), f"end attempt {self.run_id}")
            case do.Publish(event):
                self.fanout.append(event.data, event.sequence)
                self.log.info("attempt ended", sequence=event.sequence)
            case do.EndWith(result):
                if result.HasField("failure"):
                    result.failure.errors.extend(self.notices.rejections)
                self.course.note_work(result)
                *dropped, (last, data) = self.record.end(result, self._host.clock.time())
                for sequence, dropping in dropped:
                    self.fanout.append(dropping, sequence, skipped=pb.GAP_REASON_NOT_DURABLE)
                    self.ledger.append(sequence, dropping)
                self._execute(do.StoreResult(Durable(last, data, is_own=True)))
            case do.StoreResult(event):
                self.ledger.over()
                self.ledger.append(event.sequence, event.data)
                self.tasks.start(self._await_stored(event, ResultStored(event)), f"end {self.run_id}")
            case do.PublishResult(event):
                skipped = pb.GAP_REASON_NOT_DURABLE if event.is_own else pb.GAP_REASON_EVICTED
                self.fanout.append(event.data, event.sequence, skipped=skipped)
                ended = self.record.result
                outcome = enum_name(pb.Outcome.DESCRIPTOR, ended.outcome) if ended is not None else ""
                self.log.info("run ended", outcome=outcome, sequence=event.sequence)
                self._close()
            case do.Reject(error):
                self.log.info("run rejected", reason=error.reason.value if error.reason else error.code.name)
                self._close()
            case do.Release():
                self.log.warning("ownership lost to another router")
                self.end_streams(stop=True)  # readers attach again, and are sent to the new owner
                self._close()

    async def _await_stored(self, event: Durable, then: Input) -> None:
        """Wait until an event is stored: should this router die, no other one may find another event in its place.

        A result waits for a short while only; mostly a log that fails just now is written within that time. The end
        of an attempt waits for as long as it takes.
        """
        while not await self.ledger.flushed(_STORED_S) and isinstance(self.state, Deciding):
            self.log.warning("attempt ended, not persisted yet", sequence=event.sequence)
            if self.ledger.is_taken:
                break
        self.send(LeaseLost() if self.ledger.is_taken else then)

    def _close(self) -> None:
        self.notices.stop()
        if not isinstance(self.state, Superseded):
            self.fanout.close()
        self.keepalive.close()
        self._host.closed(self)


async def _guarded(run: Run, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await work()
    except Exception:
        run.send(Abandoned(router_failed()))
        raise  # to be logged
