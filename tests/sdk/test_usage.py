"""Calls add up to a run; what nobody told stays untold."""

from dragoman.sdk import add_call
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

MOST = 2**63 - 1
COUNTS = ("input", "output", "cache_read", "cache_write", "reasoning")
counts = st.dictionaries(st.sampled_from(COUNTS), st.integers(0, MOST))


def call(tokens: dict[str, int], model: str = "") -> pb.Usage:
    made = pb.Usage(scope=pb.USAGE_SCOPE_CALL, tokens=pb.TokenCounts(**tokens))
    if model:
        made.models.add(model=model).tokens.CopyFrom(made.tokens)
    return made


@settings(max_examples=100)
@given(st.lists(st.tuples(counts, st.sampled_from(["", "a", "b"])), min_size=1, max_size=5))
def test_a_run_has_used_what_its_calls_have(calls: list[tuple[dict[str, int], str]]) -> None:
    total = None
    for tokens, model in calls:
        total = add_call(total, call(tokens, model))
    assert total is not None
    assert (total.scope, total.semantics) == (pb.USAGE_SCOPE_RUN, pb.USAGE_SEMANTICS_CUMULATIVE)
    assert _told(total.tokens) == _sum([tokens for tokens, _ in calls])
    assert {share.model: _told(share.tokens) for share in total.models} == {
        name: _sum([tokens for tokens, model in calls if model == name]) for name in {m for _, m in calls} - {""}
    }


def test_what_was_used_before_stays_as_it_was_told() -> None:
    before = add_call(None, call({"input": 1}))
    assert add_call(before, call({"input": 2, "output": 0})).tokens == pb.TokenCounts(input=3, output=0)
    assert before.tokens == pb.TokenCounts(input=1)


def _told(tokens: pb.TokenCounts) -> dict[str, int]:
    return {field.name: value for field, value in tokens.ListFields()}


def _sum(calls: list[dict[str, int]]) -> dict[str, int]:
    names = {name for tokens in calls for name in tokens}
    return {name: min(sum(tokens.get(name, 0) for tokens in calls), MOST) for name in names}
