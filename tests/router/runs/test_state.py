"""A run's states: the whole table, and what every sequence of inputs must keep."""

from typing import Any, Final

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.assignment import Assignment, BetweenAttempts, Dispatched, Unassigned
from dragoman.router.runs import actions as do
from dragoman.router.runs import inputs as to
from dragoman.router.runs import state as states
from dragoman.router.runs.state import ImpossibleInputError, decide
from dragoman.v1 import event_pb2 as pb
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.router.runs.diagram import BEGINNINGS, INPUTS, diagram, table

AT: Final = Dispatched("unix:/a", "i")
TABLE: Final = """
Queued       StatusReported    Queued
Queued       Assigned          Starting
Queued       Declined          Queued
Queued       CancelRequested   Finished
Queued       Refused           Rejected
Queued       Abandoned         Finished
Queued       LeaseLost         Superseded
Recovering   Assigned          Streaming
Recovering   CancelRequested   Recovering
Recovering   Abandoned         Finished
Recovering   LeaseLost         Superseded
Starting     Accepted          Streaming
Starting     Declined          Finished Queued
Starting     Disconnected      Reconnecting
Starting     Replayed          Starting
Starting     AttemptFailed     Deciding
Starting     ResultReceived    Finished
Starting     CancelRequested   Starting
Starting     Refused           Rejected
Starting     Abandoned         Finished
Starting     LeaseLost         Superseded
Streaming    Accepted          Streaming
Streaming    Declined          Finished Queued
Streaming    Disconnected      Reconnecting
Streaming    Replayed          Streaming
Streaming    AttemptFailed     Deciding
Streaming    ResultReceived    Finished
Streaming    CancelRequested   Streaming
Streaming    Refused           Rejected
Streaming    Abandoned         Finished
Streaming    LeaseLost         Superseded
Reconnecting Accepted          Reconnecting
Reconnecting Declined          Finished Queued
Reconnecting Disconnected      Reconnecting
Reconnecting Reconnected       Starting Streaming
Reconnecting Replayed          Reconnecting
Reconnecting CancelRequested   Reconnecting
Reconnecting Refused           Rejected
Reconnecting Abandoned         Finished
Reconnecting LeaseLost         Superseded
Deciding     Accepted          Deciding
Deciding     AttemptEnded      Deciding
Deciding     AttemptEndStored  Queued
Deciding     ResultReceived    Finished
Deciding     CancelRequested   Deciding Finished
Deciding     Abandoned         Finished
Deciding     LeaseLost         Superseded
Finished     LeaseLost         Finished Superseded
Finished     ResultStored      Finished
Rejected     LeaseLost         Rejected
Rejected     ResultStored      Rejected
Superseded   LeaseLost         Superseded
Superseded   ResultStored      Superseded
"""
"""Each state with each input that is possible there, and the states that may follow."""
LATE: Final = (
    *("Accepted", "AttemptEndStored", "CancelRequested", "Declined", "Disconnected", "Abandoned"),
    *("Refused", "Replayed", "StatusReported"),
)
"""Inputs that change nothing once the run is over."""
ROWS: Final = list(table())


def name(thing: object) -> str:
    return type(thing).__name__


def test_the_table_is_what_it_was_meant_to_be() -> None:
    expected = {
        (state, event): set(following) for state, event, *following in map(str.split, TABLE.split("\n")[1:-1])
    }
    expected |= {(state, event): {state} for state in ("Finished", "Rejected", "Superseded") for event in LATE}
    found: dict[tuple[str, str], set[str]] = {}
    for state, event, following, _actions in ROWS:
        found.setdefault((name(state), name(event)), set()).add(name(following))
    assert found == expected


def test_every_input_is_possible_somewhere_and_every_state_can_be_reached() -> None:
    rows = ROWS
    assert {name(event) for _, event, _, _ in rows} == {kind.__name__ for kind in to.Input.__subclasses__()}
    assert {name(state) for state, _, _, _ in rows} == {kind.__name__ for kind in states.State.__args__}
    assert {name(action) for *_, actions in rows for action in actions} == {
        kind.__name__ for kind in do.Action.__subclasses__()
    }


