"""Validates the events of a run that an adapter sends.

These are the rules of ``dragoman.protocol.order``, applied across the successive streams of one run: cheaper than the
full checker there, and stricter where only a router can know. The message of a violation contains only kinds and
numbers.

* A durable event has the next sequence. A stream that was reopened may begin with known events, which are skipped.
  Within one stream no sequence repeats, and a ``gap`` names sequences that are left out.
* Its kind fits the phase, and its attempt is the present one (or the next, for ``started``).
* A kind that is durable by nature has a sequence.
* It belongs to this run (``run_id`` may be empty in events that the router does not evaluate), and its origin is not
  a router.
* It is not larger than the maximum size of an event.
* A delta of a text continues where the last one ended.
* A result has an outcome, and a failure if the outcome is one.
"""

from dragoman.protocol.items import ItemLengths
from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_EVENT_BYTES
from dragoman.protocol.order import EPHEMERAL_ALLOWED, TABLE, UNKNOWN, Phase
from dragoman.protocol.wire import FIELD_BY_KIND, NEVER_BATCHED
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field
from msgspec.structs import replace

READ = frozenset({"started", "state", "input_request", "input_resolved", "input_accepted", "input_dropped", "result"})
"""Durable kinds that the router evaluates."""

_FAILURES = frozenset({pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT, pb.OUTCOME_LOST})
_LAST_SEQUENCE = 2**62
"""Databases count to 2**63 - 1, and the end of a lost run is ahead of the last sequence."""
_LARGEST_EVENT = MAX_EVENT_BYTES + 64 * 1024
"""The contract's limit, and room for the envelope, in case an adapter counted its text alone."""


class ProtocolViolationError(Exception):
    """An adapter violated the protocol; the message says how, and quotes none of the event's content."""


