"""Budgets: what is wrong with one, what counts towards it, and what is left."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from dragoman.protocol.budgets import (
    BudgetMeter,
    Decision,
    Used,
    amount_of,
    at_end_message,
    budget_excess,
    budget_failure,
    budget_problems,
    decision_notice,
    lowered_budget,
    narrowed_budget,
    never_reported,
    unreported_message,
)
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

CALL, TURN, RUN, SESSION = pb.USAGE_SCOPE_CALL, pb.USAGE_SCOPE_TURN, pb.USAGE_SCOPE_RUN, pb.USAGE_SCOPE_SESSION
DELTA, CUMULATIVE = pb.USAGE_SEMANTICS_DELTA, pb.USAGE_SEMANTICS_CUMULATIVE


def usage(
    scope: Any = CALL,
    semantics: Any = DELTA,
    tokens: dict[str, int] | None = None,
    cost: str = "",
    currency: str = "USD",
) -> pb.AgentEvent:
    """Return a report."""
    report = pb.Usage(scope=scope, semantics=semantics)
    if tokens is not None:
        report.tokens.CopyFrom(pb.TokenCounts(**tokens))
    if cost:
        report.cost.CopyFrom(pb.Cost(amount=cost, currency=currency))
    return pb.AgentEvent(usage=report)


def call(number: object, name: str = "Bash", input_json: str = "{}") -> pb.AgentEvent:
    """Return the start of a tool call."""
    return pb.AgentEvent(tool_call=pb.ToolCall(id=str(number), name=name, input_json=input_json))


def ended(number: object, status: Any = pb.TOOL_STATUS_COMPLETED, content: str = "ok") -> pb.AgentEvent:
    """Return its result."""
    result = pb.ToolResult(tool_call_id=str(number), status=status, content=content)
    if status == pb.TOOL_STATUS_COMPLETED:
        result.exit_code = 0
    return pb.AgentEvent(tool_result=result)


def started(disposition: Any = pb.SESSION_DISPOSITION_NEW) -> pb.AgentEvent:
    """Return the beginning of an attempt."""
    return pb.AgentEvent(started=pb.Started(session_disposition=disposition))


def take(meter: BudgetMeter, *events: pb.AgentEvent) -> list[Decision]:
    """Return what is due after these events."""
    return [decision for event in events for decision in meter.take(event)]


def shown(decisions: Sequence[Decision]) -> list[tuple[str, str]]:
    """Return kinds and caps."""
    return [(decision.kind, decision.cap) for decision in decisions]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"ask": True}, "limits.budget"),
        ({"warn_percent": 50}, "limits.budget"),
        ({"currency": "EUR"}, "limits.budget"),
        *(
            ({"cost": text}, "limits.budget.cost")
            for text in ("0", "0.00", "-1", "1e3", " 1", "1.", ".5", "1,5", "x")
        ),
        *(({"cost": text}, "limits.budget.cost") for text in ("1" * 13, "0." + "1" * 11, "٣", "1\n", "NaN")),
        *(({"cost": "1", "currency": text}, "limits.budget.currency") for text in ("usd", "$", "EURO", "EUR\n")),
        ({"tool_calls": 1, "currency": "EUR"}, "limits.budget.currency"),
        *(
            ({name: 0}, f"limits.budget.{name}")
            for name in ("input_tokens", "output_tokens", "model_calls", "repeats")
        ),
        ({"turns": 0}, "limits.budget.turns"),
        ({"input_tokens": 10**15 + 1}, "limits.budget.input_tokens"),
        ({"tool_calls": 1, "warn_percent": 0}, "limits.budget.warn_percent"),
        ({"tool_calls": 1, "warn_percent": 101}, "limits.budget.warn_percent"),
    ],
)
def test_a_wrong_budget_names_the_field(fields: dict[str, Any], path: str) -> None:
    assert path in [problem.path for problem in budget_problems(pb.Budget(**fields))]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cost": "2.50"},
        {"cost": "999999999999.9999999999", "currency": "EUR"},
        {"tool_calls": 0},
        {"input_tokens": 10**15, "output_tokens": 1, "model_calls": 1, "turns": 1, "repeats": 1},
        {"cost": "0.0000000001", "ask": True, "warn_percent": 100},
    ],
)
def test_a_good_budget_has_no_problems(fields: dict[str, Any]) -> None:
    assert budget_problems(pb.Budget(**fields)) == []


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0.0026", Decimal("0.0026")),
        ("1e-7", Decimal("1e-7")),
        ("0", Decimal(0)),
        *((text, None) for text in ("", "-1", "NaN", "Infinity", "1e999999999", "1e-99", "9" * 65, "one")),
    ],
)
def test_what_an_agent_says_of_money(text: str, amount: Decimal | None) -> None:
    assert amount_of(text) == amount


def test_calls_are_added_and_cache_reads_count_as_input() -> None:
    meter = BudgetMeter(pb.Budget(input_tokens=100, output_tokens=100, model_calls=2))
    tokens = {"input": 10, "cache_read": 20, "cache_write": 5, "output": 7, "reasoning": 3}
    assert take(meter, usage(tokens=tokens), usage(tokens=tokens)) == [
        Decision("warn", "model_calls", "2", "2 model calls")
    ]
    assert meter.used == Used(input_tokens=70, output_tokens=14, model_calls=2)
    assert shown(take(meter, usage(tokens=tokens))) == [("exceeded", "input_tokens")]
    decision = meter.exceeded or Decision("unknown", "cost")
    failure = budget_failure(decision)
    assert failure.message.startswith("The run exceeded limits.budget.input_tokens: it used 105 of 100 input tokens.")
    assert (failure.kind, failure.code) == (pb.FAILURE_KIND_BUDGET_EXCEEDED, "budget_input_tokens")


def test_only_the_first_cap_is_exceeded() -> None:
    meter = BudgetMeter(pb.Budget(tool_calls=0, repeats=1))
    assert shown(take(meter, call(1), ended(1), call(2), ended(2))) == [
        ("exceeded", "tool_calls"),
        ("warn", "repeats"),
    ]


def test_what_is_exactly_used_is_not_exceeded() -> None:
    meter = BudgetMeter(pb.Budget(cost="0.30", warn_percent=100))
    assert take(meter, usage(cost="0.1"), usage(cost="0.1")) == []
    assert take(meter, usage(cost="0.1")) == [Decision("warn", "cost", "0.3", "0.3 USD")]
    assert meter.is_used_up
    assert take(meter, usage(cost="0.0000000001")) == [Decision("exceeded", "cost", "0.3000000001", "0.3 USD")]


def test_a_report_of_limits_alone_is_no_call() -> None:
    meter = BudgetMeter(pb.Budget(model_calls=1))
    assert take(meter, usage(), usage(), usage()) == []
    assert meter.used.model_calls == 0


def test_reports_while_a_call_runs_are_one_call() -> None:
    meter = BudgetMeter(pb.Budget(output_tokens=100))
    take(meter, *(usage(CALL, CUMULATIVE, {"output": count}) for count in (1, 5, 9, 2, 4)))
    assert meter.used == Used(output_tokens=13, model_calls=2)


def test_the_same_tokens_in_two_scopes_count_once() -> None:
    meter = BudgetMeter(pb.Budget(output_tokens=100))
    take(meter, usage(tokens={"output": 5}), usage(tokens={"output": 6}), usage(TURN, DELTA, {"output": 11}))
    take(meter, usage(RUN, CUMULATIVE, {"output": 12}), usage(RUN, CUMULATIVE, {"output": 3}))
    assert meter.used.output_tokens == 12


@pytest.mark.parametrize(
    ("disposition", "expected"), [(pb.SESSION_DISPOSITION_NEW, "0.5"), (pb.SESSION_DISPOSITION_RESUME, "0.2")]
)
def test_what_earlier_runs_of_the_session_cost_is_not_counted(disposition: Any, expected: str) -> None:
    meter = BudgetMeter(pb.Budget(cost="9"))
    take(meter, started(disposition), usage(SESSION, CUMULATIVE, cost="0.3"), usage(SESSION, CUMULATIVE, cost="0.5"))
    assert meter.used.cost == Decimal(expected)
    meter.turn_ended()
    take(meter, usage(SESSION, CUMULATIVE, cost="0.6"))
    assert meter.used.cost == Decimal(expected) + Decimal("0.1")


def test_the_end_of_an_attempt_states_its_whole_and_attempts_add_up() -> None:
    meter = BudgetMeter(pb.Budget(output_tokens=100, tool_calls=10))
    total = usage(RUN, CUMULATIVE, {"output": 20}).usage
    take(meter, started(), call(1), usage(tokens={"output": 5}))
    take(meter, pb.AgentEvent(attempt_ended=pb.AttemptEnded(usage=total)))
    take(meter, started(), call(1), usage(tokens={"output": 7}))
    assert meter.used == Used(output_tokens=27, tool_calls=2, model_calls=2)
    result = pb.AgentEvent(result=pb.Result(usage=total, counters=pb.RunCounters(tool_calls=3)))
    take(meter, result, result)
    assert meter.used == Used(output_tokens=40, tool_calls=4, model_calls=2)


def test_cost_in_another_currency_is_reported_once_and_not_counted() -> None:
    meter = BudgetMeter(pb.Budget(cost="1"))
    assert take(meter, *[usage(cost="5", currency="EUR")] * 3) == [Decision("unknown", "cost", "EUR", "USD")]
    assert meter.used.cost == 0
    assert meter.unreported == ["cost"]
    assert take(BudgetMeter(pb.Budget(tool_calls=1)), usage(cost="5", currency="EUR")) == []


def test_the_cost_of_each_model_counts_where_there_is_no_total() -> None:
    event = usage(tokens={"output": 1})
    for _ in range(2):
        event.usage.models.add(model="m").cost.CopyFrom(pb.Cost(amount="0.2", currency="USD"))
    meter = BudgetMeter(pb.Budget(cost="1"))
    take(meter, event)
    assert meter.used.cost == Decimal("0.4")
    assert meter.unreported == []


def test_calls_without_progress() -> None:
    meter = BudgetMeter(pb.Budget(repeats=2, warn_percent=100))
    assert take(meter, call(1), ended(1)) == []
    assert shown(take(meter, call(2), ended(2))) == [("warn", "repeats")]
    assert take(meter, call(3, input_json='{"a": 1}'), ended(3), call(4), ended(4, content="other")) == []
    assert shown(take(meter, call(5), ended(5, content="other"), call(6), ended(6, content="other"))) == [
        ("exceeded", "repeats")
    ]
    assert meter.used.repeats == 3


def test_failures_are_the_same_whatever_they_say() -> None:
    meter = BudgetMeter(pb.Budget(repeats=2))
    for number in range(3):
        take(meter, call(number), ended(number, pb.TOOL_STATUS_FAILED, f"at {number}"))
    assert meter.exceeded is not None


def test_what_is_not_known_to_be_the_same_is_progress() -> None:
    meter = BudgetMeter(pb.Budget(repeats=1))
    assert take(meter, *(event for number in range(5) for event in (call(number, "", ""), ended(number)))) == []


def test_asking_and_raising_a_cap_once() -> None:
    meter = BudgetMeter(pb.Budget(tool_calls=2, ask=True), asks=True)
    assert shown(take(meter, call(1), call(2))) == [("ask", "tool_calls")]
    meter.raise_cap("tool_calls")
    assert shown(take(meter, call(3), call(4))) == [("warn", "tool_calls")]
    meter.raise_cap("tool_calls")
    assert shown(take(meter, call(5))) == [("exceeded", "tool_calls")]
    assert shown(take(BudgetMeter(pb.Budget(tool_calls=2, ask=True)), call(1), call(2))) == [("warn", "tool_calls")]


def test_turns() -> None:
    meter = BudgetMeter(pb.Budget(turns=2))
    assert meter.turn_begins() == []
    meter.turn_ended()
    assert meter.turn_begins() == []
    meter.turn_ended()
    assert not meter.is_used_up, "another attempt has turns of its own"
    assert shown(meter.turn_begins()) == [("exceeded", "turns")]


def test_what_is_left_for_another_attempt() -> None:
    budget = pb.Budget(cost="1.5", input_tokens=10, tool_calls=3, repeats=4, warn_percent=50)
    narrowed_budget(budget, Used(cost=Decimal("0.25"), input_tokens=12, tool_calls=3, repeats=4, output_tokens=5))
    assert budget == pb.Budget(cost="1.25", input_tokens=0, tool_calls=0, repeats=4, warn_percent=50)


def test_what_is_left_is_a_valid_budget_and_never_nothing() -> None:
    budget = pb.Budget(cost="2")
    narrowed_budget(budget, Used(cost=Decimal("0.000123456789012")))
    assert budget.cost == "1.9998765433"
    narrowed_budget(budget, Used(cost=Decimal("1.99987654329999")))
    assert budget.cost == "0.0000000001"
    assert budget_problems(budget) == []


def test_lowering_a_budget() -> None:
    budget = pb.Budget(cost="5", tool_calls=3, ask=True)
    problems = [lowered_budget(budget, pb.Budget(cost="2", tool_calls=9, turns=1, warn_percent=10))]
    assert budget == pb.Budget(cost="2", tool_calls=3, turns=1, ask=True)
    problems.append(lowered_budget(budget, pb.Budget(cost="1", currency="EUR", turns=1)))
    assert [problem and problem.path for problem in problems] == [None, "limits.budget.currency"]
    assert budget.cost == "2"


COUNTS = st.fixed_dictionaries({}, optional={name: st.integers(0, 50) for name in ("input", "output", "cache_read")})
REPORTS = st.builds(
    usage,
    st.sampled_from([0, CALL, TURN, RUN, SESSION]),
    st.sampled_from([0, DELTA, CUMULATIVE]),
    st.none() | COUNTS,
    st.sampled_from(["", "0.1", "2", "-1", "x"]),
    st.sampled_from(["USD", "EUR", ""]),
)
NUMBERS = st.integers(0, 5)
EVENTS = st.lists(
    REPORTS
    | st.builds(call, NUMBERS, st.sampled_from(["a", "b"]))
    | st.builds(ended, NUMBERS, st.sampled_from([pb.TOOL_STATUS_COMPLETED, pb.TOOL_STATUS_FAILED]))
    | st.builds(started, st.sampled_from([pb.SESSION_DISPOSITION_NEW, pb.SESSION_DISPOSITION_RESUME]))
    | st.builds(lambda report: pb.AgentEvent(result=pb.Result(usage=report.usage)), REPORTS)
    | st.builds(lambda report: pb.AgentEvent(attempt_ended=pb.AttemptEnded(usage=report.usage)), REPORTS),
    max_size=30,
)
ALL = pb.Budget(cost="3", input_tokens=90, output_tokens=90, model_calls=5, tool_calls=4, turns=9, repeats=2)


@given(EVENTS)
def test_what_is_used_only_grows_and_an_exceeded_cap_stays_so(events: list[pb.AgentEvent]) -> None:
    meter, before = BudgetMeter(ALL), Used()
    for event in events:
        was_exceeded = meter.exceeded
        meter.take(event)
        after = meter.used
        assert all(getattr(after, name) >= getattr(before, name) >= 0 for name in Used.__struct_fields__)
        assert was_exceeded is None or meter.exceeded is was_exceeded
        left = pb.Budget()
        left.CopyFrom(ALL)
        narrowed_budget(left, after)
        assert Decimal(left.cost) >= 0
        before = after


@given(EVENTS, st.lists(st.integers(1, 5), max_size=10))
def test_batches_make_no_difference(events: list[pb.AgentEvent], sizes: list[int]) -> None:
    single, batched = BudgetMeter(ALL), BudgetMeter(ALL)
    expected = take(single, *events)
    found, at = [], 0
    for size in [*sizes, len(events)]:
        if events[at : at + size]:
            found += batched.take(pb.AgentEvent(batch=pb.Batch(events=events[at : at + size])))
        at += size
    assert found == expected
    assert batched.used == single.used


def capabilities(*features: Any, reporting: Any = pb.USAGE_REPORTING_UNSPECIFIED) -> pb.Capabilities:
    """Return what an adapter declares."""
    declared = pb.Capabilities(usage_reporting=reporting)
    for feature in features:
        declared.items.add(feature=feature)
    return declared


@pytest.mark.parametrize(
    ("declared", "refused"),
    [
        (capabilities(), {"cost", "input_tokens", "output_tokens", "model_calls", "tool_calls", "repeats"}),
        (capabilities(pb.FEATURE_TOOL_START, pb.FEATURE_COST), {"input_tokens", "output_tokens", "model_calls"}),
        (capabilities(pb.FEATURE_PER_CALL_USAGE), {"cost", "tool_calls", "repeats"}),
        (
            capabilities(reporting=pb.USAGE_REPORTING_AT_END),
            {"cost", "model_calls", "tool_calls", "repeats"},
        ),
        (capabilities(reporting=pb.USAGE_REPORTING_EXACT), {"cost", "tool_calls", "repeats"}),
        (capabilities(pb.FEATURE_PER_MODEL_USAGE), {"cost", "model_calls", "tool_calls", "repeats"}),
    ],
)
def test_caps_on_what_is_never_reported(declared: pb.Capabilities, refused: set[str]) -> None:
    assert {one.path for one in never_reported(ALL, declared)} == {f"limits.budget.{name}" for name in refused}
    assert never_reported(pb.Budget(turns=1), declared) == []


@pytest.mark.parametrize(
    ("reporting", "names"),
    [
        (pb.USAGE_REPORTING_EXACT, ()),
        (pb.USAGE_REPORTING_PER_CALL, ("cost",)),
        (pb.USAGE_REPORTING_AT_END, ("cost", "input_tokens", "output_tokens")),
    ],
)
def test_what_may_be_exceeded_before_it_is_known(reporting: Any, names: Sequence[str]) -> None:
    message = at_end_message(ALL, capabilities(reporting=reporting))
    assert [name for name in ("cost", "input_tokens", "output_tokens") if name in message] == list(names)
    assert at_end_message(pb.Budget(tool_calls=1), capabilities(reporting=reporting)) == ""


def test_words() -> None:
    assert unreported_message([]) == ""
    assert "limits.budget.cost and limits.budget.output_tokens" in unreported_message(["cost", "output_tokens"])
    kinds: list[Any] = ["warn", "ask", "exceeded", "unknown"]
    shown_as = [decision_notice(Decision(kind, "cost", "2.1", "2 USD")) for kind in kinds]
    codes = ["budget_warning", "budget_warning", "budget_exceeded", "budget_unknown"]
    assert [code for code, _ in shown_as] == codes
    assert shown_as[0][1] == "The run has used 2.1 of 2 USD (limits.budget.cost)."


@pytest.mark.parametrize(
    ("budget", "above"),
    [
        (pb.Budget(), []),
        (pb.Budget(cost="2", tool_calls=4, turns=99), []),
        (pb.Budget(cost="2.01", tool_calls=5), ["cost", "tool_calls"]),
        (pb.Budget(cost="1", currency="EUR"), ["currency"]),
        (pb.Budget(cost="1", tool_calls=2, ask=True), []),
        (pb.Budget(cost="1.5", ask=True), ["cost", "ask"]),
    ],
)
def test_what_is_above_other_caps(budget: pb.Budget, above: list[str]) -> None:
    found = budget_excess(budget, pb.Budget(cost="2", currency="USD", tool_calls=4))
    assert [one.path for one in found] == [f"limits.budget.{name}" for name in above]


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        (
            {"warn_percent": 5},
            [("", "sets no cap: give cost, input_tokens, output_tokens, model_calls, tool_calls, turns or repeats")],
        ),
        (
            {"cost": "0"},
            [
                (
                    ".cost",
                    'must be a plain decimal number above zero such as "2.50", of 12 digits and 10 behind the point',
                )
            ],
        ),
        ({"turns": 1, "currency": "EUR"}, [(".currency", "goes with cost")]),
        ({"cost": "1", "currency": "EURO"}, [(".currency", 'must be three capital letters such as "USD"')]),
        ({"turns": 0}, [(".turns", "must be from 1 to 1,000,000,000,000,000")]),
        ({"turns": 1, "warn_percent": 0}, [(".warn_percent", "must be from 1 to 100")]),
    ],
)
def test_a_problem_says_what_would_be_right(fields: dict[str, Any], problems: list[tuple[str, str]]) -> None:
    found = [
        (one.path.removeprefix("limits.budget"), one.description) for one in budget_problems(pb.Budget(**fields))
    ]
    assert found == problems


def test_what_an_agent_does_not_report_is_named() -> None:
    budget = pb.Budget(cost="1", input_tokens=1, output_tokens=1, model_calls=1, tool_calls=1, turns=1, repeats=1)
    nouns = {
        "cost": "cost",
        "input_tokens": "input tokens",
        "output_tokens": "output tokens",
        "model_calls": "model calls",
        "tool_calls": "tool calls",
        "repeats": "tool calls without progress",
    }
    assert [(one.path, one.description) for one in never_reported(budget, pb.Capabilities())] == [
        (f"limits.budget.{cap}", f"its agent does not report {noun}; leave it out") for cap, noun in nouns.items()
    ]
    assert at_end_message(budget, pb.Capabilities()) == (
        "The agent may report its usage only when it ends: limits.budget.cost and limits.budget.input_tokens and"
        " limits.budget.output_tokens may be exceeded before."
    )
    assert unreported_message(["turns"]) == (
        "The agent did not report what counts towards limits.budget.turns, so it was not kept."
    )


def test_what_is_above_says_by_how_much() -> None:
    most = pb.Budget(cost="2", currency="EUR", tool_calls=4, turns=3)
    asks = budget_excess(pb.Budget(cost="1", tool_calls=5, ask=True), most)
    assert [(one.path.removeprefix("limits.budget."), one.description) for one in asks] == [
        ("currency", "must be EUR"),
        ("ask", "may double the cap: set cost to at most half of 2"),
        ("tool_calls", "5 is more than the allowed 4, and its question may double it"),
        ("ask", "may double the cap: set turns to at most half of 3"),
    ]
    (plain,) = budget_excess(pb.Budget(tool_calls=5), most)
    assert plain.description == "5 is more than the allowed 4"


def test_caps_are_lowered_to_those_of_another_budget_in_its_currency() -> None:
    budget = pb.Budget(tool_calls=9, turns=1)
    assert lowered_budget(budget, pb.Budget(cost="2", currency="EUR", tool_calls=4, turns=3)) is None
    assert budget == pb.Budget(cost="2", currency="EUR", tool_calls=4, turns=1)
    refused = lowered_budget(budget, pb.Budget(cost="1", tool_calls=1))
    assert refused is not None
    assert (refused.path, refused.description) == ("limits.budget.currency", "must be USD")
    assert budget.tool_calls == 4, "nothing is lowered"


def test_a_lowered_cost_is_in_the_currency_of_the_cap() -> None:
    budget = pb.Budget(cost="3")
    assert lowered_budget(budget, pb.Budget(cost="2", currency="USD")) is None
    assert budget == pb.Budget(cost="2", currency="USD")
    assert lowered_budget(budget, pb.Budget(cost="1")) is None
    assert budget == pb.Budget(cost="1")
    above = budget_excess(pb.Budget(cost="3", currency="EUR"), pb.Budget(cost="2"))
    assert [(one.path, one.description) for one in above] == [("limits.budget.currency", "must be USD")]
    assert budget_excess(pb.Budget(cost="2", currency="USD"), pb.Budget(cost="2")) == []
