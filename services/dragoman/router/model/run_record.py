"""The router's record of a run.

The record accepts an adapter's events as long as its stream is valid by the rules of ``model.stream_validator``.
The first violation ends the run as LOST with a failure of kind INTERNAL and code ``adapter_protocol_violation``,
because such a stream does not say reliably how the agent ended. The router then sends the adapter a Cancel. Harmless
defects, such as missing fields within a body, are no violations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dragoman.protocol.failures import is_retryable
from dragoman.protocol.order import Phase
from dragoman.router.model.spending import Account, Spent
from dragoman.router.model.stored import AHEAD, StoredRun
from dragoman.router.model.stream_validator import ProtocolViolationError, StreamValidator
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb

VIOLATION_CODE = "adapter_protocol_violation"
NOT_STARTED = "not_started"
"""The failure code of a lost run that no adapter ever had."""

_MAX_REMARKS = 50
_IN_SUMMARY = ("started_by", "agent_id", "company_id", "task_key", "agent_name", "instance_id", "phase")
"""What a run's summary has under the same names, and a router that takes the run over reads again from there."""


@dataclass(eq=False, slots=True)
class RunRecord:
    """The router's record of one run. Times are seconds since the epoch."""

    run_id: str
    adapter: str
    accepted_at: float
    digest: bytes | None = None
    """A digest of the request; ``None`` if no adapter ever had the run."""
    started_by: str = ""
    """The name of the caller who started it."""
    agent_id: str = ""
    company_id: str = ""
    task_key: str = ""
    agent_name: str = ""
    """The stored agent that filled the request; empty for none."""
    session_key: adapter_pb2.SessionKey | None = None
    """The key that its session is stored under; ``None`` if it is not stored."""
    labels: Mapping[str, str] = field(default_factory=dict)
    instance_id: str = ""
    phase: pb.RunPhase.ValueType = pb.RUN_PHASE_STARTING
    result: pb.Result | None = None
    finished_at: float | None = None
    pending: dict[str, pb.AgentEvent] = field(default_factory=dict)
    """The pending ``input_request`` events, without their sequences."""
    inputs: dict[str, None] = field(default_factory=dict)
    """The IDs of inputs that were accepted, and neither taken nor dropped yet; in order."""
    orphan_after_s: float = 0.0
    """How long it continues while no client keeps it alive."""
    published_before: int = 0
    """A router that is gone may have published sequences up to this one."""
    spent: Mapping[Account, Spent] = field(default_factory=dict)
    """What it has used of the operator's budgets."""
    _remarks: dict[str, int] = field(default_factory=dict)
    validator: StreamValidator = field(init=False)
    """The state of the adapter's stream."""

    def __post_init__(self) -> None:
        """Create the validator."""
        self.validator = StreamValidator(self.run_id)

    @classmethod
    def of_stored(cls, stored: StoredRun) -> "RunRecord":
        """Return the record of a run that continues after the last event that another router stored."""
        summary = stored.state.run
        # The row's adapter: what is at a configured address may not have said yet what it is.
        record = cls(
            run_id=stored.run_id,
            adapter=stored.adapter,
            accepted_at=stored.accepted_at,
            digest=stored.digest,
            labels=dict(summary.labels),
            inputs=dict.fromkeys(summary.waiting_input_ids),
            session_key=summary.session_key if summary.HasField("session_key") else None,
            orphan_after_s=stored.orphan_after,
            published_before=stored.logged + AHEAD,
            **{name: getattr(summary, name) for name in _IN_SUMMARY},
        )
        record.validator.resume_at(stored.logged, summary.attempt)
        return record

    @property
    def last_sequence(self) -> int:
        """The last sequence."""
        return self.validator.last_sequence

    @property
    def attempt(self) -> int:
        """The present attempt; 0 before the first."""
        return self.validator.attempt

    @property
    def is_free(self) -> bool:
        """Whether the run's ID may be used again, as no adapter ever had the run."""
        return self.result is not None and self.digest is None

    @property
    def remarks(self) -> list[str]:
        """The router's notices about the run, oldest first, with the number of times if more than one."""
        return [text if times == 1 else f"{text} ({times} times)" for text, times in self._remarks.items()]

    def remark(self, text: str) -> bool:
        """Add a notice of the router, or count a repeated one; the oldest are dropped. True if it is new."""
        times = self._remarks.get(text, 0) + 1
        self._remarks[text] = times
        if len(self._remarks) > _MAX_REMARKS:
            del self._remarks[next(iter(self._remarks))]
        return times == 1

    def accept(self, event: pb.AgentEvent, size: int, now: float) -> bool:
        """Accept the adapter's next durable event, of ``size`` bytes; False for a known one, which is to be skipped.

        Raises:
            ProtocolViolationError: it is not allowed here.
        """
        kind = event.WhichOneof("body")
        is_new = self.validator.accept_durable(event, kind, size)
        if not is_new:
            return False
        match kind:
            case "started":
                self.phase = pb.RUN_PHASE_STARTING
                self.labels = self.labels or dict(event.started.labels)
            case "state":
                self.phase = event.state.phase
            case "input_request":
                self.remember_request(event)
            case "input_resolved":
                self.pending.pop(event.input_resolved.id, None)
            case "input_accepted":
                self.inputs[event.input_accepted.input_id] = None
            case "input_dropped":
                self.inputs.pop(event.input_dropped.input_id, None)
            case "message" if event.message.input_id:
                self.inputs.pop(event.message.input_id, None)
            case "result":
                self._finish(event.result, now)
        return True

    def accept_gap(self, gap: pb.Gap) -> None:
        """Accept that events up to ``gap.to_sequence`` are missing.

        Raises:
            ProtocolViolationError: events before the gap are missing, too.
        """
        if self.validator.accept_gap(gap):
            self.pending.clear()

    def remember_request(self, event: pb.AgentEvent) -> bool:
        """Accept an input request, or a re-sent copy of a pending one; True if it was unknown."""
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
        self.inputs.clear()

    def end_attempt(self, ended: pb.AttemptEnded, now: float) -> tuple[int, bytes]:
        """End an attempt that another one follows; return the event in place of its result, with its sequence."""
        sequence = self.validator.end_attempt()
        self.phase = pb.RUN_PHASE_RETRYING
        self.pending.clear()
        return sequence, self.own_event(now, sequence=sequence, attempt_ended=ended)

    def end(self, result: pb.Result, now: float) -> list[tuple[int, bytes]]:
        """End the run by a result of the router; return the events with their sequences, the result last.

        Before it, what waited for the agent is dropped.
        """
        result.duration.FromNanoseconds(max(0, int((now - self.accepted_at) * 1e9)))
        if result.failure.code == NOT_STARTED:
            self.digest = None
        first = max(self.validator.last_sequence, self.published_before) + 1
        events = [
            (sequence, self.own_event(now, sequence=sequence, input_dropped=_lost_input(input_id)))
            for sequence, input_id in enumerate(self.inputs, first)
        ]
        self.validator.last_sequence = last = first + len(events)
        self.validator.phase = Phase.DONE
        self._finish(result, now)
        return [*events, (last, self.own_event(now, sequence=last, result=result))]

    def own_event(
        self,
        now: float,
        *,
        sequence: int = 0,
        **body: pb.Result | pb.Notice | pb.State | pb.AttemptEnded | pb.Heartbeat | pb.InputDropped,
    ) -> bytes:
        """Return an event of the router; without a sequence it is ephemeral."""
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
        """Return its summary for ``ListRuns``."""
        summary = router_pb2.RunSummary(
            run_id=self.run_id,
            adapter=self.adapter,
            labels=self.labels,
            last_sequence=self.last_sequence,
            result=self.result,
            readers=readers,
            remarks=self.remarks,
            attempt=self.attempt,
            waiting_input_ids=self.inputs,
            session_key=self.session_key,
            **{name: getattr(self, name) for name in _IN_SUMMARY},
        )
        summary.accepted_at.FromNanoseconds(int(self.accepted_at * 1e9))
        if self.finished_at is not None:
            summary.finished_at.FromNanoseconds(int(self.finished_at * 1e9))
        return summary


