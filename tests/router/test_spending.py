"""What runs that live at once share as their spending is counted: reads of the log, and the way in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.spending import Account, LabelBudget, Spent
from dragoman.router.model.tasks import Tasks
from dragoman.router.runs import spending
from dragoman.router.runs.state import Progress, Streaming
from dragoman.router.storage.database import StoreError
from dragoman.v1 import event_pb2 as pb

from tests.router.runs.diagram import AT

BUDGET = LabelBudget("b", pb.Budget(tool_calls=1), "total")
ACCOUNT = Account("b", "", 0, 0)


async def nothing() -> None:
    """Do nothing."""


def a_run() -> Any:
    """Return a run at its adapter."""
    run = Mock(record=RunRecord("r", "fake", 1.0), state=Streaming(Progress(), AT), is_ending=False, tasks=TASKS)
    run.ledger.begin = nothing
    return run


TASKS = Tasks()


def counting(spent: Callable[[Account], Awaitable[Spent]]) -> spending.Spending:
    log = Mock(settled=nothing)
    log.store.spending.spent = spent
    return spending.Spending(log, Mock(budget=pb.Budget, budgets=lambda: [BUDGET]))


def use(run: Any) -> None:
    """Have a run use more."""
    number = len(run.record.spent) and run.record.spent[ACCOUNT].tool_calls
    run.spending.take(pb.AgentEvent(tool_call=pb.ToolCall(id=str(number))), "tool_call")


async def test_runs_that_are_due_during_a_read_share_the_next_one() -> None:
    began, may_go, reads = asyncio.Event(), asyncio.Event(), list[Account]()
    may_go.set()

    async def read(account: Account) -> Spent:
        reads.append(account)
        began.set()
        await may_go.wait()
        return Spent()

    at = counting(read)
    runs = [a_run() for _ in range(9)]
    for run in runs:
        await at.admit(run)
    await compared()
    reads.clear()
    began.clear()
    may_go.clear()
    use(runs[0])
    await began.wait()
    for run in runs:
        use(run)  # which the read may have missed
    may_go.set()
    await compared()
    assert reads == [ACCOUNT] * 2


async def test_sums_that_cannot_be_read_are_compared_once_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_AGAIN_S", 0.0)
    answers: list[Spent | StoreError] = [Spent(), StoreError("gone"), StoreError("gone"), Spent(tool_calls=1)]

    async def read(_account: Account) -> Spent:
        answer = answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    run = a_run()
    await counting(read).admit(run)
    run.spending.take(pb.AgentEvent(started=pb.Started()), "started")
    await compared()
    assert answers == []
    ((code, text),) = [call.args for call in run.notices.warn.call_args_list]
    assert (code, text) == ("budget_warning", "Runs have used 1 of 1 tool call of the router's budget 'b'.")


async def test_a_run_waits_for_others_that_start_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_TURN_S", 0.0)

    async def read(_account: Account) -> Spent:
        for _ in range(3):  # which may take long once it is its turn
            await asyncio.sleep(0)
        return Spent()

    at, run = counting(read), a_run()
    run.spending = None
    async with at._one_at_a_time:
        with pytest.raises(DragomanError) as error:
            await at.admit(run)
    assert error.value.reason is Reason.RUN_LOG_UNAVAILABLE
    assert run.spending is None
    assert not at._one_at_a_time.locked()
    assert await at.admit(run) == [pb.Budget(tool_calls=1)]
    assert not at._one_at_a_time.locked()


async def compared() -> None:
    """Wait until no task compares any more."""
    while TASKS._tasks:
        await asyncio.wait(set(TASKS._tasks))
