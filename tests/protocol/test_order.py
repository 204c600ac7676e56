"""The order of events: what is valid is accepted, every single deviation is refused with its reason."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dragoman.protocol.limits import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from dragoman.protocol.order import (
    EPHEMERAL_ALLOWED,
    EPHEMERAL_ONLY,
    TABLE,
    OrderChecker,
    OrderError,
    Phase,
)
from dragoman.protocol.wire import FIELD_BY_KIND, NEVER_BATCHED
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from .streams import EPHEMERALS, PLAIN_KINDS, RUN_ID, batch, batched, body, durable, gap, runs

Events = list[pb.AgentEvent]


def accepts(events: Events, after_sequence: int = 0) -> OrderChecker:
    checker = OrderChecker(after_sequence)
    checker.observe_all(events)
    checker.finish()
    return checker


def refusal(events: Events, after_sequence: int = 0) -> str:
    with pytest.raises(OrderError) as caught:
        accepts(events, after_sequence)
    return str(caught.value)


# --- the table


WITHIN = set(FIELD_BY_KIND) - {
    *{"started", "attempt_ended", "result"},
    *{"heartbeat", "gap", "replay_done", "batch"},
}


def test_the_table_is_the_one_of_the_contract() -> None:
    assert TABLE[Phase.INITIAL] == {"started": Phase.ATTEMPT, "result": Phase.DONE}
    assert TABLE[Phase.BETWEEN] == TABLE[Phase.INITIAL]
    assert TABLE[Phase.ATTEMPT] == {
        **dict.fromkeys(WITHIN, Phase.ATTEMPT),
        "attempt_ended": Phase.BETWEEN,
        "result": Phase.DONE,
    }
    assert TABLE[Phase.DONE] == {}


def test_the_table_that_other_languages_read_is_complete() -> None:
    data = json.loads((Path(__file__).parents[2] / "proto/dragoman/v1/order.json").read_text(encoding="utf-8"))
    assert {phase: dict(kinds) for phase, kinds in data["phases"].items()} == {
        phase.value: {kind: following.value for kind, following in kinds.items()} for phase, kinds in TABLE.items()
    }
    assert (data["first"], data["last"]) == (Phase.INITIAL.value, Phase.DONE.value)
    assert {FIELD_BY_KIND[kind] for kind in data["never_batched"]} == NEVER_BATCHED
    assert set(data["ephemeral_only"]) < set(data["ephemeral_allowed"]) < set(FIELD_BY_KIND)
    in_a_phase = {kind for kinds in data["phases"].values() for kind in kinds}
    assert in_a_phase | set(data["ephemeral_only"]) | {"batch"} == set(FIELD_BY_KIND)


PREFIX: dict[Phase, Events] = {
    Phase.INITIAL: [],
    Phase.ATTEMPT: [durable("started", 1)],
    Phase.BETWEEN: [durable("started", 1), durable("attempt_ended", 2)],
    Phase.DONE: [durable("started", 1), durable("result", 2)],
}


@pytest.mark.parametrize("kind", sorted(set(FIELD_BY_KIND) - {"batch"}))
@pytest.mark.parametrize("phase", Phase)
def test_a_durable_event_is_taken_where_the_table_has_it(phase: Phase, kind: str) -> None:
    checker = OrderChecker()
    checker.observe_all(PREFIX[phase])
    assert checker.phases == {phase}
    attempt = checker.attempt + (kind == "started")
    event = durable(kind, len(PREFIX[phase]) + 1, attempt)
    event.origin = pb.EVENT_ORIGIN_ROUTER
    if kind == "input_resolved" and phase is Phase.ATTEMPT:
        request = durable("input_request", event.sequence)
        checker.observe(request)
        event.sequence += 1
    if kind == "input_dropped" and phase is Phase.ATTEMPT:
        checker.observe(durable("input_accepted", event.sequence))
        event.sequence += 1
    if kind in TABLE[phase]:
        checker.observe(event)
        assert checker.phases == {TABLE[phase][kind]}
        assert checker.is_done is (kind == "result")
    else:
        with pytest.raises(OrderError, match=kind):
            checker.observe(event)


@pytest.mark.parametrize("kind", sorted(set(FIELD_BY_KIND) - {"batch", "gap"}))
@pytest.mark.parametrize("phase", [Phase.INITIAL, Phase.ATTEMPT, Phase.BETWEEN])
def test_only_some_kinds_may_lack_a_sequence_and_they_change_nothing(phase: Phase, kind: str) -> None:
    checker = OrderChecker()
    checker.observe_all(PREFIX[phase])
    if kind not in EPHEMERAL_ALLOWED:
        with pytest.raises(OrderError, match=f"{kind} without a sequence"):
            checker.observe(body(kind))
        return
    checker.observe(body(kind))
    assert checker.phases == {phase}
    assert checker.last_sequence == len(PREFIX[phase])


# --- what is valid


@given(runs())
def test_whole_runs_are_accepted(events: Events) -> None:
    checker = accepts(events)
    assert checker.last_sequence == len(events)
    assert checker.attempt == events[-1].attempt


@given(runs(), st.data())
def test_ephemeral_events_may_come_anywhere_before_the_result(events: Events, data: st.DataObject) -> None:
    mixed: Events = []
    for event in events:
        mixed.extend(make() for make in data.draw(st.lists(st.sampled_from(EPHEMERALS), max_size=2)))
        mixed.append(event)
    assert accepts(mixed).last_sequence == len(events)


@given(runs(), st.lists(st.integers(2, 4)))
def test_batches_are_what_is_in_them(events: Events, sizes: list[int]) -> None:
    assert accepts(batched(events, sizes)).last_sequence == len(events)


@given(runs(), st.data())
def test_a_reader_may_join_after_any_event(events: Events, data: st.DataObject) -> None:
    after = data.draw(st.integers(1, len(events) - 1))
    assert accepts(events[after:], after).last_sequence == len(events)


def test_the_result_comes_again_to_who_joins_at_the_end_and_only_there() -> None:
    run = [durable("started", 1), durable("result", 2)]
    accepts(run[1:], after_sequence=2)
    assert refusal(run[1:], after_sequence=3) == "sequence 2 after 3"
    assert refusal([durable("text", 2)], after_sequence=2) == "sequence 2 after 2"
    moved = [durable("text", 3), durable("result", 2)]
    assert refusal(moved, after_sequence=2) == "sequence 2 after 3"


@given(runs(), st.data())
def test_a_gap_may_stand_for_any_stretch_before_the_result(events: Events, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, len(events) - 1))
    last = data.draw(st.integers(first, len(events) - 1))
    holed = [*events[: first - 1], gap(first, last), *events[last:]]
    assert accepts(holed).last_sequence == len(events)
    if first > 1:
        after = data.draw(st.integers(0, first - 1))
        accepts([*events[after : first - 1], gap(first, last), *events[last:]], after)


def test_a_request_answered_within_a_gap_is_not_open() -> None:
    asked = durable("input_request", 2)
    accepts([durable("started", 1), asked, gap(3, 3), durable("result", 4)])


def test_copies_of_pending_requests_come_again_after_a_join() -> None:
    copy = body("input_request")
    copy.input_request.id = "request-1"
    answered = durable("input_resolved", 6)
    answered.input_resolved.id = "request-1"
    accepts([durable("text", 5), copy, body("replay_done"), answered, durable("result", 7)], 4)


def test_bodies_of_a_later_revision_pass_wherever_ordinary_ones_do() -> None:
    unknown = pb.AgentEvent(run_id=RUN_ID, sequence=2, attempt=1)
    accepts([durable("started", 1), unknown, durable("result", 3)])
    assert "phase between" in refusal([durable("started", 1), durable("attempt_ended", 2), later(3)])
    assert "phase initial" in refusal([later(1)])


def later(sequence: int) -> pb.AgentEvent:
    return pb.AgentEvent(run_id=RUN_ID, sequence=sequence, attempt=1)


def test_a_router_may_end_a_run_that_never_started() -> None:
    result = durable("result", 1, attempt=0)
    result.origin = pb.EVENT_ORIGIN_ROUTER
    result.result.outcome = pb.OUTCOME_LOST
    accepts([body("state"), result])
    result.origin = pb.EVENT_ORIGIN_ADAPTER
    assert "not a router's" in refusal([result])


def test_a_lost_run_may_leave_requests_open_and_no_other_may() -> None:
    asked = durable("input_request", 2)
    asked.input_request.id = "request-9"
    result = durable("result", 3)
    result.result.outcome = pb.OUTCOME_LOST
    accepts([durable("started", 1), asked, result])
    result.result.outcome = pb.OUTCOME_CANCELLED
    assert "request-9" in refusal([durable("started", 1), asked, result])


# --- single mutations


def clone(event: pb.AgentEvent) -> pb.AgentEvent:
    copy = pb.AgentEvent()
    copy.CopyFrom(event)
    return copy


def drop(events: Events, at: int) -> Events:
    return [*events[:at], *events[at + 1 :]]


def duplicate(events: Events, at: int) -> Events:
    return [*events[: at + 1], *events[at:]]


def swap(events: Events, at: int) -> Events:
    other = (at + 1) % len(events)
    swapped = list(events)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    return swapped


def skip_a_sequence(events: Events, at: int) -> Events:
    moved = [clone(event) for event in events]
    for event in moved[at:]:
        event.sequence += 1
    return moved


def wrong_attempt(events: Events, at: int) -> Events:
    moved = [clone(event) for event in events]
    moved[at].attempt += 1
    return moved


def no_attempt(events: Events, at: int) -> Events:
    moved = [clone(event) for event in events]
    moved[at].attempt = 0
    return moved


def another_run(events: Events, at: int) -> Events:
    moved = [clone(event) for event in events]
    moved[at].run_id = "run-2"
    return moved


def lose_the_sequence(events: Events, at: int) -> Events:
    moved = [clone(event) for event in events]
    moved[at].sequence = 0
    return moved


def inserted(kind: str) -> Callable[[Events, int], Events]:
    def insert(events: Events, at: int) -> Events:
        """Insert a durable event before ``at`` and move all that follow by one."""
        extra = durable(kind, events[at].sequence, events[at].attempt)
        moved = [clone(event) for event in events[at:]]
        for event in moved:
            event.sequence += 1
        return [*events[:at], extra, *moved]

    insert.__name__ = f"insert_{kind}"
    return insert


MUTATIONS = [
    *(drop, duplicate, swap, skip_a_sequence, wrong_attempt, no_attempt, another_run, lose_the_sequence),
    *(inserted(kind) for kind in ("started", "result", "heartbeat", "gap", "replay_done")),
]


@given(events=runs(), data=st.data())
def test_each_single_mutation_is_refused(events: Events, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events) - 1))
    for mutate in MUTATIONS:
        text = refusal(mutate(events, at))
        assert len(text) > 10, mutate.__name__


@given(events=runs())
def test_nothing_follows_the_result(events: Events) -> None:
    for kind in [*PLAIN_KINDS, "result", "started", "heartbeat", "notice", "gap"]:
        event = durable(kind, len(events) + 1, events[-1].attempt)
        assert refusal([*events, event]).endswith("after the result"), kind
        assert refusal([*events, body(kind)]).endswith("after the result"), kind


@given(runs())
def test_a_stream_without_result_is_not_finished(events: Events) -> None:
    assert refusal(events[:-1]) == "the stream ended without a result"


@pytest.mark.parametrize("field", sorted(NEVER_BATCHED))
def test_a_batch_never_carries_what_ends_or_asks(field: int) -> None:
    kind = next(name for name, number in FIELD_BY_KIND.items() if number == field)
    events = [durable("started", 1), batch([durable("text", 2), durable(kind, 3)])]
    assert refusal(events) == f"{kind} in a batch"


def test_batches_are_checked() -> None:
    started = durable("started", 1)
    assert refusal([started, pb.AgentEvent(sequence=2, batch=pb.Batch())]) == "an empty batch"
    many = [durable("text", number) for number in range(2, MAX_BATCH_EVENTS + 3)]
    assert refusal([started, batch(many)]) == "a batch that is too large"
    many[0].native.text = "x" * MAX_BATCH_BYTES
    assert refusal([started, batch(many[:2])]) == "a batch that is too large"
    late = batch([durable("text", 2), durable("text", 3)])
    late.sequence = 4
    assert "its last event's" in refusal([started, late])
    assert "sequence 4 after 2" in refusal([started, batch([durable("text", 2), durable("text", 4)])])
    assert "without a sequence in a batch" in refusal([started, batch([body("notice"), durable("text", 2)])])
    assert "without a sequence in a batch" in refusal([started, batch([body("heartbeat")])])


def test_gaps_are_checked() -> None:
    assert "a gap from 3 after 1" in refusal([durable("started", 1), gap(3, 4)])
    assert "ends before it begins" in refusal([durable("started", 1), gap(2, 1)])
    assert "sequence 6 after 4" in refusal([durable("started", 1), gap(2, 4), durable("text", 6)])
    assert "sequence 4 after 4" in refusal([durable("started", 1), gap(2, 4), durable("text", 4)])


def test_the_attempt_is_held_after_a_join_too() -> None:
    assert "attempt 3 where 2 is due" in refusal([durable("text", 8, 2), durable("text", 9, 3)], 7)
    assert "attempt 4 where 3 is due" in refusal([durable("attempt_ended", 8, 2), durable("started", 9, 4)], 7)
    assert "of no attempt" in refusal([durable("text", 8, 0)], 7)


def test_request_ids_are_unique_within_a_run_and_answers_belong_to_requests() -> None:
    ask, answer = durable("input_request", 2), durable("input_resolved", 3)
    again = durable("input_request", 4)
    assert "twice" in refusal([durable("started", 1), ask, answer, again])
    assert "without its request" in refusal([durable("started", 1), durable("input_resolved", 2)])


def accepted(sequence: int, input_id: str = "i") -> pb.AgentEvent:
    event = durable("input_accepted", sequence)
    event.input_accepted.input_id = input_id
    return event


def settled(kind: str, sequence: int, input_id: str = "i") -> pb.AgentEvent:
    event = durable(kind, sequence)
    getattr(event, kind).input_id = input_id
    return event


@pytest.mark.parametrize("kind", ["message", "input_dropped"])
def test_an_accepted_input_is_taken_or_dropped_exactly_once(kind: str) -> None:
    began = [durable("started", 1), accepted(2)]
    accepts([*began, settled(kind, 3), durable("result", 4)])
    assert "does not wait" in refusal([durable("started", 1), settled(kind, 2)])
    for again in ("message", "input_dropped"):
        assert "does not wait" in refusal([*began, settled(kind, 3), settled(again, 4)])
    assert "twice" in refusal([*began, settled(kind, 3), accepted(4)])
    OrderChecker(7).observe(settled(kind, 8))  # it was accepted before the reader joined


@pytest.mark.parametrize("end", ["attempt_ended", "result"])
def test_an_accepted_input_does_not_outlast_its_attempt(end: str) -> None:
    assert "neither taken nor dropped" in refusal([durable("started", 1), accepted(2), durable(end, 3)])


@pytest.mark.parametrize("kind", sorted(EPHEMERAL_ONLY))
def test_some_kinds_never_have_a_sequence(kind: str) -> None:
    assert refusal([durable("started", 1), durable(kind, 2)]) == f"{kind} with a sequence"