def test_what_cannot_happen_raises() -> None:
    with pytest.raises(ImpossibleInputError, match="Reconnected in Queued"):
        decide(states.Queued(), to.Reconnected())
    assert len(ROWS) < len(INPUTS) * len({repr(state) for state, *_ in ROWS})


def test_nothing_is_done_for_a_run_that_another_router_owns() -> None:
    rows = [row for row in ROWS if isinstance(row[0], states.Superseded | states.Rejected)]
    assert rows
    assert all(following is state and not actions for state, _event, following, actions in rows)
    entered = [
        actions for state, _event, after, actions in ROWS if type(after) is states.Superseded is not type(state)
    ]
    assert set(entered) == {(do.Release(),)}


def test_a_result_is_published_once() -> None:
    published = states.Finished(states.Queued(), is_published=True)
    with pytest.raises(ImpossibleInputError):
        decide(published, to.ResultStored(to.Durable(2, b"result")))


def test_no_attempt_begins_once_the_run_is_being_cancelled() -> None:
    for state, event, following, actions in ROWS:
        before, after = states.progress_of(state), states.progress_of(following)
        if before.is_cancelling:
            assert after.is_cancelling, "a cancel is never forgotten"
            assert not isinstance(following, states.Queued), f"{state} {event}"
            assert not any(isinstance(action, do.StoreAttemptEnd) for action in actions)
        if isinstance(event, to.CancelRequested) and isinstance(following, states.Queued):
            pytest.fail("a run that no adapter has ends at once")


def test_what_no_adapter_can_end_is_ended_by_a_cancel_at_once() -> None:
    """All others have an adapter that is sent the Cancel, or are being looked for there, or have a result."""
    for _state, event, following, actions in ROWS:
        if isinstance(event, to.CancelRequested) and isinstance(following, states.Live):
            has_adapter = isinstance(following, states.Starting | states.Streaming | states.Reconnecting)
            is_sought = isinstance(following, states.Recovering)
            has_result = isinstance(following, states.Deciding) and following.ended is None
            assert has_adapter or is_sought or has_result
            assert not actions


def test_a_result_of_the_routers_own_says_how_a_cancelled_run_ended() -> None:
    _, (ending,) = decide(states.Queued(), to.CancelRequested())
    assert isinstance(ending, do.EndWith)
    assert (ending.result.outcome, ending.result.subtype) == (pb.OUTCOME_CANCELLED, "not_started")
    failed = pb.Result(tree_confirmed_dead=True)
    _, (ending,) = decide(states.Queued(states.Progress(failed=failed)), to.CancelRequested())
    assert isinstance(ending, do.EndWith)
    assert ending.result.subtype == "between_attempts"
    assert ending.result.tree_confirmed_dead


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (states.Queued(), Unassigned()),
        (states.Queued(states.Progress(failed=pb.Result())), BetweenAttempts()),
        (states.Starting(states.Progress(), AT), AT),
        (states.Streaming(states.Progress(), AT), AT),
        (states.Reconnecting(states.Progress(), AT, is_accepted=True), AT),
        (states.Deciding(states.Progress(), AT, pb.AgentEvent(), b""), AT),
        (states.Deciding(states.Progress(), AT, pb.AgentEvent(), b"", to.Durable(2, b"")), BetweenAttempts()),
        (states.Recovering(states.Progress(), AT), AT),
        (states.Finished(states.Streaming(states.Progress(), AT)), AT),
    ],
)
def test_a_router_that_recovers_the_run_learns_where_it_is(state: states.State, expected: Assignment) -> None:
    assert states.assignment_of(state) == expected


