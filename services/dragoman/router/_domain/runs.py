"""What the router keeps of a run, and what it allows an adapter to say of it.

An adapter is believed as long as its stream is one the contract allows, by the rules of ``_domain.conduct``. The
first event that is not ends the run as LOST with a failure of kind INTERNAL and code ``adapter_protocol_violation``:
how the agent fares nobody can tell any more from such a stream. The adapter is then sent a Cancel.

Small things that harm nobody are passed over, such as fields that are missing within a body.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.protocol.failures import is_retryable
from dragoman.protocol.order import Phase
from dragoman.router._domain.conduct import READ, Conduct
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb

VIOLATION_CODE = "adapter_protocol_violation"

_MOST_REMARKS = 50


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
    session_key: adapter_pb2.SessionKey | None = None
    """What the session it leaves is stored by; ``None`` if it is not."""
    labels: Mapping[str, str] = field(default_factory=dict)
    instance_id: str = ""
    phase: pb.RunPhase.ValueType = pb.RUN_PHASE_STARTING
    result: pb.Result | None = None
    finished_at: float | None = None
    pending: dict[str, pb.AgentEvent] = field(default_factory=dict)
    """The ``input_request`` events that wait for an answer, without their sequences."""
    reserved: int = 0
    """Sequences up to this one may have been told by a router that is gone."""
    _remarks: dict[str, int] = field(default_factory=dict)
    conduct: Conduct = field(init=False)
    """Where the adapter's stream stands."""

    def __post_init__(self) -> None:
        """Begin before the first event."""
        self.conduct = Conduct(self.run_id)

    def go_on(self, last_sequence: int, *, attempt: int, reserved: int) -> None:
        """Begin where another router has written the last event down.

        Args:
            last_sequence: of that event.
            attempt: the attempt it was in.
            reserved: up to which sequence that router may have told more.
        """
        self.conduct.last_sequence, self.conduct.attempt = last_sequence, attempt
        self.conduct.phase = None if last_sequence else Phase.INITIAL
        self.reserved = reserved

    @property
    def last_sequence(self) -> int:
        """The last sequence there is."""
        return self.conduct.last_sequence

    @property
    def attempt(self) -> int:
        """The present attempt; 0 before the first."""
        return self.conduct.attempt

    @property
    def is_over(self) -> bool:
        """Whether its result is known."""
        return self.result is not None

    @property
    def has_events(self) -> bool:
        """Whether the adapter has said anything durable."""
        return self.last_sequence > 0

    @property
    def remarks(self) -> list[str]:
        """The router's own remarks, oldest first, with how often each was made if that was more than once."""
        return [text if times == 1 else f"{text} ({times} times)" for text, times in self._remarks.items()]

    def remark(self, text: str) -> bool:
        """Keep a remark of the router's own, or count it; the oldest go first. True if it is new."""
        times = self._remarks.get(text, 0) + 1
        self._remarks[text] = times
        if len(self._remarks) > _MOST_REMARKS:
            del self._remarks[next(iter(self._remarks))]
        return times == 1

    def take(self, event: pb.AgentEvent, size: int, now: float) -> bool:
        """Take the adapter's next durable event.

        Args:
            event: the event.
            size: its bytes.
            now: the time.

        Returns:
            Whether it is new; False for one that came before and is to be passed over.

        Raises:
            ProtocolViolationError: it is not allowed here.
        """
        kind = event.WhichOneof("body")
        is_new = self.conduct.durable(event, kind, size)
        if is_new and kind in READ:
            self._read(event, kind, now)
        return is_new

    def skip(self, gap: pb.Gap) -> None:
        """Take note that events up to ``gap.to_sequence`` will not come.

        Raises:
            ProtocolViolationError: it leaves events out that it does not name.
        """
        if self.conduct.skip(gap):
            self.pending.clear()

    def remember_request(self, event: pb.AgentEvent) -> bool:
        """Take a re-sent copy of a pending request; True if it was not known."""
        return self._ask(event)

    def _read(self, event: pb.AgentEvent, kind: str, now: float) -> None:
        if kind == "started":
            self._start(event)
        elif kind == "state":
            self.phase = event.state.phase
        elif kind == "input_request":
            self._ask(event)
        elif kind == "input_resolved":
            self.pending.pop(event.input_resolved.id, None)
        elif kind == "result":
            self._finish(event.result, now)

    def _start(self, event: pb.AgentEvent) -> None:
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

    def turn(self, ended: pb.AttemptEnded, now: float) -> tuple[int, bytes]:
        """End an attempt that another one follows, by the router's word in place of the adapter's result.

        Returns:
            The sequence and the event.
        """
        sequence = self.conduct.turn()
        self.phase = pb.RUN_PHASE_RETRYING
        self.pending.clear()
        return sequence, self.own_event(now, sequence=sequence, attempt_ended=ended)

    def end(self, result: pb.Result, now: float) -> tuple[int, bytes]:
        """End the run by the router's own word, as nobody else can any more.

        Returns:
            The sequence and the event.
        """
        result.duration.FromNanoseconds(max(0, int((now - self.accepted_at) * 1e9)))
        self.conduct.last_sequence = max(self.conduct.last_sequence, self.reserved) + 1
        self.conduct.phase = Phase.DONE
        self._finish(result, now)
        return self.last_sequence, self.own_event(now, sequence=self.last_sequence, result=result)

    def own_event(
        self,
        now: float,
        *,
        sequence: int = 0,
        **body: pb.Result | pb.Notice | pb.State | pb.AttemptEnded | pb.Heartbeat,
    ) -> bytes:
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
            session_key=self.session_key,
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
    return pb.Result(outcome=pb.OUTCOME_CANCELLED, subtype="not_started", summary=reason, tree_confirmed_dead=True)


def between(failed: pb.Result, reason: str) -> pb.Result:
    """Return the result of a run that was cancelled when one attempt had failed and the next was not begun."""
    result = pb.Result(outcome=pb.OUTCOME_CANCELLED, subtype="between_attempts", summary=reason)
    if failed.HasField("tree_confirmed_dead"):
        result.tree_confirmed_dead = failed.tree_confirmed_dead
    return result


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
