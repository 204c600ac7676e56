"""What can happen to a run: the inputs of ``dragoman.router.runs.state.decide``.

The first sentence of each is its label in the diagram of the states.
"""

from dragoman.protocol.errors import DragomanError
from dragoman.router.model.assignment import Dispatched
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct


class Durable(Struct, frozen=True):
    """An event with a sequence, serialized."""

    sequence: int
    data: bytes
    is_own: bool = False
    """Whether it is an event of the router, not of the adapter."""


class Input(Struct, frozen=True):
    """Something that has happened to a run."""


class StatusReported(Input, frozen=True):
    """The run waits for a slot or a retry."""

    status: pb.State


class Assigned(Input, frozen=True):
    """An adapter process gets the run."""

    at: Dispatched


class Accepted(Input, frozen=True):
    """The adapter confirms the run."""


class Declined(Input, frozen=True):
    """The adapter does not take the run."""


class Disconnected(Input, frozen=True):
    """The stream breaks."""


class Reconnected(Input, frozen=True):
    """The stream continues."""


class Replayed(Input, frozen=True):
    """The adapter has sent what it had."""


class AttemptFailed(Input, frozen=True):
    """An attempt fails that a retry or fallback may follow."""

    result: pb.AgentEvent
    data: bytes


class AttemptEnded(Input, frozen=True):
    """Another attempt follows."""

    event: Durable


class AttemptEndStored(Input, frozen=True):
    """The end of the attempt is stored."""


class ResultReceived(Input, frozen=True):
    """The result arrives."""

    event: Durable


class ResultStored(Input, frozen=True):
    """The result is stored."""

    event: Durable


class Abandoned(Input, frozen=True):
    """No adapter is left to try, or the outcome cannot be known."""

    result: pb.Result


class CancelRequested(Input, frozen=True):
    """The run is cancelled."""


class Refused(Input, frozen=True):
    """The run is rejected."""

    error: DragomanError


class LeaseLost(Input, frozen=True):
    """Another router takes the lease."""
