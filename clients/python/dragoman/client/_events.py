"""What the reader of one run gets of the messages of its streams. No I/O."""

from collections.abc import Iterator

from dragoman.protocol.wire import unroll
from dragoman.v1 import event_pb2 as pb


class EventFilter:
    """Unrolls batches and drops what an earlier stream of the run already delivered.

    Args:
        after_sequence: the last sequence that the reader has seen.
    """

    def __init__(self, after_sequence: int) -> None:
        self.last_sequence = after_sequence
        self.result: pb.Result | None = None
        self.expects_replay_done = True
        """Whether the reader has not yet got a ``replay_done``, and is to get one."""
        self.progressed = False
        """Whether the last message showed that the run is alive, other than by what every Attach begins with."""
        self._requested: set[str] = set()

    def events(self, message: pb.AgentEvent) -> Iterator[pb.AgentEvent]:
        """Yield the events of a message that are new to the reader; none after the result."""
        self.progressed = False
        for event in unroll(message):
            if self.result is not None:
                return
            if self._is_new_durable(event) if event.sequence else self._is_new_ephemeral(event):
                yield event

    def _is_new_durable(self, event: pb.AgentEvent) -> bool:
        # Attach at the end of a run repeats the result, so that every stream ends with it.
        if event.HasField("result"):
            self.result = event.result
        if event.sequence <= self.last_sequence:
            return False
        self.last_sequence = event.sequence
        self.progressed = True
        if event.HasField("input_request"):
            self._requested.add(event.input_request.id)
        elif event.HasField("input_resolved"):
            self._requested.discard(event.input_resolved.id)
        return True

    def _is_new_ephemeral(self, event: pb.AgentEvent) -> bool:
        body = event.WhichOneof("body")
        if body == "gap":
            if event.gap.to_sequence <= self.last_sequence:
                return False
            event.gap.from_sequence = max(event.gap.from_sequence, self.last_sequence + 1)
            self.last_sequence = event.gap.to_sequence
        elif body == "input_request":
            # Every Attach repeats the open requests; that this client attached again is of no interest to the reader.
            if event.input_request.id in self._requested:
                return False
            self._requested.add(event.input_request.id)
        elif body == "replay_done":
            expected, self.expects_replay_done = self.expects_replay_done, False
            return expected
        else:
            self.progressed = True
        return True
