"""What can happen to a run: the inputs of ``dragoman.router.runs.state.decide``.

The first sentence of each is its label in the diagram of the states.
"""

from dataclasses import dataclass
from typing import TypeAlias

from dragoman.protocol.errors import DragomanError
from dragoman.router.model.assignment import Dispatched
from dragoman.v1 import event_pb2 as pb


@dataclass(frozen=True, slots=True)
class Durable:
    """An event with a sequence, serialized."""

    sequence: int
    data: bytes
    is_own: bool = False
    """Whether it is an event of the router, not of the adapter."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The run log has the run."""


@dataclass(frozen=True, slots=True)
class StatusReported:
    """The run waits for a slot or a retry."""

    status: pb.State


@dataclass(frozen=True, slots=True)
class Assigned:
    """An adapter process gets the run."""

    at: Dispatched


@dataclass(frozen=True, slots=True)
class Accepted:
    """The adapter confirms the run."""


@dataclass(frozen=True, slots=True)
class Declined:
    """The adapter does not take the run."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream breaks."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The stream continues."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The adapter has sent what it had."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt fails that a retry or fallback may follow."""

    result: pb.AgentEvent
    data: bytes


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """Another attempt follows."""

    event: Durable


@dataclass(frozen=True, slots=True)
class AttemptEndStored:
    """The end of the attempt is stored."""


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """The result arrives."""

    event: Durable


@dataclass(frozen=True, slots=True)
class ResultStored:
    """The result is stored."""

    event: Durable


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No adapter is left to try."""

    result: pb.Result


@dataclass(frozen=True, slots=True)
class Lost:
    """The outcome cannot be known."""

    result: pb.Result


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The run is cancelled."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The run is rejected."""

    error: DragomanError


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another router takes the lease."""


Input: TypeAlias = (
    Recorded
    | StatusReported
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
