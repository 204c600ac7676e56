"""The budget of a run, kept by the SDK: warnings, questions, the stop at a cap, and what is refused."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import Terminal, Turn, capabilities
from dragoman.sdk._run.budget import BudgetKeeper
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.sdk.agents.test_in_process import Asked, done
from tests.sdk.running import make_run, written
from tests.sdk.serving import Scripted, Sidecar, serving

Events = list[pb.AgentEvent]
FEATURES = (
    *(pb.FEATURE_PROMPT, pb.FEATURE_RESUME, pb.FEATURE_PERMISSION_REQUESTS),
    *(pb.FEATURE_TOOL_START, pb.FEATURE_COST, pb.FEATURE_PER_CALL_USAGE),
)


class Spending(Asked):
    """Does what a test says, and reports all that can be capped."""

    spec = replace(Asked.spec, capabilities=capabilities(*FEATURES))


@pytest.fixture
def spending() -> Spending:
    return Spending()


@pytest.fixture
async def sidecar(spending: Spending) -> AsyncIterator[Sidecar]:
    async with serving(spending) as sidecar:
        yield sidecar


def request(*, interactive: bool = False, **budget: Any) -> api.ExecuteRequest:
    """Return a request with a budget."""
    asked = api.ExecuteRequest(run_id="r", prompt="Do.", limits=pb.Limits(budget=pb.Budget(**budget)))
    asked.permissions.interactive = interactive
    return asked


def call(turn: Turn, *numbers: int) -> None:
    """Call a tool."""
    for number in numbers:
        turn.run.emit(pb.AgentEvent(tool_call=pb.ToolCall(id=str(number), name="t", input_json=f'{{"n": {number}}}')))


def calling(count: int, then: Callable[[Turn], Awaitable[None]] = done) -> Callable[[Turn], Awaitable[None]]:
    """Return work of so many tool calls."""

    async def work(turn: Turn) -> None:
        turn.report.session_id = "kept"
        for number in range(count):
            call(turn, number)
            await asyncio.sleep(0)
        await then(turn)

    return work


async def forever(turn: Turn) -> None:
    del turn
    await asyncio.Event().wait()


def codes(events: Events) -> list[str]:
    """Return the codes of notices."""
    return [event.notice.code for event in events if event.HasField("notice")]


async def refused(sidecar: Sidecar, asked: api.ExecuteRequest) -> DragomanError:
    """Return the error of a request."""
    with pytest.raises(DragomanError) as caught:
        await sidecar.begin(asked).rest()
    return caught.value


async def test_a_run_within_its_budget_is_what_it_was(spending: Spending, sidecar: Sidecar) -> None:
    spending.turn = calling(3)
    events = await sidecar.begin(request(tool_calls=9, model_calls=5)).rest()
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert codes(events) == []
    assert events[0].started.limits.budget == pb.Budget(tool_calls=9, model_calls=5)


async def test_a_cap_that_is_exceeded_stops_the_agent_and_keeps_its_session(
    spending: Spending, sidecar: Sidecar
) -> None:
    spending.turn = calling(3, forever)
    events = await sidecar.begin(request(tool_calls=2)).rest()
    result = events[-1].result
    assert result.outcome == pb.OUTCOME_FAILED
    assert result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED
    assert result.failure.code == "budget_tool_calls"
    assert "limits.budget.tool_calls: it used 3 of 2 tool calls" in result.failure.message
    assert not result.failure.retryable
    assert result.session.change == pb.SESSION_CHANGE_SET
    assert result.session.handle.native_id == "kept"
    assert codes(events) == ["budget_warning"]
    assert pb.RUN_PHASE_CANCELLING in [event.state.phase for event in events if event.HasField("state")]


async def test_a_run_that_succeeds_all_the_same_has_succeeded(spending: Spending, sidecar: Sidecar) -> None:
    async def work(turn: Turn) -> None:
        call(turn, 1)
        await done(turn)

    spending.turn = work
    events = await sidecar.begin(request(tool_calls=0)).rest()
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert codes(events) == ["budget_exceeded"]


async def test_a_run_that_is_cancelled_first_is_cancelled(spending: Spending, sidecar: Sidecar) -> None:
    spending.turn = calling(1, forever)
    stream = sidecar.begin(request(tool_calls=5))
    await stream.until("tool_call")
    await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
    assert (await stream.rest())[-1].result.outcome == pb.OUTCOME_CANCELLED


async def test_usage_that_is_known_at_the_end_alone_is_reported(spending: Spending, sidecar: Sidecar) -> None:
    async def work(turn: Turn) -> None:
        turn.report.usage = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
        turn.report.usage.cost.CopyFrom(pb.Cost(amount="3", currency="USD"))
        turn.report.terminal = Terminal(succeeded=True)

    spending.turn = work
    events = await sidecar.begin(request(cost="2", input_tokens=5)).rest()
    assert events[-1].result.outcome == pb.OUTCOME_SUCCEEDED
    assert codes(events) == ["budget_at_end", "budget_unknown", "budget_exceeded"]


@pytest.mark.parametrize(("option", "calls", "exceeded"), [("continue", 4, False), ("continue", 5, True)])
async def test_a_client_that_is_asked_may_double_the_cap(
    spending: Spending, sidecar: Sidecar, option: str, calls: int, *, exceeded: bool
) -> None:
    goes_on = asyncio.Event()

    async def work(turn: Turn) -> None:
        call(turn, 1, 2)
        await goes_on.wait()
        call(turn, *range(3, calls + 1))
        await (forever if exceeded else done)(turn)

    spending.turn = work
    stream = sidecar.begin(request(interactive=True, tool_calls=2, ask=True))
    asked = (await stream.until("input_request")).input_request
    assert asked.kind == pb.INPUT_KIND_BUDGET
    assert [one.id for one in asked.options] == ["continue", "stop"]
    answer = pb.InputAnswer(option_ids=[option])
    await sidecar.stub.Respond(api.RespondRequest(run_id="r", request_id=asked.id, answer=answer))
    goes_on.set()
    events = await stream.rest()
    expected = pb.OUTCOME_FAILED if exceeded else pb.OUTCOME_SUCCEEDED
    assert events[-1].result.outcome == expected
    assert codes(events) == ["budget_warning"]


async def test_a_client_that_is_asked_may_stop_the_run(spending: Spending, sidecar: Sidecar) -> None:
    spending.turn = calling(2, forever)
    stream = sidecar.begin(request(interactive=True, tool_calls=2, ask=True))
    asked = (await stream.until("input_request")).input_request
    answer = pb.InputAnswer(option_ids=["stop"])
    await sidecar.stub.Respond(api.RespondRequest(run_id="r", request_id=asked.id, answer=answer))
    result = (await stream.rest())[-1].result
    assert result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED
    assert "was stopped near" in result.failure.message


async def test_the_cap_holds_while_the_question_is_open_and_none_is_asked_unattended(
    spending: Spending, sidecar: Sidecar
) -> None:
    spending.turn = calling(3, forever)
    for interactive, kinds in ((True, 1), (False, 0)):
        asking = request(interactive=interactive, tool_calls=2, ask=True)
        asking.run_id = f"r-{kinds}"
        events = await sidecar.begin(asking).rest()
        assert events[-1].result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED
        assert sum(event.HasField("input_request") for event in events) == kinds


async def test_wrong_budgets_and_caps_on_what_is_never_reported_are_refused(sidecar: Sidecar) -> None:
    error = await refused(sidecar, request(cost="much", turns=0))
    assert error.reason is Reason.INVALID_REQUEST
    assert [one.path for one in error.violations] == ["limits.budget.cost", "limits.budget.turns"]
    async with serving(Asked()) as other:
        error = await refused(other, request(cost="1", tool_calls=1))
        assert error.reason is Reason.NOT_SUPPORTED
        assert [one.path for one in error.violations] == ["limits.budget.cost", "limits.budget.tool_calls"]
    async with serving(Scripted()) as other:
        error = await refused(other, request(turns=1))
        assert error.reason is Reason.NOT_SUPPORTED
        assert [one.path for one in error.violations] == ["limits.budget"]


async def test_an_adapter_that_fails_leaves_open_whether_work_had_begun(spending: Spending, sidecar: Sidecar) -> None:
    async def work(turn: Turn) -> None:
        raise KeyError(turn.job.run_id)

    spending.turn = work
    failure = (await sidecar.begin(request(tool_calls=2)).rest())[-1].result.failure
    assert failure.code == "adapter_failed"
    assert not failure.HasField("work_begun")


async def test_a_run_that_fails_before_an_attempt_fails_as_it_would_without_a_budget() -> None:
    run = make_run(request(cost="1"), started=False)
    assert run.budget is not None
    result = pb.Result(outcome=pb.OUTCOME_FAILED, failure=pb.Failure(code="attachment_failed"))
    run.budget.conclude(result)
    run.finish(result)
    assert (await written(run))[-1].result.failure.code == "attachment_failed"


async def send(sidecar: Sidecar, input_id: str = "i") -> None:
    """Queue an input."""
    await sidecar.stub.Send(api.SendRequest(run_id="r", input_id=input_id, text="More."))


async def test_inputs_that_wait_when_the_budget_stops_the_agent_have_that_reason(
    spending: Spending, sidecar: Sidecar
) -> None:
    goes_on = asyncio.Event()

    async def work(turn: Turn) -> None:
        await goes_on.wait()
        await calling(3, forever)(turn)

    spending.turn = work
    stream = sidecar.begin(request(tool_calls=2))
    await stream.until("started")
    await send(sidecar)
    goes_on.set()
    events = await stream.rest()
    assert [event.input_dropped.reason for event in events if event.HasField("input_dropped")] == ["budget_exceeded"]
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED


async def test_the_question_about_the_budget_stays_open_in_the_next_turn(
    spending: Spending, sidecar: Sidecar
) -> None:
    goes_on = asyncio.Event()

    async def waited(turn: Turn) -> None:
        await goes_on.wait()
        await done(turn)

    turns = [calling(2, waited), calling(0, forever)]

    async def work(turn: Turn) -> None:
        await turns.pop(0)(turn)

    spending.turn = work
    stream = sidecar.begin(request(interactive=True, tool_calls=2, ask=True))
    asked = (await stream.until("input_request")).input_request
    await send(sidecar)
    goes_on.set()
    assert (await stream.until("message")).message.input_id == "i"
    answer = pb.InputAnswer(option_ids=["stop"])
    await sidecar.stub.Respond(api.RespondRequest(run_id="r", request_id=asked.id, answer=answer))
    events = await stream.rest()
    assert [one.input_resolved.resolution for one in events if one.HasField("input_resolved")] == [
        pb.INPUT_RESOLUTION_ANSWERED
    ]
    assert events[-1].result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED


async def test_turns() -> None:
    run = make_run(request(turns=2, output_tokens=10))
    keeper = run.budget
    assert isinstance(keeper, BudgetKeeper)
    used = pb.Usage(scope=pb.USAGE_SCOPE_RUN, semantics=pb.USAGE_SEMANTICS_CUMULATIVE)
    used.tokens.output = 4
    answers = [keeper.turn_ended(used, another=True), keeper.turn_ended(used, another=True)]
    assert answers == [True, False]
    result = pb.Result(outcome=pb.OUTCOME_SUCCEEDED)
    keeper.conclude(result)
    assert result.outcome == pb.OUTCOME_SUCCEEDED
    assert codes(await written(run)) == ["budget_at_end", "budget_warning", "budget_exceeded"]