def _lost_input(input_id: str) -> pb.InputDropped:
    message = "What had the input is gone. It is unknown whether the agent took it."
    return pb.InputDropped(input_id=input_id, reason="agent_lost", message=message)


def lost_result(kind: pb.FailureKind.ValueType, code: str, message: str) -> pb.Result:
    """Return the result of a run whose outcome is unknown."""
    failure = pb.Failure(kind=kind, code=code, message=message, retryable=is_retryable(kind))
    return pb.Result(outcome=pb.OUTCOME_LOST, failure=failure)


def adapter_lost(adapter: str, why: str) -> pb.Result:
    """Return the result of a run whose adapter is gone."""
    message = f"Adapter {adapter!r} {why}. The outcome of the run is unknown."
    return lost_result(pb.FAILURE_KIND_ADAPTER_LOST, "adapter_lost", message)


def not_started(adapter: str) -> pb.Result:
    """Return the result of a run whose router died before an adapter had it."""
    message = f"The router that accepted the run stopped before adapter {adapter!r} had it. Send the request again."
    result = lost_result(pb.FAILURE_KIND_ADAPTER_LOST, NOT_STARTED, message)
    result.failure.work_begun = False
    return result


def protocol_violated(adapter: str, error: ProtocolViolationError) -> pb.Result:
    """Return the result of a run whose adapter sent what the router cannot follow."""
    message = f"Adapter {adapter!r} violated the protocol: {error}. The router stopped following the run."
    return lost_result(pb.FAILURE_KIND_INTERNAL, VIOLATION_CODE, message)


def router_failed() -> pb.Result:
    """Return the result of a run that a fault of the router ended."""
    message = "The router failed internally while it followed the run. Search its log for the run ID."
    return lost_result(pb.FAILURE_KIND_INTERNAL, "router_failed", message)


def cancelled_before_start() -> pb.Result:
    """Return the result of a run that was cancelled before an adapter accepted it."""
    summary = "The run was cancelled before an adapter accepted it."
    return pb.Result(outcome=pb.OUTCOME_CANCELLED, subtype="not_started", summary=summary, tree_confirmed_dead=True)


def cancelled_by_router(adapter: str) -> pb.Result:
    """Return the result of a cancelled run whose adapter cannot cancel, and so cannot say what is left of it."""
    summary = f"The run was cancelled. Adapter {adapter!r} does not implement Cancel: the router ended its stream."
    return pb.Result(outcome=pb.OUTCOME_CANCELLED, subtype="ended_by_router", summary=summary)


def cancelled_between_attempts(failed: pb.Result) -> pb.Result:
    """Return the result of a run that was cancelled between two attempts."""
    summary = "The run was cancelled between two attempts."
    result = pb.Result(outcome=pb.OUTCOME_CANCELLED, subtype="between_attempts", summary=summary)
    if failed.HasField("tree_confirmed_dead"):
        result.tree_confirmed_dead = failed.tree_confirmed_dead
    return result
