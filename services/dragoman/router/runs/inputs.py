"""What can happen to a run: the inputs of ``dragoman.router.runs.state.decide``.

The first sentence of each is its label in the diagram of the states.
"""

from typing import TypeAlias

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


class StatusReported(Struct, frozen=True):
    """The run waits for a slot or a retry."""

    status: pb.State


class Assigned(Struct, frozen=True):
    """An adapter process gets the run."""

    at: Dispatched


class Accepted(Struct, frozen=True):
    """The adapter confirms the run."""


class Declined(Struct, frozen=True):
    """The adapter does not take the run."""


class Disconnected(Struct, frozen=True):
    """The stream breaks."""


class Reconnected(Struct, frozen=True):
    """The stream continues."""


class Replayed(Struct, frozen=True):
    """The adapter has sent what it had."""


class AttemptFailed(Struct, frozen=True):
    """An attempt fails that a retry or fallback may follow."""

    result: pb.AgentEvent
    data: bytes


class AttemptEnded(Struct, frozen=True):
    """Another attempt follows."""

    event: Durable


class AttemptEndStored(Struct, frozen=True):
    """The end of the attempt is stored."""


class ResultReceived(Struct, frozen=True):
    """The result arrives."""

    event: Durable


class ResultStored(Struct, frozen=True):
    """The result is stored."""

    event: Durable


class Exhausted(Struct, frozen=True):
    """No adapter is left to try."""

    result: pb.Result


class Lost(Struct, frozen=True):
    """The outcome cannot be known."""

    result: pb.Result


class CancelRequested(Struct, frozen=True):
    """The run is cancelled."""


class Refused(Struct, frozen=True):
    """The run is rejected."""

    error: DragomanError


class LeaseLost(Struct, frozen=True):
    """Another router takes the lease."""


Input: TypeAlias = (
    StatusReported
    | Assigned
    | Accepted
    | Declined
    | Disconnected
    | Reconnected
    | Replayed
    | AttemptFailed
    | AttemptEnded
    | AttemptEndStored
    | ResultReceived
    | ResultStored
    | Exhausted
    | Lost
    | CancelRequested
    | Refused
    | LeaseLost
)
