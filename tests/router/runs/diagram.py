"""The table of a run's states, found by trying every input in every state that can be reached; and its diagram."""

from collections.abc import Iterator
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.assignment import Dispatched
from dragoman.router.runs import inputs as to
from dragoman.router.runs.actions import Action
from dragoman.router.runs.state import (
    INHERITED,
    Finished,
    ImpossibleInputError,
    Live,
    Queued,
    Recovering,
    Rejected,
    State,
    Superseded,
    decide,
)
from dragoman.v1 import event_pb2 as pb

AT: Final = Dispatched("unix:/sidecar.sock", "instance")
_RESULT: Final = pb.Result(outcome=pb.OUTCOME_FAILED, failure=pb.Failure(message="failed"))
_EVENT: Final = to.Durable(2, b"event")
_ERROR: Final = DragomanError(Reason.ADAPTER_UNAVAILABLE, "unavailable")

BEGINNINGS: Final[tuple[Live, ...]] = (Queued(), Recovering(INHERITED, AT))
"""The states of a newly accepted run, and of one that failover recovers."""

INPUTS: Final[tuple[to.Input, ...]] = (
    to.StatusReported(pb.State(phase=pb.RUN_PHASE_QUEUED)),
    to.StatusReported(pb.State(phase=pb.RUN_PHASE_RETRYING)),
    to.Assigned(AT),
    to.Accepted(),
    to.Declined(),
    to.Disconnected(),
    to.Reconnected(),
    to.Replayed(),
    to.AttemptFailed(pb.AgentEvent(sequence=2, result=_RESULT), b"result"),
    to.AttemptEnded(_EVENT),
    to.AttemptEndStored(),
    to.ResultReceived(_EVENT),
    to.ResultStored(_EVENT),
    to.Abandoned(_RESULT),
    to.CancelRequested(),
    to.Refused(_ERROR),
    to.LeaseLost(),
)
"""One of each input, and of ``StatusReported`` both."""


def table() -> Iterator[tuple[State, to.Input, State, tuple[Action, ...]]]:
    """Yield each state that can be reached, with each input that is possible in it and what ``decide`` returns."""
    states: list[State] = list(BEGINNINGS)
    known = {repr(state) for state in states}
    for state in states:  # which grows meanwhile
        for event in INPUTS:
            try:
                following, actions = decide(state, event)
            except ImpossibleInputError:
                continue
            yield state, event, following, actions
            if repr(following) not in known:
                known.add(repr(following))
                states.append(following)


def diagram() -> str:
    """Return the table as a Mermaid diagram, for the documentation."""
    lines = dict.fromkeys(f"    [*] --> {_name(state)}" for state in BEGINNINGS)
    labels: dict[tuple[str, str], dict[str, None]] = {}
    for state, event, following, _actions in table():
        if _name(state) != _name(following):
            labels.setdefault((_name(state), _name(following)), {})[_label(event)] = None
    ways = (f"    {source} --> {target}: {', or '.join(causes)}" for (source, target), causes in labels.items())
    ends = (f"    {kind.__name__.lower()} --> [*]" for kind in (Finished, Rejected, Superseded))
    return "\n".join(["stateDiagram-v2", *lines, *ways, *ends])


def _name(state: State) -> str:
    return type(state).__name__.lower()


def _label(event: to.Input) -> str:
    text = (type(event).__doc__ or "").partition(".")[0]
    return text[:1].lower() + text[1:]
