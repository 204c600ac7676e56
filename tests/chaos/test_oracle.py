"""The oracle sees what is wrong: each kind of loss, doubling and invention, on a run that is otherwise good."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from dragoman.v1 import event_pb2 as pb

from tests.chaos.cases import STORAGES, cells, parse_case, sweep
from tests.chaos.oracle import Evidence, Problem, Sent, judge, tokens

PRINTED = [f"<{number}:0123456{number}>" for number in range(1, 5)]
SECRET = "chaos-secret"


def event(sequence: int, **body: object) -> pb.AgentEvent:
    created = pb.AgentEvent(sequence=sequence, run_id="r", attempt=1, origin=pb.EVENT_ORIGIN_AGENT)
    created.MergeFrom(pb.AgentEvent(**body))  # type: ignore[arg-type]  # one body, named by its field
    return created


def text(sequence: int, printed: str) -> pb.AgentEvent:
    return event(sequence, text=pb.Text(item_id=f"i-{sequence}", whole=f"{printed} hello"))


def good(case: str = "sqlite/client/process/streaming/0") -> Evidence:
    """Return a run that nothing is wrong with."""
    events = [event(1, started=pb.Started()), *(text(number + 2, printed) for number, printed in enumerate(PRINTED))]
    events.append(event(6, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED)))
    journal: list[dict[str, Any]] = [{"born": 1}, *({"said": printed} for printed in PRINTED), {"done": True}]
    rows = [(1, 3, True), (4, 6, True)]
    return Evidence(parse_case(1, case), journal, events, [copy.deepcopy(events)], secret=SECRET, rows=rows)


def lost(log: list[pb.AgentEvent], after: int) -> list[pb.AgentEvent]:
    """Return the log of a run that was lost behind a gap."""
    gap = pb.AgentEvent(run_id="r", gap=pb.Gap(from_sequence=after + 1, to_sequence=100))
    failure = pb.Failure(kind=pb.FAILURE_KIND_ADAPTER_LOST, message="gone")
    return [*log[:after], gap, event(101, result=pb.Result(outcome=pb.OUTCOME_LOST, failure=failure))]


def test_a_good_run_is_good() -> None:
    assert judge(good()) == pb.OUTCOME_SUCCEEDED


@pytest.mark.parametrize("victim", ["router_sidecar", "sidecar"])
def test_a_gap_before_lost_is_explicit_and_only_a_dead_routers(victim: str) -> None:
    evidence = good(f"sqlite/{victim}/process/streaming/0")
    assert evidence.log is not None
    reader = lost(evidence.log, 4)
    evidence.log = lost(evidence.log, 3)
    evidence.rows = [(1, 3, True), (4, 100, False), (101, 101, True)]
    evidence.readers = [reader]
    if victim == "router_sidecar":
        assert judge(evidence) == pb.OUTCOME_LOST
    else:
        with pytest.raises(Problem, match="its router lived"):
            judge(evidence)


def test_what_died_with_its_router_is_lost_behind_a_gap() -> None:
    evidence = good("sqlite/router_sidecar/process/tool/0")
    assert evidence.log is not None
    failure = pb.Failure(kind=pb.FAILURE_KIND_ADAPTER_LOST, message="gone")
    evidence.log[3:] = [event(4, result=pb.Result(outcome=pb.OUTCOME_LOST, failure=failure))]
    evidence.rows, evidence.readers = [(1, 4, True)], [list(evidence.log)]
    with pytest.raises(Problem, match="no gap"):
        judge(evidence)
    evidence.ended_first = True
    assert judge(evidence) == pb.OUTCOME_LOST
    evidence.log = lost(evidence.log, 3)
    evidence.rows, evidence.readers = [(1, 3, True), (4, 100, False), (101, 101, True)], [list(evidence.log)]
    with pytest.raises(Problem, match="a gap came into it"):
        judge(evidence)


def test_a_result_that_a_client_has_is_not_taken_back() -> None:
    evidence = good("sqlite/router_sidecar/process/finishing/0")
    assert evidence.log is not None
    evidence.log = lost(evidence.log, 3)
    with pytest.raises(Problem, match="got OUTCOME_SUCCEEDED, but the log has OUTCOME_LOST"):
        judge(evidence)


@pytest.mark.parametrize(("victim", "most"), [("owner", 1), ("owner_drained", 1), ("neighbour", 0)])
def test_a_run_goes_to_another_router_once_and_only_if_its_own_is_gone(victim: str, most: int) -> None:
    evidence = good(f"pair/{victim}/process/tool/0")
    evidence.moves = [("one", "other")] * most
    assert judge(evidence) == pb.OUTCOME_SUCCEEDED
    evidence.moves.append(("other", "one"))
    with pytest.raises(Problem, match="from router to router"):
        judge(evidence)


def test_a_run_without_an_agent_is_lost_only_if_its_request_is_not_repeated() -> None:
    evidence = good("pair/owner/process/before/0")
    failure = pb.Failure(kind=pb.FAILURE_KIND_ADAPTER_LOST, message="gone")
    result = pb.Result(outcome=pb.OUTCOME_LOST, failure=failure)
    end = pb.AgentEvent(sequence=1, run_id="r", origin=pb.EVENT_ORIGIN_ROUTER, result=result)
    evidence.log, evidence.readers, evidence.rows, evidence.journal = [end], [[end]], [(1, 1, True)], []
    assert judge(evidence) == pb.OUTCOME_LOST
    evidence.is_asked_for = True
    with pytest.raises(Problem, match="asked for again: True"):
        judge(evidence)
    evidence.is_asked_for, evidence.journal = False, [{"born": 1}]
    with pytest.raises(Problem, match="its agent began"):
        judge(evidence)


def drop_from_log(evidence: Evidence) -> None:
    assert evidence.log is not None
    del evidence.log[3]


def drop_everywhere(evidence: Evidence) -> None:
    """As if the parser had lost it: dense, and the same for all."""
    for events in [evidence.log or [], *evidence.readers]:
        del events[3]
        for sequence, one in enumerate(events, 1):
            one.sequence = sequence


def repeat_an_event(evidence: Evidence) -> None:
    for events in [evidence.log or [], *evidence.readers]:
        events[3].text.whole = events[2].text.whole


def rename(evidence: Evidence) -> None:
    evidence.readers[0][2].text.whole += "!"


def lose_the_end(evidence: Evidence) -> None:
    del evidence.readers[0][-1]


def end_twice(evidence: Evidence) -> None:
    evidence.readers[0].append(event(7, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED)))


def leak_the_secret(evidence: Evidence) -> None:
    for events in [evidence.log or [], *evidence.readers]:
        events[2].text.whole += SECRET


def invent(evidence: Evidence) -> None:
    evidence.journal.pop(2)


def succeed_too_early(evidence: Evidence) -> None:
    evidence.journal.pop()


def hide_behind_a_gap(evidence: Evidence) -> None:
    gap = pb.AgentEvent(run_id="r", gap=pb.Gap(from_sequence=3, to_sequence=4))
    evidence.readers[0][2:4] = [gap]


def keep_twice(evidence: Evidence) -> None:
    evidence.rows = [(1, 3, True), (3, 6, True)]


def store_less_than_is_replayed(evidence: Evidence) -> None:
    evidence.rows = [(1, 5, True), (6, 6, False)]


def start_twice(evidence: Evidence) -> None:
    evidence.journal.insert(1, {"born": 2})


def attempt_twice(evidence: Evidence) -> None:
    for events in [evidence.log or [], *evidence.readers]:
        for one in events:
            one.attempt = 2


def forget(evidence: Evidence) -> None:
    evidence.log = None


def refuse(evidence: Evidence) -> None:
    evidence.refused = "UNAVAILABLE"


@pytest.mark.parametrize(
    "tamper",
    [
        *(drop_from_log, drop_everywhere, repeat_an_event, rename, lose_the_end, end_twice, leak_the_secret),
        *(invent, succeed_too_early, hide_behind_a_gap, forget, refuse),
        *(keep_twice, store_less_than_is_replayed, start_twice, attempt_twice),
    ],
)
def test_what_is_wrong_is_seen(tamper: Callable[[Evidence], None]) -> None:
    evidence = good()
    tamper(evidence)
    with pytest.raises(Problem):
        judge(evidence)


@pytest.mark.parametrize("victim", ["sidecar", "agent", "guard"])
def test_a_run_that_outlived_its_victim_is_wrong(victim: str) -> None:
    with pytest.raises(Problem, match="SUCCEEDED"):
        judge(good(f"sqlite/{victim}/process/streaming/0"))


def test_a_killed_agent_may_have_one_output_in_flight() -> None:
    evidence = good("sqlite/agent/process/streaming/0")
    failure = pb.Failure(kind=pb.FAILURE_KIND_PROCESS_CRASHED, message="gone")
    for events in [evidence.log or [], *evidence.readers]:
        del events[-2:]
        events.append(event(5, result=pb.Result(outcome=pb.OUTCOME_FAILED, failure=failure)))
    evidence.rows = [(1, 5, True)]
    assert judge(evidence) == pb.OUTCOME_FAILED
    evidence.journal.insert(5, {"said": "<5:01234567>"})
    with pytest.raises(Problem, match="2 outputs"):
        judge(evidence)


def test_a_token_that_an_event_has_twice_counts_once() -> None:
    call = pb.ToolCall(id="c", name=PRINTED[0], input_json=f'{{"what": "{PRINTED[0]}"}}')
    assert tokens([event(1, tool_call=call), text(2, PRINTED[1])]) == PRINTED[:2]


@pytest.mark.parametrize("storage", STORAGES)
def test_a_sweep_has_every_cell_and_is_the_seeds(storage: str) -> None:
    cases = [case for _, group in sweep(7, storage, 0) for case in group]
    assert len({case.name for case in cases}) == len(cases)
    assert {case.cell for case in cases} == set(cells(storage))
    assert sweep(7, storage, 0) == sweep(7, storage, 0) != sweep(8, storage, 0)
    assert all(parse_case(7, case.name) == case for case in cases)


def sent(case: str = "sqlite/client/acp/streaming/0") -> Evidence:
    """Return a run that took an input in its second turn, and that nothing is wrong with."""
    evidence = good(case)
    evidence.sent = Sent("in-1", [2, 2])
    evidence.journal[-1:] = [{"done": True}, {"born": 2}, {"took": "in-1"}, {"done": True}]
    rewrite(evidence, lambda events: [events[0], accepted(), *events[1:-1], taken(), events[-1]])
    return evidence


def accepted() -> pb.AgentEvent:
    return event(0, input_accepted=pb.InputAccepted(input_id="in-1", text="do", mode=pb.INPUT_MODE_QUEUE))


def taken() -> pb.AgentEvent:
    return event(0, message=pb.Message(role=pb.MESSAGE_ROLE_USER, text="do", input_id="in-1"))


def rewrite(evidence: Evidence, change: Callable[[list[pb.AgentEvent]], list[pb.AgentEvent]]) -> None:
    """Change the run's events, for the log and all clients."""
    assert evidence.log is not None
    events = [copy.deepcopy(one) for one in change(evidence.log)]
    for sequence, one in enumerate(events, 1):
        one.sequence = sequence
    evidence.log, evidence.readers, evidence.rows = events, [list(events)], [(1, len(events), True)]