class StreamValidator(Struct, eq=False):
    """The state of one run's event stream."""

    run_id: str
    last_sequence: int = 0
    attempt: int = 0
    """The present attempt, or the last known one after a gap; 0 before the first."""
    phase: Phase | None = Phase.INITIAL
    """The phase of ``dragoman.protocol.order``; ``None`` after a gap, as it is unknown then."""
    stream_sequence: int = 0
    """The last sequence of the present stream; 0 before its first durable event."""
    text_lengths: ItemLengths = field(default_factory=ItemLengths)
    """The lengths of the texts of the present attempt."""

    def resume_at(self, last_sequence: int, attempt: int) -> None:
        """Continue after an event that another router received."""
        self.last_sequence, self.attempt = last_sequence, attempt
        self.phase = None if last_sequence else Phase.INITIAL
        if last_sequence:
            self.text_lengths.miss()

    def begin_stream(self) -> None:
        """Begin another stream of the same run."""
        self.stream_sequence = 0

    def accept_durable(self, event: pb.AgentEvent, kind: str | None, size: int) -> bool:
        """Accept the next durable event, of ``size`` bytes; False for one that an earlier stream contained.

        Its ``kind`` is the name of its body, ``None`` for one of a later revision.

        Raises:
            ProtocolViolationError: it is not allowed here.
        """
        sequence = event.sequence
        if sequence > _LAST_SEQUENCE:
            raise ProtocolViolationError(f"sequence {sequence} exceeds {_LAST_SEQUENCE}")
        if sequence <= self.stream_sequence:
            raise ProtocolViolationError(f"sequence {sequence} followed {self.stream_sequence} in one stream")
        self._check_envelope(event, kind, size)
        self.stream_sequence = sequence
        if sequence <= self.last_sequence:
            return False
        if sequence != self.last_sequence + 1:
            raise ProtocolViolationError(f"sequence {sequence} followed {self.last_sequence} without a gap event")
        following = self._next_phase(kind or UNKNOWN, sequence)
        self._check_attempt(event, kind)
        self._check_body(event, kind)
        self.phase, self.attempt, self.last_sequence = following, event.attempt, sequence
        return True

    def would_accept(self, event: pb.AgentEvent, kind: str | None, size: int) -> bool:
        """Return whether ``accept_durable`` would accept this event as new, without changing the state."""
        try:
            return replace(self).accept_durable(event, kind, size)
        except ProtocolViolationError:
            return False

    def end_attempt(self) -> int:
        """End the present attempt on the router's behalf; return the sequence of the event that says so."""
        self.last_sequence += 1
        self.phase = Phase.BETWEEN
        return self.last_sequence

    def check_ephemeral(self, event: pb.AgentEvent, kind: str | None, size: int) -> None:
        """Check an ephemeral event; a ``gap`` needs ``accept_gap``, too.

        Raises:
            ProtocolViolationError: it is not allowed.
        """
        if kind is not None and kind not in EPHEMERAL_ALLOWED:
            raise ProtocolViolationError(f"{kind} has no sequence (after sequence {self.last_sequence})")
        self._check_envelope(event, kind, size)

    def accept_gap(self, gap: pb.Gap) -> bool:
        """Accept that events up to ``gap.to_sequence`` are missing; False if they were received before.

        Raises:
            ProtocolViolationError: events before the gap are missing, too.
        """
        first, last = gap.from_sequence, gap.to_sequence
        if last < first or first > self.last_sequence + 1 or last > _LAST_SEQUENCE:
            raise ProtocolViolationError(f"a gap from {first} to {last} followed sequence {self.last_sequence}")
        self.stream_sequence = max(self.stream_sequence, last)
        if last <= self.last_sequence:
            return False
        self.last_sequence = last
        self.phase = None
        self.text_lengths.miss()
        return True

    def _next_phase(self, kind: str, sequence: int) -> Phase:
        # After a gap every phase but the first is possible; the event decides.
        possible = (self.phase,) if self.phase is not None else (Phase.ATTEMPT, Phase.BETWEEN)
        if kind == "result" and self.phase is Phase.INITIAL:
            # The table allows it for a router only.
            raise ProtocolViolationError("result precedes started")
        for phase in possible:
            following = TABLE[phase].get(kind)
            if following is not None:
                return following
        where = self.phase.value if self.phase is not None else "any"
        raise ProtocolViolationError(f"{kind} (sequence {sequence}) is out of order in phase {where!r}")

    def _check_attempt(self, event: pb.AgentEvent, kind: str | None) -> None:
        due = self.attempt + 1 if kind == "started" else self.attempt
        if event.attempt == due and due:
            return
        # A gap may hide the ends of attempts, so a later attempt is possible, an earlier one is not.
        if self.phase is not None or event.attempt < max(due, 1):
            raise ProtocolViolationError(
                f"{kind or 'an event'} (sequence {event.sequence}) has attempt {event.attempt}, expected {due}"
            )

    def _check_body(self, event: pb.AgentEvent, kind: str | None) -> None:
        problem = ""
        if kind == "started":
            self.text_lengths.begin()
        elif kind == "text":
            problem = self.text_lengths.take(kind, event.text)
        elif kind == "thinking":
            problem = self.text_lengths.take(kind, event.thinking)
        elif kind == "result" and event.result.outcome == pb.OUTCOME_UNSPECIFIED:
            problem = "no outcome"
        elif kind == "result" and event.result.outcome in _FAILURES and not event.result.HasField("failure"):
            problem = f"outcome {pb.Outcome.Name(event.result.outcome)} but no `failure`"
        if problem:
            raise ProtocolViolationError(f"{_event_name(event, kind)} has {problem}")

    def _check_envelope(self, event: pb.AgentEvent, kind: str | None, size: int) -> None:
        if size > _LARGEST_EVENT:
            raise ProtocolViolationError(f"event {event.sequence} has {size} bytes, more than {MAX_EVENT_BYTES}")
        if event.run_id != self.run_id and (event.run_id or (event.sequence and kind in READ)):
            raise ProtocolViolationError(
                f"{_event_name(event, kind)} names {'another run' if event.run_id else 'no run'}"
            )
        if event.origin == pb.EVENT_ORIGIN_ROUTER:
            raise ProtocolViolationError(f"{_event_name(event, kind)} has origin ROUTER, which only a router may set")


def check_batch(event: pb.AgentEvent, size: int) -> None:
    """Check a batch of ``size`` bytes as such. Its events are checked one by one, like those that come alone.

    Raises:
        ProtocolViolationError: it is not allowed.
    """
    events = event.batch.events
    if not events or len(events) > MAX_BATCH_EVENTS or size > MAX_BATCH_BYTES:
        raise ProtocolViolationError(f"a batch has {len(events)} events and {size} bytes")
    for inner in events:
        kind = inner.WhichOneof("body")
        if not inner.sequence or (kind and FIELD_BY_KIND[kind] in NEVER_BATCHED):
            raise ProtocolViolationError(f"a batch contains {_event_name(inner, kind)}")
    if event.sequence != events[-1].sequence:
        raise ProtocolViolationError(f"a batch up to sequence {events[-1].sequence} has sequence {event.sequence}")


def _event_name(event: pb.AgentEvent, kind: str | None) -> str:
    return f"{kind or 'an event'} (sequence {event.sequence})" if event.sequence else f"{kind or 'an event'}"
