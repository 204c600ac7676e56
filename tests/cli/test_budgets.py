"""``--budget``: caps in words, and what of them reaches the adapter."""

import click
import pytest
from dragoman.cli.budgets import budget
from dragoman.cli.main import main
from dragoman.protocol.budgets import budget_problems
from dragoman.testkit import FakeAdapter
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.program import DESCRIBED, dragoman, routed


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), pb.Budget()),
        (("2 USD",), pb.Budget(cost="2", currency="USD")),
        (("2.50EUR", "ask"), pb.Budget(cost="2.50", currency="EUR", ask=True)),
        (("100k tokens",), pb.Budget(input_tokens=100_000, output_tokens=100_000)),
        (("1.5M input tokens", "20k output-tokens"), pb.Budget(input_tokens=1_500_000, output_tokens=20_000)),
        (("0 tool_calls", " 3  model calls ", "2 turns"), pb.Budget(tool_calls=0, model_calls=3, turns=2)),
        (("5 Repeats",), pb.Budget(repeats=5)),
    ],
)
def test_caps_in_words(texts: tuple[str, ...], expected: pb.Budget) -> None:
    assert budget(texts) == expected


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        *(
            ((text,), "is not an amount")
            for text in ("", "2", "USD", "-1 USD", "1e3 tokens", "2 usd", "3 dogs", "$2")
        ),
        (("1.5 turns",), "whole number"),
        (("9999999999 turns",), "not that large"),
        (("1 USD", "2 EUR"), "given twice"),
        (("1 tokens", "2 input tokens"), "input tokens are given twice"),
        (("ask",), "needs a cap"),
    ],
)
def test_wrong_caps(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        budget(texts)
    assert message in caught.value.message


@given(st.lists(st.text(max_size=20) | st.from_regex(r"[0-9.kM]{1,6} ?[A-Za-z ]{0,12}", fullmatch=True), max_size=3))
def test_whatever_is_written_is_a_budget_or_a_wrong_call(texts: list[str]) -> None:
    try:
        caps = budget(texts)
    except click.BadParameter:
        return
    known = {"limits.budget.cost", "limits.budget.currency"}
    counts = {
        f"limits.budget.{name}" for name in ("input_tokens", "output_tokens", "model_calls", "turns", "repeats")
    }
    assert {one.path for one in budget_problems(caps)} <= known | counts


async def test_a_budget_reaches_the_adapter_and_a_wrong_one_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    described = api.DescribeResponse()
    described.CopyFrom(DESCRIBED)
    described.duties.append(api.DUTY_BUDGETS)
    fake = FakeAdapter(answers={"Describe": described})
    async with routed(fake) as env:
        await dragoman("run", "fake", "hi", "--budget", "2 USD", "--budget", "3 tool calls", env=env)
    (got,) = fake.requests("Execute")
    assert got.limits.budget == pb.Budget(cost="2", currency="USD", tool_calls=3)
    assert main(["run", "fake", "hi", "--budget", "much"]) == 2
    assert "--budget" in capsys.readouterr().err
