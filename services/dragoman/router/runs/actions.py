"""What is to be done for a run: the actions that ``dragoman.router.runs.state.decide`` returns."""

from dragoman.protocol.errors import DragomanError
from dragoman.router.runs.inputs import Durable
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct


class Action(Struct, frozen=True):
    """Something that is to be done for a run."""


class ReportStatus(Action, frozen=True):
    """Publish what the run waits for, and have its row stored."""

    status: pb.State


class StoreAttemptEnd(Action, frozen=True):
    """Store the event that ends an attempt, and send ``AttemptEndStored``."""

    event: Durable


class Publish(Action, frozen=True):
    """Publish an event that is not the last one."""

    event: Durable


class EndWith(Action, frozen=True):
    """Number a result of the router's own, store it, and send ``ResultStored``."""

    result: pb.Result


class StoreResult(Action, frozen=True):
    """Store the adapter's result, and send ``ResultStored``."""

    event: Durable


class PublishResult(Action, frozen=True):
    """Publish the result, and end the streams of the run's readers behind it."""

    event: Durable


class Reject(Action, frozen=True):
    """End the streams of the run's readers with an error; the run is forgotten."""

    error: DragomanError


class Release(Action, frozen=True):
    """Stop all work for the run: its new owner publishes how it continues."""
