"""What an adapter may say of a run, event by event.

The rules of ``dragoman.protocol.order``, applied to what one adapter sends over one stream after another: they are
cheaper than its checker, which asks more, and stricter in what only a router can know. The words of a violation say
what was wrong and quote nothing but kinds and numbers.

* A durable event has the next sequence. A stream that was opened anew may begin with events that came before; they
  are passed over. Within one stream no sequence comes twice, and what is left out is told by a ``gap``.
* Its kind fits the phase, its attempt is the present one (or the next, for ``started``).
* A kind that is durable by nature has a sequence.
* It is an event of this run (an event may leave that out, but for those the router reads), and not a router's.
* It is not larger than an event may be.
"""

from dataclasses import dataclass, replace

from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.protocol.order import EPHEMERAL_ALLOWED, TABLE, Phase
from dragoman.v1 import event_pb2 as pb

READ = frozenset({"started", "state", "input_request", "input_resolved", "result"})
"""Durable kinds that the router decides by."""

_LAST_SEQUENCE = 2**62
"""Databases count to 2**63 - 1, and marks are written ahead."""
_LARGEST_EVENT = MAX_EVENT_BYTES + 64 * 1024
"""The contract's limit, and room for the envelope of an adapter that counted its text alone."""


class ProtocolViolationError(Exception):
    """An adapter sent what the contract does not allow; the text says what, and quotes nothing."""


@dataclass(eq=False, slots=True)
class Conduct:
    """Where the stream of one run stands."""

    run_id: str
    last_sequence: int = 0
    attempt: int = 0
    """The present one, or the last that is known after a gap; 0 before the first."""
    phase: Phase | None = Phase.INITIAL
    """``None`` after a gap."""
    heard: int = 0
    """The last sequence of the present stream; 0 before its first durable event."""

    def listen(self) -> None:
        """Say that another stream of the same run begins."""
        self.heard = 0

    def durable(self, event: pb.AgentEvent, kind: str | None, size: int) -> bool:
        """Take the next event with a sequence.

        Args:
            event: the event.
            kind: its body; ``None`` for one of a later revision.
            size: its bytes.

        Returns:
            Whether it is new; False for one that an earlier stream brought.

        Raises:
            ProtocolViolationError: it is not allowed here.
        """
        sequence = event.sequence
        if sequence > _LAST_SEQUENCE:
            raise ProtocolViolationError(f"sequence {sequence} is beyond what can be counted")
        if sequence <= self.heard:
            raise ProtocolViolationError(f"sequence {sequence} came after {self.heard} in one stream")
        self._check_envelope(event, kind, size)
        self.heard = sequence
        if sequence <= self.last_sequence:
            return False
        if sequence != self.last_sequence + 1:
            raise ProtocolViolationError(f"sequence {sequence} came after {self.last_sequence}, without a gap")
        following = self._following(kind or "text", sequence)
        self._check_attempt(event, kind)
        if kind == "result" and event.result.outcome == pb.OUTCOME_UNSPECIFIED:
            raise ProtocolViolationError(f"result (sequence {sequence}) has no outcome")
        self.phase, self.attempt, self.last_sequence = following, event.attempt, sequence
        return True

    def would_take(self, event: pb.AgentEvent, kind: str | None, size: int) -> bool:
        """Tell whether ``durable`` would take this event as a new one, changing nothing."""
        try:
            return replace(self).durable(event, kind, size)
        except ProtocolViolationError:
            return False

    def turn(self) -> int:
        """End the present attempt by the router's word; return the sequence of that."""
        self.last_sequence += 1
        self.phase = Phase.BETWEEN
        return self.last_sequence

    def ephemeral(self, event: pb.AgentEvent, kind: str | None, size: int) -> None:
        """Take an event without a sequence; a ``gap`` also by ``skip``.

        Raises:
            ProtocolViolationError: it is not allowed.
        """
        if kind is not None and kind not in EPHEMERAL_ALLOWED:
            raise ProtocolViolationError(f"{kind} came without a sequence (after {self.last_sequence})")
        self._check_envelope(event, kind, size)

    def skip(self, gap: pb.Gap) -> bool:
        """Take note that events up to ``gap.to_sequence`` will not come; False if they came before.

        Raises:
            ProtocolViolationError: it leaves events out that it does not name.
        """
        first, last = gap.from_sequence, gap.to_sequence
        if last < first or first > self.last_sequence + 1 or last > _LAST_SEQUENCE:
            raise ProtocolViolationError(f"a gap from {first} to {last} came after {self.last_sequence}")
        self.heard = max(self.heard, last)
        if last <= self.last_sequence:
            return False
        self.last_sequence = last
        self.phase = None
        return True

    def _following(self, kind: str, sequence: int) -> Phase:
        # After a gap every phase but the first is possible; the event itself decides.
        possible = (self.phase,) if self.phase is not None else (Phase.ATTEMPT, Phase.BETWEEN)
        if kind == "result" and self.phase is Phase.INITIAL:
            # The table allows it for the word of a router, which no adapter has.
            raise ProtocolViolationError("a result came before started")
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
        # A gap may have swallowed the ends of attempts, never brought one back.
        if self.phase is not None or event.attempt < max(due, 1):
            raise ProtocolViolationError(
                f"{kind or 'an event'} (sequence {event.sequence}) is of attempt {event.attempt} where {due} is due"
            )

    def _check_envelope(self, event: pb.AgentEvent, kind: str | None, size: int) -> None:
        if size > _LARGEST_EVENT:
            raise ProtocolViolationError(f"event {event.sequence} has {size} bytes")
        if event.run_id != self.run_id and (event.run_id or (event.sequence and kind in READ)):
            raise ProtocolViolationError(f"{_name(event, kind)} names {'another run' if event.run_id else 'no run'}")
        if event.origin == pb.EVENT_ORIGIN_ROUTER:
            raise ProtocolViolationError(f"{_name(event, kind)} claims to be a router's")


def _name(event: pb.AgentEvent, kind: str | None) -> str:
    return f"{kind or 'an event'} (sequence {event.sequence})" if event.sequence else f"{kind or 'an event'}"