def test_the_diagram_has_every_state_and_every_way_between_two() -> None:
    lines = diagram().splitlines()
    for state, event, following, _actions in ROWS:
        if name(state) != name(following):
            start = f"    {name(state).lower()} --> {name(following).lower()}: "
            (line,) = (one for one in lines if one.startswith(start))
            label = (type(event).__doc__ or "").partition(".")[0]
            assert label[1:] in line
    assert lines.count("    superseded --> [*]") == 1


class Trail(RuleBasedStateMachine):
    """Whatever happens to a run in whatever order: what its readers see is one stream with one end."""

    def __init__(self) -> None:
        super().__init__()
        self.state: states.State = states.Queued()
        self.last = 0
        """The last sequence that was assigned."""
        self.published: list[int] = []
        self.endings: list[to.Durable] = []
        self.withheld: to.Durable | None = None
        """The end of an attempt that is being stored."""
        self.results: list[int] = []
        self.silent = False
        """Whether nothing may be done any more."""

    @initialize(state=st.sampled_from(BEGINNINGS))
    def begin(self, state: states.Live) -> None:
        self.state = state

    def send(self, event: to.Input) -> bool:
        try:
            self.state, actions = decide(self.state, event)
        except ImpossibleInputError:
            return False
        assert not (self.silent and actions)
        for action in actions:
            self.execute(action)
        self.silent = states.is_over(self.state)
        return True

    def execute(self, action: do.Action) -> None:
        match action:
            case do.Publish(event):
                assert event is self.withheld
                self.published.append(event.sequence)
                self.withheld = None
            case do.StoreAttemptEnd(event):
                self.withheld = event
            case do.EndWith():
                self.last += 1
                self.endings.append(to.Durable(self.last, b"ours"))
            case do.StoreResult(event):
                self.endings.append(event)
            case do.PublishResult(event):
                assert event in self.endings
                self.published.append(event.sequence)
                self.results.append(event.sequence)
            case _:
                pass

    @rule(event=st.sampled_from(INPUTS))
    def anything(self, event: to.Input) -> None:
        if not isinstance(event, to.AttemptEnded | to.ResultReceived | to.ResultStored):
            self.send(event)

    @precondition(lambda self: isinstance(self.state, states.Streaming))
    @rule()
    def event(self) -> None:
        self.last += 1
        self.published.append(self.last)

    @rule(kind=st.sampled_from([to.AttemptEnded, to.ResultReceived]))
    def durable(self, kind: Any) -> None:
        if self.send(kind(to.Durable(self.last + 1, b"event"))):
            self.last += 1

    @precondition(lambda self: self.endings)
    @rule()
    def stored(self) -> None:
        self.send(to.ResultStored(self.endings[-1]))

    @rule()
    def cancelled(self) -> None:
        self.send(to.CancelRequested())

    @invariant()
    def one_terminal_event(self) -> None:
        assert len(self.endings) <= 1
        assert len(self.results) <= 1

    @invariant()
    def dense(self) -> None:
        assert self.published == list(range(1, len(self.published) + 1))

    @invariant()
    def nothing_after_it(self) -> None:
        if self.results:
            assert self.published[-1] == self.results[0]
            assert isinstance(self.state, states.Finished)

    def teardown(self) -> None:
        """End it as a cancel does: its adapter's stream ends, or what was withheld is released."""
        self.cancelled()
        if isinstance(self.state, states.Deciding):
            self.durable(to.ResultReceived)
        elif isinstance(self.state, states.Live):
            self.send(to.Abandoned(pb.Result(outcome=pb.OUTCOME_LOST)))
        if self.endings:
            self.stored()
        assert states.is_over(self.state)
        assert isinstance(self.state, states.Rejected | states.Superseded) or len(self.results) == 1


TestTrail = Trail.TestCase
TestTrail.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_an_error_ends_a_run_that_was_never_promised_to_anyone() -> None:
    error = DragomanError(Reason.ADAPTER_UNAVAILABLE, "x")
    state, actions = decide(states.Queued(), to.Refused(error))
    assert actions == (do.Reject(error),)
    assert states.is_over(state)