def budgeted() -> Evidence:
    """Return a run that exceeded its budget, and that nothing is wrong with."""
    case = next(
        name
        for name in (f"sqlite/client/acp/streaming/{number}" for number in range(100))
        if parse_case(1, name).has_budget
    )
    evidence = good(case)
    evidence.journal[-1] = {"stopped": True}
    warning = event(0, notice=pb.Notice(code="budget_warning", message="near", severity=pb.SEVERITY_WARNING))
    failure = pb.Failure(kind=pb.FAILURE_KIND_BUDGET_EXCEEDED, message="exceeded")
    end = event(0, result=pb.Result(outcome=pb.OUTCOME_FAILED, failure=failure))
    rewrite(evidence, lambda events: [events[0], warning, *events[1:-1], end])
    return evidence


def test_an_input_that_is_accepted_and_taken_is_good() -> None:
    assert judge(sent()) == pb.OUTCOME_SUCCEEDED


def test_an_input_that_a_run_refused_is_good_if_it_never_came() -> None:
    evidence = good("sqlite/client/acp/streaming/0")
    evidence.sent = Sent("in-1", [0, 0])
    assert judge(evidence) == pb.OUTCOME_SUCCEEDED
    evidence.journal.insert(1, {"took": "in-1"})
    with pytest.raises(Problem):
        judge(evidence)


