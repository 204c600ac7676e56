"""What is to be done for a run: the actions that ``dragoman.router.runs.state.decide`` returns."""

from dataclasses import dataclass
from typing import TypeAlias

from dragoman.protocol.errors import DragomanError
from dragoman.router.runs.inputs import Durable
from dragoman.v1 import event_pb2 as pb


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Publish what the run waits for, and have its row stored."""

    status: pb.State


@dataclass(frozen=True, slots=True)
class Persist:
    """Have the run's row stored."""


@dataclass(frozen=True, slots=True)
class StoreAttemptEnd:
    """Store the event that ends an attempt, and send ``AttemptEndStored``."""

    event: Durable


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish an event that is not the last one."""

    event: Durable


@dataclass(frozen=True, slots=True)
class EndWith:
    """Number a result of the router's own, store it, and send ``ResultStored``."""

    result: pb.Result


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Store the adapter's result, and send ``ResultStored``."""

    event: Durable


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Publish the result, and end the streams of the run's readers behind it."""

    event: Durable


@dataclass(frozen=True, slots=True)
class Reject:
    """End the streams of the run's readers with an error; the run is forgotten."""

    error: DragomanError


@dataclass(frozen=True, slots=True)
class Release:
    """Stop all work for the run: its new owner publishes how it continues."""


Action: TypeAlias = (
    ReportStatus | Persist | StoreAttemptEnd | Publish | EndWith | StoreResult | PublishResult | Reject | Release
)
