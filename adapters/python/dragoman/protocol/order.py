"""The order of a run's events: the rules, the table, and a checker.

Two rules:

1. An event is *durable* (it has a sequence) or *ephemeral* (it has none). Durable events are dense: each has
   the sequence after the last one's. Only a ``gap``, which speaks to one reader, lets it go on further ahead.
2. What a durable event may be depends only on the phase the run is in, and decides the next phase::

       INITIAL --started--> ATTEMPT --attempt_ended--> BETWEEN --started--> ATTEMPT
       ATTEMPT --everything else--> ATTEMPT
       ATTEMPT, BETWEEN --result--> DONE

   A ``result`` straight from INITIAL is the word of a router whose adapter was gone before its first event.

Ephemeral events are heartbeats, gaps, ``replay_done``, states and notices of a router, and copies of pending
``input_request``; they are allowed in every phase but DONE and change nothing.

A reader that joins at the end, with the sequence of the ``result`` as its cursor, gets that ``result`` again: it is
the one durable event that may come with the cursor's own sequence, and then the only one.

A reader that joins in the middle does not know the phase. The checker therefore keeps the *set* of phases
the run may be in; each event narrows it. SDK, router, client and conformance kit all use this table, which is data
beside the contract (``order.json``), for other languages too.
"""

import enum
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from dragoman.protocol.wire import FIELD_BY_KIND, NEVER_BATCHED
from dragoman.v1 import event_pb2 as pb


class Phase(enum.Enum):
    """Where a run's stream stands."""

    INITIAL = "initial"
    ATTEMPT = "attempt"
    BETWEEN = "between"
    DONE = "done"


_DATA: Final[dict[str, Any]] = json.loads(Path(pb.__file__).with_name("order.json").read_text(encoding="utf-8"))
"""What checkers in all languages read."""

EPHEMERAL_ONLY: Final[frozenset[str]] = frozenset(_DATA["ephemeral_only"])
"""Kinds that never have a sequence."""
EPHEMERAL_ALLOWED: Final[frozenset[str]] = frozenset(_DATA["ephemeral_allowed"])
"""Kinds that may come without a sequence."""

TABLE: Final[dict[Phase, dict[str, Phase]]] = {
    Phase(phase): {kind: Phase(following) for kind, following in kinds.items()}
    for phase, kinds in _DATA["phases"].items()
}
"""``TABLE[phase][kind]`` is the next phase of a durable event; a kind that is missing is out of order."""
UNKNOWN: Final[str] = _DATA["unknown"]
"""The kind that stands for one of a later revision."""

_ANY = frozenset({Phase.INITIAL, Phase.ATTEMPT, Phase.BETWEEN})


class OrderError(Exception):
    """An event is out of order; the text says which and why."""


