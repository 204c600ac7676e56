"""What the router keeps of a run, and what it allows an adapter to say of it.

An adapter is believed as long as its stream is one the contract allows: events of at most a megabyte that parse,
with dense sequences but for gaps that are told, in the order of ``dragoman.protocol.order``. The first that is
not ends the run as LOST with a failure of kind INTERNAL and code ``adapter_protocol_violation``: how the agent
fares nobody can tell any more from such a stream. The adapter is then sent a Cancel.

Small things that harm nobody are passed over: a durable event that comes a second time, fields that are missing
within an event.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.protocol.failures import is_retryable
from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.protocol.order import TABLE, Phase
from dragoman.protocol.wire import FIELD_BY_KIND, KIND_BY_FIELD
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

VIOLATION_CODE = "adapter_protocol_violation"

_LARGEST_EVENT = MAX_EVENT_BYTES + 64 * 1024
"""The contract's limit, and room for the envelope of an adapter that counted its text alone."""
_READ = frozenset(FIELD_BY_KIND[kind] for kind in ("started", "state", "input_request", "input_resolved", "result"))
_MOST_REMARKS = 50


class ProtocolViolationError(Exception):
    """An adapter sent what the contract does not allow; the text says what, and quotes nothing."""


@dataclass(eq=False, slots=True)
class RunRecord:
    """One run, as the router knows it. Times are seconds since the epoch."""

    run_id: str
    adapter: str
    number: int
    """Grows with each run that is accepted."""
    accepted_at: float
    digest: bytes | None = None
    """Of the request; ``None`` for a run that was found by Attach."""
    agent_id: str = ""
    company_id: str = ""
    task_key: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    instance_id: str = ""
    phase: pb.RunPhase.ValueType = pb.RUN_PHASE_STARTING
    attempt: int = 0
    last_sequence: int = 0
    result: pb.Result | None = None
    finished_at: float | None = None
    pending: dict[str, pb.AgentEvent] = field(default_factory=dict)
    """The ``input_request`` events that wait for an answer, without their sequences."""
    remarks: list[str] = field(default_factory=list)
    order: Phase | None = Phase.INITIAL
    """Where the stream stands; ``None`` after a gap."""

    @property
    def is_over(self) -> bool:
        """Whether its result is known."""
        return self.result is not None

    @property
    def has_events(self) -> bool:
        """Whether the adapter has said anything durable."""
        return self.last_sequence > 0

    def remark(self, text: str) -> None:
        """Keep a remark of the router's own; the oldest go first."""
        self.remarks.append(text)
        del self.remarks[:-_MOST_REMARKS]

    def take(self, sequence: int, body: int, data: bytes, now: float) -> bool:
        """Take the adapter's next durable event.

        Args:
            sequence: its sequence.
            body: the field number of its body; 0 for one of a later revision.
            data: the event.
            now: the time.

        Returns:
            Whether it is new; False for one that came before and is to be passed over.

        Raises:
            ProtocolViolationError: it is not allowed here.
        """
        if sequence <= self.last_sequence:
            return False
        if sequence != self.last_sequence + 1:
            raise ProtocolViolationError(f"sequence {sequence} came after {self.last_sequence}, without a gap")
        if len(data) > _LARGEST_EVENT:
            raise ProtocolViolationError(f"event {sequence} has {len(data)} bytes")
        following = self._following(KIND_BY_FIELD.get(body, "text"), sequence)
        if body in _READ:
            self._read(pb.AgentEvent.FromString(data), now)
        self.order = following
        self.last_sequence = sequence
        return True

    def skip(self, gap: pb.Gap) -> None:
        """Take note that events up to ``gap.to_sequence`` will not come."""
        if gap.to_sequence > self.last_sequence:
            self.last_sequence = gap.to_sequence
            self.order = None
            self.pending.clear()

    def remember_request(self, event: pb.AgentEvent) -> bool:
        """Take a re-sent copy of a pending request; True if it was not known."""
        return self._ask(event)

    def _following(self, kind: str, sequence: int) -> Phase:
        # After a gap every phase but the first is possible; the event itself decides.
        possible = (self.order,) if self.order is not None else (Phase.ATTEMPT, Phase.BETWEEN)
        for phase in possible:
            following = TABLE[phase].get(kind)
            if following is not None:
                return following
        where = self.order.value if self.order is not None else "any"
        raise ProtocolViolationError(f"{kind} (sequence {sequence}) is out of order in phase {where!r}")

    def _read(self, event: pb.AgentEvent, now: float) -> None:
        kind = event.WhichOneof("body")
        if event.run_id != self.run_id:
            raise ProtocolViolationError(f"{kind} names another run")
        if kind == "started":
            self._start(event)
        elif kind == "state":
            self.phase = event.state.phase
        elif kind == "input_request":
            self._ask(event)
        elif kind == "input_resolved":
            self.pending.pop(event.input_resolved.id, None)
        elif kind == "result":
            if self.order is Phase.INITIAL and event.origin != pb.EVENT_ORIGIN_ROUTER:
                raise ProtocolViolationError("a result came before started")
            self._finish(event.result, now)

    def _start(self, event: pb.AgentEvent) -> None:
        self.attempt = event.attempt or self.attempt + 1
        self.phase = pb.RUN_PHASE_STARTING
        if not self.labels:
            self.labels = dict(event.started.labels)

    def _ask(self, event: pb.AgentEvent) -> bool:
        is_new = event.input_request.id not in self.pending
        copy = pb.AgentEvent()
        copy.CopyFrom(event)
        copy.ClearField("sequence")
        self.pending[event.input_request.id] = copy
        return is_new

    def _finish(self, result: pb.Result, now: float) -> None:
        self.result = result
        self.finished_at = now
        self.phase = pb.RUN_PHASE_UNSPECIFIED
        self.pending.clear()

    def end(self, result: pb.Result, now: float) -> tuple[int, bytes]:
        """End the run by the router's own word, as nobody else can any more.

        Returns:
            The sequence and the event.
        """
        result.duration.FromNanoseconds(max(0, int((now - self.accepted_at) * 1e9)))
        self.last_sequence += 1
        self.order = Phase.DONE
        self._finish(result, now)
        return self.last_sequence, self.own_event(now, sequence=self.last_sequence, result=result)

    def own_event(self, now: float, *, sequence: int = 0, **body: pb.Result | pb.Notice) -> bytes:
        """Return an event of the router's own; without a sequence it is ephemeral."""
        event = pb.AgentEvent(
            sequence=sequence,
            run_id=self.run_id,
            attempt=self.attempt,
            origin=pb.EVENT_ORIGIN_ROUTER,
            **body,  # type: ignore[arg-type] # the stubs know the fields one by one
        )
        event.time.FromNanoseconds(int(now * 1e9))
        return event.SerializeToString()

    def summary(self, readers: int) -> router_pb2.RunSummary:
        """Return what ``ListRuns`` tells of it."""
        summary = router_pb2.RunSummary(
            run_id=self.run_id,
            adapter=self.adapter,
            instance_id=self.instance_id,
            agent_id=self.agent_id,
            company_id=self.company_id,
            task_key=self.task_key,
            labels=self.labels,
            phase=self.phase,
            last_sequence=self.last_sequence,
            result=self.result,
            readers=readers,
            remarks=self.remarks,
            attempt=self.attempt,
        )
        summary.accepted_at.FromNanoseconds(int(self.accepted_at * 1e9))
        if self.finished_at is not None:
            summary.finished_at.FromNanoseconds(int(self.finished_at * 1e9))
        return summary


