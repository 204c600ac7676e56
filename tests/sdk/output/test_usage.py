"""Calls add up to a run; what was not reported stays absent."""

from decimal import Decimal

import pytest
from dragoman.sdk.parsing import UsageTotals, add_call, call_usage, cost_in_dollars, run_usage, token_counts
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

MOST = 2**63 - 1
COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning")
counts = st.dictionaries(st.sampled_from(COUNTS), st.integers(0, MOST))


def call(tokens: dict[str, int], model: str = "") -> pb.Usage:
    usage = pb.Usage(scope=pb.USAGE_SCOPE_CALL, tokens=pb.TokenCounts(**tokens))
    if model:
        usage.models.add(model=model).tokens.CopyFrom(usage.tokens)
    return usage


@settings(max_examples=100)
@given(st.lists(st.tuples(counts, st.sampled_from(["", "a", "b"])), min_size=1, max_size=5))
def test_a_run_has_used_what_its_calls_have(calls: list[tuple[dict[str, int], str]]) -> None:
    total = None
    for tokens, model in calls:
        total = add_call(total, call(tokens, model))
    assert total is not None
    assert (total.scope, total.semantics) == (pb.USAGE_SCOPE_RUN, pb.USAGE_SEMANTICS_CUMULATIVE)
    assert _present(total.tokens) == _sum([tokens for tokens, _ in calls])
    assert {share.model: _present(share.tokens) for share in total.models} == {
        name: _sum([tokens for tokens, model in calls if model == name]) for name in {m for _, m in calls} - {""}
    }


def test_earlier_usage_stays_as_it_was_reported() -> None:
    before = add_call(None, call({"input": 1}))
    assert add_call(before, call({"input": 2, "output": 0})).tokens == pb.TokenCounts(input=3, output=0)
    assert before.tokens == pb.TokenCounts(input=1)


def _present(tokens: pb.TokenCounts) -> dict[str, int]:
    return {field.name: value for field, value in tokens.ListFields()}


def _sum(calls: list[dict[str, int]]) -> dict[str, int]:
    names = {name for tokens in calls for name in tokens}
    return {name: min(sum(tokens.get(name, 0) for tokens in calls), MOST) for name in names}


def test_numbers_of_tokens_are_read_and_absent_is_not_zero() -> None:
    names = {"in": "input", "out": "output"}
    tokens = token_counts({"in": 0, "out": -1, "more": 5}, names)
    assert tokens is not None
    assert _present(tokens) == {"input": 0}
    assert token_counts({"in": "5", "out": None}, names) is None
    assert token_counts({"in": 2**70}, names) is None


def test_usage_of_a_call_and_of_a_run_say_what_they_are() -> None:
    tokens = pb.TokenCounts(input=1)
    call, run = call_usage(tokens, "m"), run_usage()
    assert (call.scope, call.semantics) == (pb.USAGE_SCOPE_CALL, pb.USAGE_SEMANTICS_DELTA)
    assert [(share.model, share.tokens.input) for share in call.models] == [("m", 1)]
    assert (run.scope, run.semantics, run.HasField("tokens")) == (
        *(pb.USAGE_SCOPE_RUN, pb.USAGE_SEMANTICS_CUMULATIVE, False),
    )


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0.0026, "0.0026"), (0.1 + 0.2, "0.3"), (0, "0"), (10, "10"), (1e-12, "0"), (1e18, "1" + "0" * 18)],
)
def test_a_cost_is_a_plain_decimal_number(amount: float, shown: str) -> None:
    assert cost_in_dollars(amount) == pb.Cost(amount=shown, currency="USD", basis=pb.COST_BASIS_REPORTED)


def test_calls_and_costs_add_up_and_a_cost_of_zero_is_none() -> None:
    assert UsageTotals().total is None
    totals = UsageTotals(pb.COST_BASIS_COMPUTED)
    assert not totals.add(call_usage(pb.TokenCounts(input=1)), 0.0).HasField("cost")
    total = totals.add(call_usage(pb.TokenCounts(input=2)), 0.25)
    assert totals.total is total
    assert (total.tokens.input, total.cost) == (3, cost_in_dollars(Decimal("0.25"), pb.COST_BASIS_COMPUTED))