class OrderChecker:
    """Checks one reader's stream, event by event.

    Args:
        after_sequence: the cursor the reader joined with; 0 from the beginning.
    """

    def __init__(self, after_sequence: int = 0) -> None:
        self.last_sequence = after_sequence
        self.phases = _ANY if after_sequence else frozenset({Phase.INITIAL})
        self.attempt = 0
        self._run_id = ""
        self._complete = after_sequence == 0
        self._cursor = after_sequence
        self._asked: set[str] = set()
        self._pending: set[str] = set()
        self._accepted: set[str] = set()
        self._waiting: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether the result has been seen."""
        return self.phases == {Phase.DONE}

    def observe(self, event: pb.AgentEvent) -> None:
        """Read the next event.

        Raises:
            OrderError: it is out of order. The checker must not be used further.
        """
        if self.is_done:
            raise OrderError(f"{_name(event)} after the result")
        if self._run_id and event.run_id and event.run_id != self._run_id:
            raise OrderError(f"an event of run {event.run_id} in the stream of {self._run_id}")
        self._run_id = self._run_id or event.run_id
        kind = event.WhichOneof("body")
        if kind == "batch":
            self._observe_batch(event)
        elif event.sequence:
            self._observe_durable(event, kind)
        else:
            self._observe_ephemeral(event, kind)

    def observe_all(self, events: Iterable[pb.AgentEvent]) -> None:
        """Read several events."""
        for event in events:
            self.observe(event)

    def finish(self) -> None:
        """Note that the stream ended with status OK.

        Raises:
            OrderError: there was no result.
        """
        if not self.is_done:
            raise OrderError("the stream ended without a result")

    def _observe_batch(self, event: pb.AgentEvent) -> None:
        events = event.batch.events
        if not events:
            raise OrderError("an empty batch")
        if len(events) > MAX_BATCH_EVENTS or event.ByteSize() > MAX_BATCH_BYTES:
            raise OrderError("a batch that is too large")
        for inner in events:
            inner_kind = inner.WhichOneof("body")
            if FIELD_BY_KIND.get(inner_kind or "", 0) in NEVER_BATCHED:
                raise OrderError(f"{inner_kind} in a batch")
            if not inner.sequence:
                raise OrderError(f"{inner_kind or 'an unknown body'} without a sequence in a batch")
            self.observe(inner)
        if event.sequence != events[-1].sequence:
            raise OrderError("a batch's sequence is its last event's")

    def _observe_durable(self, event: pb.AgentEvent, kind: str | None) -> None:
        if kind in EPHEMERAL_ONLY:
            raise OrderError(f"{kind} with a sequence")
        if kind == "result" and 0 < event.sequence == self._cursor == self.last_sequence:
            self.phases = frozenset({Phase.DONE})  # again, for a reader that joined at the end
            return
        if event.sequence != self.last_sequence + 1:
            raise OrderError(f"sequence {event.sequence} after {self.last_sequence}")
        name = kind or UNKNOWN
        following = frozenset(TABLE[phase][name] for phase in self.phases if name in TABLE[phase])
        if not following:
            raise OrderError(f"{_name(event)} in phase {_phases(self.phases)}")
        self._check_attempt(event, kind)
        self._check_requests(event, kind)
        self._check_inputs(event, kind)
        self.phases = following
        self.last_sequence = event.sequence

    def _check_attempt(self, event: pb.AgentEvent, kind: str | None) -> None:
        if kind == "result" and self.phases == {Phase.INITIAL}:
            if event.origin != pb.EVENT_ORIGIN_ROUTER:
                raise OrderError("a result before started that is not a router's")
            return
        expected = self.attempt + 1 if kind == "started" else self.attempt
        if (self._complete or self.attempt) and event.attempt != expected:
            raise OrderError(f"{_name(event)} of attempt {event.attempt} where {expected} is due")
        if not event.attempt and kind != "result":
            raise OrderError(f"{_name(event)} of no attempt")
        self.attempt = event.attempt

    def _check_requests(self, event: pb.AgentEvent, kind: str | None) -> None:
        if kind == "input_request":
            if event.input_request.id in self._asked:
                raise OrderError(f"input_request {event.input_request.id} twice")
            self._asked.add(event.input_request.id)
            self._pending.add(event.input_request.id)
        elif kind == "input_resolved":
            if self._complete and event.input_resolved.id not in self._pending:
                raise OrderError(f"input_resolved {event.input_resolved.id} without its request")
            self._pending.discard(event.input_resolved.id)
        elif kind == "result" and self._pending and event.result.outcome != pb.OUTCOME_LOST:
            raise OrderError(f"the result leaves requests open: {sorted(self._pending)}")

    def _check_inputs(self, event: pb.AgentEvent, kind: str | None) -> None:
        if kind == "input_accepted":
            if event.input_accepted.input_id in self._accepted:
                raise OrderError(f"input_accepted {event.input_accepted.input_id} twice")
            self._accepted.add(event.input_accepted.input_id)
            self._waiting.add(event.input_accepted.input_id)
        elif kind == "input_dropped":
            self._settle(event.input_dropped.input_id, kind)
        elif kind == "message" and event.message.input_id:
            self._settle(event.message.input_id, kind)
        elif kind in {"attempt_ended", "result"} and self._waiting and event.result.outcome != pb.OUTCOME_LOST:
            raise OrderError(f"{kind} leaves inputs neither taken nor dropped: {sorted(self._waiting)}")

    def _settle(self, input_id: str, kind: str) -> None:
        if self._complete and input_id not in self._waiting:
            raise OrderError(f"{kind} of input {input_id}, which does not wait")
        self._waiting.discard(input_id)

    def _observe_ephemeral(self, event: pb.AgentEvent, kind: str | None) -> None:
        if kind is not None and kind not in EPHEMERAL_ALLOWED:
            raise OrderError(f"{kind} without a sequence")
        if kind == "input_request":
            self._pending.add(event.input_request.id)
        if kind == "gap":
            self._observe_gap(event.gap)

    def _observe_gap(self, gap: pb.Gap) -> None:
        if gap.from_sequence != self.last_sequence + 1:
            raise OrderError(f"a gap from {gap.from_sequence} after {self.last_sequence}")
        if gap.to_sequence < gap.from_sequence:
            raise OrderError("a gap that ends before it begins")
        self.last_sequence = gap.to_sequence
        # What was missed may have ended attempts and answered requests.
        self.phases = _ANY - {Phase.INITIAL}
        self.attempt = 0
        self._complete = False
        self._pending.clear()
        self._waiting.clear()


def _name(event: pb.AgentEvent) -> str:
    return f"{event.WhichOneof('body') or 'an unknown body'} (sequence {event.sequence})"


def _phases(phases: frozenset[Phase]) -> str:
    return " or ".join(sorted(phase.value for phase in phases))
