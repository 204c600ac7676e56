"""Checks of event streams: invariants of every run of every adapter, whatever the agent did.

``check_stream`` takes a reader's events, from the first to the end of the stream, and raises
``StreamProblem`` with the first thing that is wrong. The order itself is checked by
``dragoman.protocol.order``; these are checked here:

- deltas of an item continue where the last one ended, in UTF-8 bytes;
- a tool call's result belongs to a tool call of the stream, and comes once;
- no event is larger than 1 MiB or contains one of the secrets, in any field;
- a failed run has a failure, a succeeded one has none.
"""

from collections.abc import Iterable, Sequence

from dragoman.protocol.items import ItemLengths
from dragoman.protocol.limits import MAX_EVENT_BYTES
from dragoman.protocol.order import OrderChecker, OrderError
from dragoman.protocol.wire import unroll
from dragoman.v1 import event_pb2 as pb


class StreamProblem(AssertionError):  # noqa: N818 - it reads as what it is in a failed test
    """An event stream violates an invariant; the message names the event and the invariant."""


class StreamChecker:
    """Checks one reader's stream, event by event."""

    def __init__(self, after_sequence: int = 0, secrets: Sequence[str] = ()) -> None:
        self._order = OrderChecker(after_sequence)
        self._secrets = [secret.encode() for secret in secrets]
        self._joined_late = after_sequence > 0
        self._items = ItemLengths(is_complete=not after_sequence)
        self._open_calls: set[str] = set()
        self._ended_calls: set[str] = set()

    @property
    def last_sequence(self) -> int:
        """The last sequence seen."""
        return self._order.last_sequence

    def observe(self, event: pb.AgentEvent) -> None:
        """Read the next event.

        Raises:
            StreamProblem: it is out of order, or wrong in itself.
        """
        try:
            self._order.observe(event)
        except OrderError as error:
            raise StreamProblem(str(error)) from error
        data = event.SerializeToString()
        if len(data) > MAX_EVENT_BYTES:
            raise StreamProblem(f"event {event.sequence} has {len(data)} bytes")
        for secret in self._secrets:
            if secret in data:
                raise StreamProblem(f"event {event.sequence} ({event.WhichOneof('body')}) contains a secret")
        for single in unroll(event):
            self._observe_body(single)

    def finish(self) -> None:
        """Note that the stream ended with status OK.

        Raises:
            StreamProblem: there was no result.
        """
        try:
            self._order.finish()
        except OrderError as error:
            raise StreamProblem(str(error)) from error

    def _observe_body(self, event: pb.AgentEvent) -> None:
        kind = event.WhichOneof("body")
        if kind == "gap":  # what is missing may have contained tool calls and texts
            self._joined_late = True
            self._items.miss()
        elif kind == "started":
            self._items.begin()
            self._open_calls.clear()
            self._ended_calls.clear()
        elif kind in {"text", "thinking"}:
            self._check_piece(event, kind, getattr(event, kind))
        elif kind == "tool_call":
            self._open_calls.add(event.tool_call.id)
        elif kind == "tool_result":
            self._check_tool_result(event)
        elif kind == "result":
            self._check_result(event.result)

    def _check_piece(self, event: pb.AgentEvent, kind: str, piece: pb.Text | pb.Thinking) -> None:
        if problem := self._items.take(kind, piece):
            raise StreamProblem(f"event {event.sequence}: {kind} {piece.item_id!r} has {problem}")

    def _check_tool_result(self, event: pb.AgentEvent) -> None:
        call = event.tool_result.tool_call_id
        if call in self._ended_calls:
            raise StreamProblem(f"event {event.sequence}: a second result of tool call {call!r}")
        if call not in self._open_calls and not self._joined_late:
            raise StreamProblem(f"event {event.sequence}: the result of an unknown tool call {call!r}")
        self._open_calls.discard(call)
        self._ended_calls.add(call)

    def _check_result(self, result: pb.Result) -> None:
        if result.outcome == pb.OUTCOME_UNSPECIFIED:
            raise StreamProblem("the result has no outcome")
        needs_reason = result.outcome in {pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT, pb.OUTCOME_LOST}
        if needs_reason and (not result.failure.kind or not result.failure.message):
            raise StreamProblem(f"{pb.Outcome.Name(result.outcome)} without a failure")
        if result.outcome == pb.OUTCOME_SUCCEEDED and result.HasField("failure"):
            raise StreamProblem("a success with a failure")


def check_stream(
    events: Iterable[pb.AgentEvent], *, after_sequence: int = 0, secrets: Sequence[str] = (), ended: bool = True
) -> None:
    """Check a whole stream.

    Args:
        events: what one reader got, in order.
        after_sequence: the cursor it joined with.
        secrets: values that no event may contain.
        ended: whether the stream ended with status OK, so that a result is due.

    Raises:
        StreamProblem: the first thing that is wrong.
    """
    checker = StreamChecker(after_sequence, secrets)
    for event in events:
        checker.observe(event)
    if ended:
        checker.finish()
