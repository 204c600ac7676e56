"""The states of a run in the router, and the one function that leads from one to the next.

``decide`` is pure: it knows no clock, no loop and no connection. It gets what has happened, and returns the next
state and the actions that the run's owner executes. An input that cannot happen in a state raises
``ImpossibleInputError``; one that comes too late, as the run has ended meanwhile, changes nothing.

The states say how far the router is with the run. What the agent does is ``RunPhase``, which the adapter reports;
which event may follow which in a stream is the table of ``dragoman.protocol.order``.
"""

from typing import Final, TypeAlias, TypeVar

from dragoman.protocol.errors import DragomanError
from dragoman.router.model.assignment import Assignment, BetweenAttempts, Dispatched, Unassigned
from dragoman.router.model.run_record import cancelled_before_start, cancelled_between_attempts
from dragoman.router.runs import actions as do
from dragoman.router.runs import inputs as to
from dragoman.v1 import event_pb2 as pb
from msgspec import Struct, field
from msgspec.structs import replace


class Progress(Struct, frozen=True):
    """What is known of a live run in each of its states."""

    was_accepted: bool = False
    """An adapter has the run, or had it."""
    was_queued: bool = False
    """The run was reported as queued, so that it ends with a result and not with a status."""
    is_cancelling: bool = False
    """The end of the run was requested: no further attempt follows."""
    is_replayed: bool = True
    """What the adapter had of the run has arrived, if another router began it."""
    failed: pb.Result | None = None
    """How the last attempt ended that another one was to follow."""


INHERITED: Final = Progress(was_accepted=True, is_replayed=False)
"""What is known of a run that another router began."""


# The states.


class Queued(Struct, frozen=True):
    """No adapter process has the run: its adapter is starting, or it waits for a slot or for the next attempt."""

    progress: Progress = field(default_factory=Progress)


class Recovering(Struct, frozen=True):
    """The router looks for the adapter process of an inherited run."""

    progress: Progress
    at: Dispatched
    """Where the run log says that the run is."""


class Starting(Struct, frozen=True):
    """An adapter process was asked to take the run, and has not confirmed it."""

    progress: Progress
    at: Dispatched


class Streaming(Struct, frozen=True):
    """The router reads the adapter's stream."""

    progress: Progress
    at: Dispatched


class Reconnecting(Struct, frozen=True):
    """The stream broke; the router attaches again."""

    progress: Progress
    at: Dispatched
    is_accepted: bool
    """Whether the adapter had confirmed the run."""


class Deciding(Struct, frozen=True):
    """The attempt has failed; the router decides whether another one follows."""

    progress: Progress
    at: Dispatched
    result: pb.AgentEvent
    """The event with the attempt's result, which is withheld."""
    data: bytes
    """The same as it came."""
    ended: to.Durable | None = None
    """The event that replaces the result, as another attempt follows; it is being stored."""


Live: TypeAlias = Queued | Recovering | Starting | Streaming | Reconnecting | Deciding


class _Over(Struct, frozen=True):
    last: Live
    """The state that the run left."""


class Finished(_Over, frozen=True):
    """The result is known. It is published once it is stored."""

    is_published: bool = False


class Rejected(_Over, frozen=True):
    """The run never started: the call was wrong, or no adapter was available."""

    error: DragomanError


class Superseded(_Over, frozen=True):
    """Another router owns the run."""


Over: TypeAlias = Finished | Rejected | Superseded
State: TypeAlias = Live | Over

_AtAdapter: TypeAlias = Starting | Streaming | Reconnecting
_AT_ADAPTER: Final = (Starting, Streaming, Reconnecting)
_LIVE: Final = (Queued, Recovering, *_AT_ADAPTER, Deciding)
_L = TypeVar("_L", bound=Live)

Decision: TypeAlias = tuple[State, tuple[do.Action, ...]]


class ImpossibleInputError(Exception):
    """An input came that cannot happen in the state of the run: a fault of the router."""

    def __init__(self, state: State, event: to.Input) -> None:
        super().__init__(f"{type(event).__name__} in {type(state).__name__}")


_NEVER_LATE: Final = (to.Assigned, to.Reconnected, to.AttemptFailed, to.AttemptEnded, to.ResultReceived)
"""What cannot come any more once the run is over; all else may have been on its way when that was decided."""


def decide(state: State, event: to.Input) -> Decision:
    """Return the state that follows, and what is to be done.

    Raises:
        ImpossibleInputError: the input cannot happen in this state.
    """
    match state, event:
        case ((Finished() | Rejected() | Superseded()), _):
            decision = _after_the_end(state, event)
        case _, to.LeaseLost():
            decision = Superseded(state), (do.Release(),)
        case _, to.Abandoned(result):
            decision = _end(state, result)
        case Deciding(), _:
            decision = _deciding(state, event)
        case Queued(), _:
            decision = _queued(state, event)
        case Recovering(), _:
            decision = _recovering(state, event)
        case _:
            decision = _at_adapter(state, event)
    if decision is None:
        raise ImpossibleInputError(state, event)
    return decision


def _queued(state: Queued, event: to.Input) -> Decision | None:
    match event:
        case to.StatusReported(status):
            was_queued = state.progress.was_queued or status.phase == pb.RUN_PHASE_QUEUED
            return _update(state, was_queued=was_queued), (do.ReportStatus(status),)
        case to.Assigned(at):
            return Starting(state.progress, at), ()
        case to.Declined():
            return state, ()
        case to.CancelRequested():
            return _cancel(state)
        case to.Refused(error):
            return Rejected(state, error), (do.Reject(error),)
        case _:
            return None