def forget_what_was_accepted(evidence: Evidence) -> None:
    rewrite(evidence, lambda events: [one for one in events if "input" not in str(one)])
    evidence.journal[-3:] = []


def refuse_what_was_accepted(evidence: Evidence) -> None:
    assert evidence.sent is not None
    evidence.sent.answers = [0]


def answer_otherwise_later(evidence: Evidence) -> None:
    assert evidence.sent is not None
    evidence.sent.answers = [2, 3]


def take_it_twice(evidence: Evidence) -> None:
    evidence.journal.insert(-1, {"took": "in-1"})


def never_take_it(evidence: Evidence) -> None:
    evidence.journal.remove({"took": "in-1"})


def drop_what_the_agent_took(evidence: Evidence) -> None:
    dropped = event(0, input_dropped=pb.InputDropped(input_id="in-1", reason="run_ended"))
    rewrite(evidence, lambda events: [*events[:-2], dropped, events[-1]])


def begin_a_third_turn(evidence: Evidence) -> None:
    evidence.journal[-1:] = [{"done": True}, {"born": 3}, {"done": True}]


@pytest.mark.parametrize(
    "tamper",
    [
        *(forget_what_was_accepted, refuse_what_was_accepted, answer_otherwise_later, take_it_twice, never_take_it),
        *(drop_what_the_agent_took, begin_a_third_turn),
    ],
)
def test_what_is_wrong_with_an_input_is_seen(tamper: Callable[[Evidence], None]) -> None:
    evidence = sent()
    tamper(evidence)
    with pytest.raises(Problem):
        judge(evidence)


