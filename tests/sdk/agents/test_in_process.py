"""Agents that are no programs: their turns are supervised like a program, and end the same ways."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
from dragoman.sdk import AgentSpec, FailureError, FailureInfo, InProcessAdapter, Terminal, Turn, capabilities
from dragoman.sdk.fields import JsonValue
from dragoman.sdk.spec import common_properties
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.sdk.schemas import config_schema
from tests.sdk.serving import Sidecar, serving

Work = Callable[[Turn], Awaitable[None]]


async def done(turn: Turn) -> None:
    turn.report.terminal = Terminal(succeeded=True)


class Asked(InProcessAdapter):
    """Does what a test says."""

    spec = AgentSpec(
        type="asked",
        label="Asked",
        version="1",
        configuration_doc="# asked",
        config_schema=config_schema(common_properties()),
        capabilities=capabilities(pb.FEATURE_PROMPT, pb.FEATURE_RESUME, pb.FEATURE_PERMISSION_REQUESTS),
        inherit=("ASKED_SETTING",),
    )

    def __init__(self) -> None:
        self.turn: Work = done
        self.available = True
        self.closed = 0

    async def look(self, env: Mapping[str, str], config: Mapping[str, JsonValue]) -> api.Detection:
        del env, config
        return api.Detection(available=self.available, message="Looked.", hint="Repair it.", auth=api.AUTH_STATE_OK)

    async def work(self, turn: Turn) -> None:
        await self.turn(turn)

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
async def sidecar(asked: Asked) -> AsyncIterator[Sidecar]:
    async with serving(asked) as sidecar:
        yield sidecar


def request(run_id: str = "r", **fields: object) -> api.ExecuteRequest:
    return api.ExecuteRequest(run_id=run_id, prompt="Do.", **fields)  # type: ignore[arg-type]  # fields of many types


async def hang(turn: Turn) -> None:
    turn.report.session_id = "kept"
    await asyncio.Event().wait()


async def test_a_turn_reports_what_it_does_and_how_it_ended(asked: Asked, sidecar: Sidecar) -> None:
    async def turn(turn: Turn) -> None:
        turn.run.emit(pb.AgentEvent(text=pb.Text(item_id="1", delta=turn.job.prompt)))
        turn.report.session_id = "id-1"
        turn.report.summary = "Done."
        turn.report.terminal = Terminal(succeeded=True)

    asked.turn = turn
    events = await sidecar.begin(request()).rest()
    kinds = [event.WhichOneof("body") for event in events]
    assert kinds == ["started", "state", "state", "text", "result"]
    result = events[-1].result
    assert (result.outcome, result.summary) == (pb.OUTCOME_SUCCEEDED, "Done.")
    assert not result.HasField("exit_code")
    assert result.tree_confirmed_dead
    assert result.session.handle.native_id == "id-1"


async def test_a_turn_that_fails(asked: Asked, sidecar: Sidecar) -> None:
    async def turn(turn: Turn) -> None:
        del turn
        raise FailureError(FailureInfo(pb.FAILURE_KIND_RATE_LIMITED, "Too fast.", code="slow_down"))

    asked.turn = turn
    result = (await sidecar.begin(request()).rest())[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_RATE_LIMITED)
    assert (result.failure.code, result.failure.message) == ("slow_down", "Too fast.")


async def test_a_turn_without_a_last_word_has_no_result(asked: Asked, sidecar: Sidecar) -> None:
    async def turn(turn: Turn) -> None:
        turn.report.summary = "I"

    asked.turn = turn
    result = (await sidecar.begin(request()).rest())[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_NO_RESULT)


async def test_a_bug_is_an_internal_failure(asked: Asked, sidecar: Sidecar) -> None:
    async def turn(turn: Turn) -> None:
        raise KeyError(turn.job.run_id)

    asked.turn = turn
    result = (await sidecar.begin(request()).rest())[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_FAILED, pb.FAILURE_KIND_INTERNAL)


async def test_a_cancelled_turn_ends_and_keeps_its_session(asked: Asked, sidecar: Sidecar) -> None:
    asked.turn = hang
    stream = sidecar.begin(request())
    await stream.until("started")
    await sidecar.stub.Cancel(api.CancelRequest(run_id="r"))
    result = (await stream.rest())[-1].result
    assert result.outcome == pb.OUTCOME_CANCELLED
    assert result.session.handle.native_id == "kept"


async def test_work_that_does_not_hear_is_cancelled_again_when_its_grace_is_over(
    asked: Asked, sidecar: Sidecar
) -> None:
    cancelled: list[float] = []

    async def turn(turn: Turn) -> None:
        del turn
        while len(cancelled) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(asyncio.get_running_loop().time())

    asked.turn = turn
    stream = sidecar.begin(request())
    await stream.until("started")
    cancel = api.CancelRequest(run_id="r")
    cancel.grace.FromMilliseconds(300)
    await sidecar.stub.Cancel(cancel)
    assert (await stream.rest())[-1].result.outcome == pb.OUTCOME_CANCELLED
    assert cancelled[1] - cancelled[0] > 0.25


async def test_work_that_does_not_hear_ends_with_the_shorter_grace_of_a_second_cancel(
    asked: Asked, sidecar: Sidecar
) -> None:
    working, cancelled = asyncio.Event(), asyncio.Event()

    async def turn(turn: Turn) -> None:
        del turn
        working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.Event().wait()

    asked.turn = turn
    sidecar.begin(request())
    await working.wait()
    cancel = api.CancelRequest(run_id="r")
    cancel.grace.FromSeconds(3600)
    patient = asyncio.ensure_future(sidecar.stub.Cancel(cancel))
    await cancelled.wait()
    cancel.grace.FromSeconds(0)
    for answer in (await sidecar.stub.Cancel(cancel), await patient):
        assert answer.outcome == pb.OUTCOME_CANCELLED


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        ("start_up", pb.FAILURE_KIND_START_TIMEOUT),
        ("idle", pb.FAILURE_KIND_IDLE_TIMEOUT),
        ("wall", pb.FAILURE_KIND_WALL_TIMEOUT),
    ],
)
async def test_a_clock_that_runs_out_ends_the_turn(
    asked: Asked, sidecar: Sidecar, limit: str, kind: pb.FailureKind.ValueType
) -> None:
    async def turn(turn: Turn) -> None:
        if limit != "start_up":
            turn.activity()
        await hang(turn)

    asked.turn = turn
    run_request = request()
    getattr(run_request.limits, limit).FromMilliseconds(200)
    result = (await sidecar.begin(run_request).rest())[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_TIMED_OUT, kind)


async def test_the_idle_clock_stands_while_a_question_waits_and_goes_on_afterwards(
    asked: Asked, sidecar: Sidecar
) -> None:
    answers: list[bool] = []

    async def turn(turn: Turn) -> None:
        turn.activity()
        question = pb.InputRequest(id="q", kind=pb.INPUT_KIND_PERMISSION, title="May I?")
        question.options.add(id="yes", kind=pb.INPUT_OPTION_KIND_ALLOW_ONCE)
        question.options.add(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE)
        answers.append((await turn.ask(question)).allowed)
        await hang(turn)

    asked.turn = turn
    run_request = request(permissions=pb.Permissions(interactive=True))
    run_request.limits.idle.FromMilliseconds(250)
    stream = sidecar.begin(run_request)
    await stream.until("input_request")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.6)  # longer than the idle limit
    assert answers == []
    await sidecar.stub.Respond(
        api.RespondRequest(run_id="r", request_id="q", answer=pb.InputAnswer(option_ids=["yes"]))
    )
    result = (await stream.rest())[-1].result
    assert answers == [True]
    assert result.failure.kind == pb.FAILURE_KIND_IDLE_TIMEOUT


async def test_the_idle_clock_stands_still_while_its_own_tool_is_at_work(asked: Asked, sidecar: Sidecar) -> None:
    async def turn(turn: Turn) -> None:
        turn.run.emit(pb.AgentEvent(tool_call=pb.ToolCall(id="t", status=pb.TOOL_STATUS_RUNNING)))
        await hang(turn)

    asked.turn = turn
    run_request = request()
    run_request.limits.idle.FromMilliseconds(250)
    run_request.limits.tool_call.FromMilliseconds(700)
    result = (await sidecar.begin(run_request).rest())[-1].result
    assert (result.outcome, result.failure.kind) == (pb.OUTCOME_TIMED_OUT, pb.FAILURE_KIND_TOOL_TIMEOUT)
    assert result.duration.ToMilliseconds() >= 700


async def test_policy_answers_in_unattended_runs(asked: Asked, sidecar: Sidecar) -> None:
    answers: list[bool] = []

    async def turn(turn: Turn) -> None:
        question = pb.InputRequest(id="q", kind=pb.INPUT_KIND_PERMISSION, title="May I?")
        answers.append((await turn.ask(question)).allowed)
        turn.report.terminal = Terminal(succeeded=True)

    asked.turn = turn
    events = await sidecar.begin(request()).rest()
    assert answers == [False]
    assert [event.notice.code for event in events if event.HasField("notice")] == ["permission_denied"]


async def test_keys_come_from_the_allow_list_and_the_caller(
    asked: Asked, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKED_SETTING", "inherited")
    monkeypatch.setenv("SERVER_SECRET", "not for agents")
    seen: dict[str, str] = {}

    async def turn(turn: Turn) -> None:
        seen.update(turn.env)
        await done(turn)

    asked.turn = turn
    await sidecar.begin(request(env={"API_KEY": "given-key-0001"})).rest()
    assert (seen["ASKED_SETTING"], seen["API_KEY"]) == ("inherited", "given-key-0001")
    assert "SERVER_SECRET" not in seen


@pytest.mark.parametrize("available", [True, False])
async def test_a_test_says_whether_it_is_there(asked: Asked, sidecar: Sidecar, available: bool) -> None:
    asked.available = available
    tested = await sidecar.stub.TestEnvironment(api.TestEnvironmentRequest(adapter="asked"))
    codes = {check.code for check in tested.checks}
    assert ("agent_available" in codes, "agent_unavailable" in codes) == (available, not available)


async def test_what_outlives_runs_is_closed_with_the_server(asked: Asked) -> None:
    async with serving(asked) as sidecar:
        await sidecar.begin(request()).rest()
        assert asked.closed == 0
    assert asked.closed == 1