def _recovering(state: Recovering, event: to.Input) -> Decision | None:
    match event:
        case to.Assigned(at):
            return Streaming(state.progress, at), ()
        case to.CancelRequested():
            return _update(state, is_cancelling=True), ()
        case _:
            return None


def _at_adapter(state: _AtAdapter, event: to.Input) -> Decision | None:
    match event:
        case to.Replayed():
            return _update(state, is_replayed=True), ()
        case to.CancelRequested():
            return _update(state, is_cancelling=True), ()
        case to.Declined():
            waiting = Queued(state.progress)
            return _cancel(waiting) if state.progress.is_cancelling else (waiting, ())
        case to.Refused(error):
            return Rejected(state, error), (do.Reject(error),)
        case to.Disconnected() if isinstance(state, Reconnecting):
            return state, ()
        case to.Disconnected():
            return Reconnecting(state.progress, state.at, is_accepted=isinstance(state, Streaming)), ()
        case _ if isinstance(state, Reconnecting):
            return _reconnecting(state, event)
        case to.Accepted():
            return Streaming(replace(state.progress, was_accepted=True), state.at), ()
        case to.AttemptFailed(result, data):
            return Deciding(state.progress, state.at, result, data), ()
        case to.ResultReceived(durable):
            return Finished(state), (do.StoreResult(durable),)
        case _:
            return None


def _reconnecting(state: Reconnecting, event: to.Input) -> Decision | None:
    match event:
        case to.Accepted():
            return replace(state, progress=replace(state.progress, was_accepted=True), is_accepted=True), ()
        case to.Reconnected():
            return (Streaming if state.is_accepted else Starting)(state.progress, state.at), ()
        case _:
            return None


def _deciding(state: Deciding, event: to.Input) -> Decision | None:
    match event:
        case to.Accepted():
            return state, ()
        case to.CancelRequested() if state.ended is None:
            return _update(state, is_cancelling=True), ()
        case to.CancelRequested():
            return _cancel(state)
        case to.ResultReceived(durable) if state.ended is None:
            return Finished(state), (do.StoreResult(durable),)
        case to.AttemptEnded(ended) if state.ended is None and not state.progress.is_cancelling:
            return replace(state, ended=ended), (do.StoreAttemptEnd(ended),)
        case to.AttemptEndStored() if state.ended is not None:
            return Queued(replace(state.progress, failed=state.result.result)), (do.Publish(state.ended),)
        case _:
            return None


def _after_the_end(state: Over, event: to.Input) -> Decision | None:
    match state, event:
        case Finished(last, is_published=False), to.ResultStored(durable):
            return Finished(last, is_published=True), (do.PublishResult(durable),)
        case Finished(last, is_published=False), to.LeaseLost():
            return Superseded(last), (do.Release(),)
        case Finished(is_published=True), to.ResultStored():
            return None
        case _:
            return None if isinstance(event, _NEVER_LATE) else (state, ())


def _end(state: Live, result: pb.Result) -> Decision:
    """End the run with a result of the router's own, behind what is already stored of it."""
    ended = state.ended if isinstance(state, Deciding) else None
    return Finished(state), (do.EndWith(result),) if ended is None else (do.Publish(ended), do.EndWith(result))


def _cancel(state: Queued | Deciding) -> Decision:
    """End a run that no adapter has."""
    failed = state.result.result if isinstance(state, Deciding) else state.progress.failed
    if failed is None:
        return _end(state, cancelled_before_start())
    return _end(state, cancelled_between_attempts(failed))


def _update(state: _L, **progress: bool) -> _L:
    return replace(state, progress=replace(state.progress, **progress))


# What other modules ask of a state.


def is_over(state: State) -> bool:
    """Return whether the run has ended for its readers: with its published result, an error, or another owner."""
    return not isinstance(state, _LIVE) and not (isinstance(state, Finished) and not state.is_published)


def is_ending(state: State) -> bool:
    """Return whether it is decided how the run ends, if perhaps not published yet."""
    return not isinstance(state, _LIVE)


def progress_of(state: State) -> Progress:
    """Return what is known of a run; of one that has ended, what was known then."""
    return state.progress if isinstance(state, Live) else state.last.progress


def is_known(state: State) -> bool:
    """Return whether the caller may rely on the run, as it was accepted or reported as queued; or it has ended."""
    return is_over(state) or progress_of(state).was_accepted or progress_of(state).was_queued


def is_replayed(state: State) -> bool:
    """Return whether readers may join: everything is here that the adapter had, or nothing more comes."""
    return is_over(state) or progress_of(state).is_replayed


def is_accepted(state: State) -> bool:
    """Return whether the adapter has confirmed the run, or it has ended."""
    if isinstance(state, Reconnecting):
        return state.is_accepted
    return isinstance(state, Streaming | Deciding) or is_over(state)


def is_unstarted(state: State) -> bool:
    """Return whether no attempt of a run has begun that this router accepted."""
    return isinstance(state, Queued) and state.progress.failed is None


def is_at_adapter(state: State) -> bool:
    """Return whether an adapter process has the run, or was asked to take it, and its attempt has not ended."""
    return isinstance(state, _AT_ADAPTER)


def has_adapter(state: State) -> bool:
    """Return whether an adapter process has the run or had it at its end, or was asked to take it."""
    last = state if isinstance(state, Live) else state.last
    return not isinstance(last, Queued | Recovering)


def assignment_of(state: State) -> Assignment:
    """Return where the run is, for a router that may have to recover it."""
    match state:
        case Finished(last) | Superseded(last) | Rejected(last):
            return assignment_of(last)
        case Queued(progress) if progress.failed is not None:
            return BetweenAttempts()
        case Deciding(ended=ended) if ended is not None:
            return BetweenAttempts()
        case Queued():
            return Unassigned()
        case _:
            return state.at
