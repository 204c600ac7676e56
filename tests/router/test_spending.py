"""What runs that live at once share as their spending is counted: reads of the log, and the way in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.spending import Account, LabelBudget, Spent
from dragoman.router.runs import spending
from dragoman.v1 import event_pb2 as pb

ACCOUNT = Account("b", "", 0, 0)


async def nothing() -> None:
    """Do nothing."""


async def test_those_that_ask_during_a_read_share_the_next_one() -> None:
    began, may_go, number = asyncio.Event(), asyncio.Event(), 0

    async def read(_account: Account) -> Spent:
        nonlocal number
        number += 1
        began.set()
        await may_go.wait()
        return Spent(cost=number)

    log: Any = SimpleNamespace(settled=nothing, store=SimpleNamespace(spending=SimpleNamespace(spent=read)))
    reads = spending._SharedReads(log)
    first = asyncio.create_task(reads.total(ACCOUNT))
    await began.wait()
    others = [asyncio.create_task(reads.total(ACCOUNT)) for _ in range(9)]
    may_go.set()
    assert await first == Spent(cost=1)
    assert await asyncio.gather(*others) == [Spent(cost=2)] * 9  # the first may have missed what they wrote
    assert await reads.total(ACCOUNT) == Spent(cost=3)


async def test_a_run_waits_for_others_that_start_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_TURN_S", 0.0)
    budget, begun = LabelBudget("b", pb.Budget(tool_calls=1), "total"), asyncio.Event()

    async def begin() -> None:
        begun.set()

    requests: Any = SimpleNamespace(budget=pb.Budget, budgets=lambda: [budget])
    run: Any = SimpleNamespace(
        record=SimpleNamespace(accepted_at=1.0, labels={}), ledger=SimpleNamespace(begin=begin), spending=None
    )
    log: Any = SimpleNamespace()
    counting = spending.Spending(log, requests)
    async with counting._one_at_a_time:
        with pytest.raises(DragomanError) as error:
            await counting.admit(run)
    assert error.value.reason is Reason.RUN_LOG_UNAVAILABLE
    assert begun.is_set()
    assert not counting._one_at_a_time.locked()


async def test_to_count_a_run_may_take_long_once_it_is_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_TURN_S", 0.0)
    left = [pb.Budget(tool_calls=1)]

    async def begin() -> list[pb.Budget]:
        for _ in range(3):
            await asyncio.sleep(0)
        return left

    requests: Any = SimpleNamespace(budget=pb.Budget)
    run: Any = SimpleNamespace(ledger=SimpleNamespace(begin=nothing_begins), spending=None)
    log: Any = SimpleNamespace()
    counting, counted = spending.Spending(log, requests), SimpleNamespace(begin=begin)
    monkeypatch.setattr(counting, "of", lambda _run: counted)
    assert await counting.admit(run) == left
    assert run.spending is counted
    assert not counting._one_at_a_time.locked()


async def nothing_begins() -> None:
    """Begin nothing."""