def test_an_input_of_a_run_that_is_lost_is_dropped_too() -> None:
    evidence = sent("sqlite/sidecar/acp/streaming/0")
    failure = pb.Failure(kind=pb.FAILURE_KIND_ADAPTER_LOST, message="gone")
    end = event(0, result=pb.Result(outcome=pb.OUTCOME_LOST, failure=failure))
    rewrite(evidence, lambda events: [*events[:-2], end])
    evidence.journal[-3:] = []
    with pytest.raises(Problem, match="lost or doubled"):
        judge(evidence)
    dropped = event(0, input_dropped=pb.InputDropped(input_id="in-1", reason="agent_lost"))
    rewrite(evidence, lambda events: [*events[:-1], dropped, end])
    assert judge(evidence) == pb.OUTCOME_LOST


def test_a_budget_that_was_exceeded_once_is_good() -> None:
    assert judge(budgeted()) == pb.OUTCOME_FAILED


def forget_the_budget(evidence: Evidence) -> None:
    evidence.journal[-1] = {"done": True}
    rewrite(evidence, lambda events: [*events[:-1], event(0, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))])


def warn_twice(evidence: Evidence) -> None:
    rewrite(evidence, lambda events: [*events[:2], *events[1:]])


def warn_never(evidence: Evidence) -> None:
    rewrite(evidence, lambda events: [events[0], *events[2:]])


def leave_the_agent_alone(evidence: Evidence) -> None:
    evidence.journal.pop()


def exceed_what_there_is_not(evidence: Evidence) -> None:
    evidence.case = parse_case(1, "sqlite/client/process/streaming/0")


@pytest.mark.parametrize(
    "tamper", [forget_the_budget, warn_twice, warn_never, leave_the_agent_alone, exceed_what_there_is_not]
)
def test_what_is_wrong_with_a_budget_is_seen(tamper: Callable[[Evidence], None]) -> None:
    evidence = budgeted()
    tamper(evidence)
    with pytest.raises(Problem):
        judge(evidence)