def lost(kind: pb.FailureKind.ValueType, code: str, message: str) -> pb.Result:
    """Return the result of a run of which nobody knows how it ended."""
    failure = pb.Failure(kind=kind, code=code, message=message, retryable=is_retryable(kind))
    return pb.Result(outcome=pb.OUTCOME_LOST, failure=failure)


def never_started(reason: str) -> pb.Result:
    """Return the result of a run that was cancelled before its adapter had it."""
    return pb.Result(outcome=pb.OUTCOME_CANCELLED, subtype="not_started", summary=reason)


def matches(record: RunRecord, request: router_pb2.ListRunsRequest) -> bool:
    """Tell whether ``request`` asks for this run."""
    if request.live_only and record.is_over:
        return False
    if request.outcome and (record.result is None or record.result.outcome != request.outcome):
        return False
    wanted = (
        (request.adapter, record.adapter),
        (request.agent_id, record.agent_id),
        (request.task_key, record.task_key),
    )
    same = all(asked in {"", have} for asked, have in wanted)
    return same and all(record.labels.get(key) == value for key, value in request.labels.items())


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, how many and how large finished runs are kept."""

    seconds: float
    most_runs: int
    most_bytes: int

    def to_forget(self, finished: Iterable[tuple[RunRecord, int]], now: float) -> Sequence[str]:
        """Return the ids of finished runs that are to be forgotten.

        Args:
            finished: runs that are over, with the bytes each one keeps.
            now: the time.
        """
        newest = sorted(finished, key=lambda pair: pair[0].finished_at or now, reverse=True)
        forgotten: list[str] = []
        kept_bytes = 0
        for place, (record, size) in enumerate(newest):
            kept_bytes += size
            is_old = now - (record.finished_at or now) >= self.seconds
            if is_old or place >= self.most_runs or kept_bytes > self.most_bytes:
                forgotten.append(record.run_id)
        return forgotten
