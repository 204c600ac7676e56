"""What a router's budgets make of what runs have spent: sums, what is left, and each text about it."""

from decimal import Decimal

import pytest
from dragoman.protocol.budgets import Used
from dragoman.protocol.errors import Reason
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.spending import Account, LabelBudget, Spent
from dragoman.router.policy import spending
from dragoman.v1 import adapter_pb2, router_pb2
from dragoman.v1 import event_pb2 as pb

TEAM = LabelBudget("team", pb.Budget(cost="2", currency="EUR", tool_calls=4), "day", runs=3, field="label:team")
ALL = LabelBudget("all", pb.Budget(tool_calls=1), "total")
MIDNIGHT = 86_400 * 20_000
OF_A = Account(TEAM.key, "a", MIDNIGHT, MIDNIGHT + 86_400)
OF_ALL = Account("all", "", 0, 0)
BILLION = 10**9


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("", None, [""]),
        ("label:team", None, ["a"]),
        ("label:team", "a", ["a"]),
        ("label:team", "b", []),
        ("label:none", None, [""]),
        ("task_key", "t", ["t"]),
        ("agent_id", "x", []),
    ],
)
def test_a_budget_is_for_the_runs_that_have_its_value(field: str, value: str | None, found: list[str]) -> None:
    record = RunRecord(run_id="r", adapter="fake", accepted_at=MIDNIGHT + 5.0, labels={"team": "a"}, task_key="t")
    budget = LabelBudget("b", pb.Budget(tool_calls=1), "day", field=field, value=value)
    accounts = [(budget, Account("b", value, MIDNIGHT, MIDNIGHT + 86_400)) for value in found]
    assert spending.accounts_of([budget], record) == accounts


def test_what_a_run_used_is_rounded_up_to_a_billionth_and_bounded() -> None:
    used = Used(cost=Decimal("0.0000000011"), input_tokens=1, output_tokens=2, model_calls=3, tool_calls=4)
    assert spending.as_spent(used, 5) == Spent(2, 1, 2, 3, 4, 5)
    most = spending.as_spent(Used(input_tokens=10**30), 0).input_tokens
    assert most < 2**63, "as databases can hold it"


def test_what_is_left_is_never_less_than_nothing() -> None:
    assert spending.left_of(TEAM, Spent(cost=BILLION // 2, tool_calls=9)) == pb.Budget(
        cost="1.5", currency="EUR", tool_calls=0
    )


@pytest.mark.parametrize(
    ("spent", "percent", "beyond", "reached"),
    [
        (Spent(), 80, False, None),
        (Spent(cost=BILLION), 80, False, None),
        (Spent(cost=1_600_000_000), 80, False, ("cost", "1.6 EUR", "2 EUR")),
        (Spent(cost=2 * BILLION), 100, True, None),
        (Spent(cost=2 * BILLION + 1), 100, True, ("cost", "2.000000001 EUR", "2 EUR")),
        (Spent(tool_calls=4), 100, False, ("tool_calls", "4", "4 tool calls")),
        (Spent(runs=3), 100, False, ("runs", "3", "3 runs")),
        (Spent(input_tokens=10**9), 100, False, None),
    ],
)
def test_a_cap_is_reached_at_its_share(
    spent: Spent, percent: int, beyond: bool, reached: tuple[str, str, str] | None
) -> None:
    found = spending.reached(TEAM, spent, percent, beyond=beyond)
    assert found == (None if reached is None else spending.Reached(*reached))


def test_one_is_not_many() -> None:
    found = spending.reached(ALL, Spent(tool_calls=1000), 100)
    assert found == spending.Reached("tool_calls", "1,000", "1 tool call")


@pytest.mark.parametrize(
    ("after", "is_nearer"),
    [
        (Spent(1, 1, 1, 1, 1, 1), False),
        (Spent(1, 9, 9, 9, 1, 1), False),
        (Spent(2, 1, 1, 1, 1, 1), True),
        (Spent(1, 1, 1, 1, 2, 1), True),
        (Spent(1, 1, 1, 1, 1, 2), True),
        (Spent(0, 1, 1, 1, 0, 0), False),
    ],
)
def test_only_what_is_capped_counts(after: Spent, is_nearer: bool) -> None:
    assert spending.is_nearer(TEAM, Spent(1, 1, 1, 1, 1, 1), after) == is_nearer


def test_a_refusal_says_which_budget_and_until_when() -> None:
    cap = spending.Reached("runs", "3", "3 runs")
    error = spending.refusal(TEAM, OF_A, cap)
    assert error.reason is Reason.BUDGET_SPENT
    assert error.message == (
        "The router's budget 'team' of label:team 'a' is spent: 3 of 3 runs. It resets at 2024-10-05T00:00:00Z."
    )
    assert error.metadata == {
        "budget": "team",
        "field": "label:team",
        "value": "a",
        "cap": "runs",
        "spent": "3",
        "limit": "3 runs",
        "resets_at": "2024-10-05T00:00:00Z",
    }
    error = spending.refusal(ALL, OF_ALL, spending.Reached("tool_calls", "1", "1 tool call"))
    assert error.message == "The router's budget 'all' is spent: 1 of 1 tool call. It does not reset."
    assert error.metadata == {"budget": "all", "cap": "tool_calls", "spent": "1", "limit": "1 tool call"}


def test_notices_and_failures_name_the_budget() -> None:
    notices, changes = list[tuple[str, str]](), list[bool]()
    record = RunRecord("r", "fake", 0.0)
    tally = spending.Tally(record, [(TEAM, OF_A)], lambda *notice: notices.append(notice), changes.append)
    tally.note()
    tally.take(pb.AgentEvent(usage=pb.Usage(cost=pb.Cost(amount="1", currency="USD"))), "usage")
    assert (record.spent, changes) == ({OF_A: Spent(runs=1)}, [True])
    assert tally.compare(TEAM, OF_A, Spent(cost=1_600_000_000)) is None
    assert tally.compare(TEAM, OF_A, Spent(cost=2_000_000_000, runs=9)) is None
    ending = tally.compare(TEAM, OF_A, Spent(cost=2_100_000_000))
    assert tally.compare(TEAM, OF_A, Spent(cost=2_200_000_000)) is None
    assert notices == [
        ("budget_unknown", "Cost in 'USD' does not count towards the router's budgets in EUR."),
        ("budget_warning", "Runs have used 1.6 EUR of 2 EUR of the router's budget 'team' of label:team 'a'."),
    ]
    assert ending is not None
    failure = ending.failure
    assert (failure.kind, failure.code, failure.retryable) == (
        pb.FAILURE_KIND_BUDGET_EXCEEDED,
        "router_budget_cost",
        False,
    )
    assert failure.message == (
        "The run and others exceeded the router's budget 'team' of label:team 'a': they used 2.1 EUR of 2 EUR."
        " Resume the session when there is more."
    )


def test_a_budget_is_lowered_as_far_as_it_can_be_kept() -> None:
    own = pb.Budget(cost="5", tool_calls=9, turns=2)
    most = [pb.Budget(cost="1", currency="EUR", tool_calls=4), pb.Budget(cost="3", input_tokens=7)]
    budget, why = spending.bounded(own, most, None)
    assert budget == pb.Budget(cost="3", tool_calls=4, turns=2, input_tokens=7)
    assert why == "The router's cap on cost in EUR does not lower the run's budget, which is in USD."
    assert own == pb.Budget(cost="5", tool_calls=9, turns=2), "the request stays as it is"
    assert most[0].cost == "1", "so does the policy"
    budget, why = spending.bounded(pb.Budget(turns=2), most[1:], adapter_pb2.DescribeResponse())
    assert budget == pb.Budget(turns=2)
    assert why == "The agent does not report cost and input tokens, which the router's budgets cap."


def test_a_budget_is_listed_with_what_is_spent_and_left() -> None:
    shown = spending.status(TEAM, OF_A, Spent(cost=BILLION // 2, input_tokens=5, tool_calls=6, runs=1))
    assert (shown.name, shown.field, shown.value, shown.warn_percent) == ("team", "label:team", "a", 80)
    assert shown.period == router_pb2.BUDGET_PERIOD_DAY
    assert (shown.starts_at.seconds, shown.resets_at.seconds) == (MIDNIGHT, MIDNIGHT + 86_400)
    amounts = router_pb2.BudgetAmounts
    assert shown.limit == amounts(cost="2", currency="EUR", tool_calls=4, runs=3)
    assert shown.spent == amounts(cost="0.5", currency="EUR", tool_calls=6, runs=1)
    assert shown.left == amounts(cost="1.5", currency="EUR", tool_calls=0, runs=2)
    lasting = spending.status(ALL, OF_ALL, Spent())
    assert not lasting.HasField("starts_at")
    assert not lasting.HasField("resets_at")
    assert (lasting.period, lasting.left.tool_calls) == (router_pb2.BUDGET_PERIOD_TOTAL, 1)
