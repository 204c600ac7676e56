"""The writer of a run: one order, dense sequences, one end, and the clock of its silence."""

import asyncio
from collections.abc import Callable

import pytest
from dragoman.protocol.limits import HEARTBEAT_AFTER_S, MAX_EVENT_BYTES
from dragoman.protocol.order import OrderChecker, OrderError
from dragoman.sdk._run.run import Run
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sdk.running import kinds, make_run, travel, written

SECRET = "hunter2-hunter2"


def notice(message: str = "m") -> pb.AgentEvent:
    return pb.AgentEvent(notice=pb.Notice(code="c", message=message))


def ask(number: int = 1) -> pb.InputRequest:
    option = pb.InputOption(id="no", kind=pb.INPUT_OPTION_KIND_REJECT_ONCE)
    return pb.InputRequest(id=f"request-{number}", kind=pb.INPUT_KIND_PERMISSION, options=[option])


async def test_the_envelope_is_filled_in() -> None:
    run = make_run(api.ExecuteRequest(run_id="r", labels={"a": "b"}))
    run.emit(notice())
    run.finish(pb.Result(outcome=pb.OUTCOME_SUCCEEDED))
    started, event, result = await written(run)
    assert (started.started.adapter, started.started.instance_id) == ("fake", "instance-1")
    assert dict(started.started.labels) == {"a": "b"}
    assert [one.run_id for one in (started, event, result)] == ["r"] * 3
    assert [one.attempt for one in (started, event, result)] == [1] * 3
    assert event.origin == pb.EVENT_ORIGIN_AGENT
    assert started.origin == result.origin == pb.EVENT_ORIGIN_ADAPTER
    assert event.time.seconds > 0
    assert run.result == result.result
    assert run.result_sequence == 3
    assert result.result.HasField("duration")


async def test_a_failure_says_whether_work_had_begun() -> None:
    run = make_run()
    run.emit(pb.AgentEvent(tool_call=pb.ToolCall(id="t")))
    run.attempt_ended(pb.AttemptEnded(failure=pb.Failure(kind=pb.FAILURE_KIND_SESSION_LOST)))
    run.started(pb.Started())
    run.state(pb.RUN_PHASE_STARTING)
    run.finish(pb.Result(outcome=pb.OUTCOME_FAILED))
    events = await written(run)
    (ended,) = [event.attempt_ended for event in events if event.HasField("attempt_ended")]
    assert ended.failure.work_begun
    assert run.result is not None
    assert run.result.failure.HasField("work_begun")
    assert not run.result.failure.work_begun, "each attempt for itself: the agent of this one never ran"


async def test_a_run_that_fails_before_its_first_attempt_has_begun_no_work() -> None:
    run = make_run(started=False)
    run.finish(pb.Result(outcome=pb.OUTCOME_FAILED))
    assert run.result is not None
    assert run.result.failure.HasField("work_begun")
    assert not run.result.failure.work_begun


async def test_attempts_are_counted() -> None:
    run = make_run()
    run.attempt_ended(pb.AttemptEnded(reason="again"))
    run.started(pb.Started())
    run.finish(pb.Result())
    assert [
        (event.attempt, kind) for event, kind in zip(await written(run), kinds(await written(run)), strict=True)
    ] == [
        (1, "started"),
        (1, "attempt_ended"),
        (2, "started"),
        (2, "result"),
    ]


async def test_a_relayed_run_goes_on_where_the_router_says() -> None:
    request = api.ExecuteRequest(run_id="r", relay=api.Relay(first_sequence=5, first_attempt=3))
    run = make_run(request)
    run.finish(pb.Result())
    events = [pb.AgentEvent.FromString(data) for data in await run.event_buffer.reader(4).read()]
    checker = OrderChecker(after_sequence=4)
    checker.observe_all(events)
    checker.finish()
    assert [(event.sequence, event.attempt) for event in events] == [(5, 3), (6, 3)]


async def test_only_the_first_end_counts() -> None:
    run = make_run()
    run.finish(pb.Result(outcome=pb.OUTCOME_SUCCEEDED))
    run.finish(pb.Result(outcome=pb.OUTCOME_FAILED))
    assert run.result is not None
    assert run.result.outcome == pb.OUTCOME_SUCCEEDED
    assert kinds(await written(run)) == ["started", "result"]


@pytest.mark.parametrize("outcome", [pb.OUTCOME_FAILED, pb.OUTCOME_TIMED_OUT, pb.OUTCOME_LOST])
async def test_a_failure_that_does_not_say_why_says_so(outcome: pb.Outcome.ValueType) -> None:
    run = make_run()
    run.finish(pb.Result(outcome=outcome))
    assert run.result is not None
    assert run.result.failure.kind == pb.FAILURE_KIND_INTERNAL
    assert run.result.failure.code == "no_reason"
    assert run.result.failure.message


async def test_a_run_that_fails_before_its_first_attempt_has_one_all_the_same() -> None:
    run = make_run(started=False)
    run.cancel(1)
    run.finish(pb.Result(outcome=pb.OUTCOME_FAILED))
    assert kinds(await written(run)) == ["started", "result"]


Step = Callable[[Run], object]


def begin(run: Run) -> None:
    run.started(pb.Started())


def end_attempt(run: Run) -> None:
    run.attempt_ended(pb.AttemptEnded())


def finish(run: Run) -> None:
    run.finish(pb.Result())


def emit(event: pb.AgentEvent) -> Step:
    return lambda run: run.emit(event)


def empty(kind: str) -> pb.AgentEvent:
    event = pb.AgentEvent()
    getattr(event, kind).SetInParent()
    return event


WHOLE = pb.AgentEvent(text=pb.Text(whole="w"))
OUT_OF_ORDER: dict[str, list[Step]] = {
    "an event before started": [emit(notice())],
    "a notice before started": [lambda run: run.notice(pb.SEVERITY_INFO, "c", "m")],
    "attempt_ended before started": [end_attempt],
    "started twice": [begin, begin],
    "an event between attempts": [begin, end_attempt, emit(notice())],
    "an event after the end": [finish, emit(notice())],
    "text after the end": [finish, emit(WHOLE)],
    "no body": [begin, emit(pb.AgentEvent())],
}
for own in ["started", "attempt_ended", "result", "gap", "replay_done", "heartbeat", "batch"]:
    OUT_OF_ORDER[f"emits {own}"] = [begin, emit(empty(own))]


@pytest.mark.parametrize("case", OUT_OF_ORDER)
async def test_the_writer_refuses_what_the_table_forbids(case: str) -> None:
    run = make_run(started=False)
    *before, wrong = OUT_OF_ORDER[case]
    for step in before:
        step(run)
    with pytest.raises(OrderError):
        wrong(run)
    finish(run)
    await written(run)  # which checks the order


async def test_a_cancel_writes_its_state_only_where_one_may_be() -> None:
    for began, ended, states in [(False, False, 0), (True, False, 1), (True, True, 0)]:
        run = make_run(started=began)
        if ended:
            run.attempt_ended(pb.AttemptEnded())
        run.cancel(5, "why")
        run.finish(pb.Result(outcome=pb.OUTCOME_CANCELLED))
        events = [event for event in await written(run) if event.WhichOneof("body") == "state"]
        assert len(events) == states
        for event in events:
            assert event.state.phase == pb.RUN_PHASE_CANCELLING
            assert event.state.reason == "why"
            assert event.origin == pb.EVENT_ORIGIN_OPERATOR


async def test_a_later_cancel_shortens_and_never_lengthens() -> None:
    run = make_run()
    now = asyncio.get_running_loop().time()
    assert not run.cancellation.is_requested
    run.cancel(10, "first")
    first = run.cancellation.deadline
    assert first == pytest.approx(now + 10, abs=1)
    run.cancellation.changed.clear()
    run.cancel(20, "longer")
    assert run.cancellation.deadline == first
    assert not run.cancellation.changed.is_set()
    run.cancel(0, "now")
    assert run.cancellation.deadline == pytest.approx(now, abs=1)
    assert run.cancellation.changed.is_set()
    assert run.cancellation.reason == "first"
    run.cancel(-5)
    run.finish(pb.Result())
    run.cancel(0)
    assert kinds(await written(run)) == ["started", "state", "result"]


async def test_counters() -> None:
    run = make_run()
    for status in (pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING, pb.TOOL_STATUS_RUNNING):
        run.emit(pb.AgentEvent(tool_call=pb.ToolCall(id="one", status=status)))
    run.emit(pb.AgentEvent(tool_call=pb.ToolCall(id="two", status=pb.TOOL_STATUS_AWAITING_PERMISSION)))
    run.emit(pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id="one", status=pb.TOOL_STATUS_FAILED)))
    run.emit(pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id="two", status=pb.TOOL_STATUS_DENIED)))
    run.emit(pb.AgentEvent(file_change=pb.FileChange(path="/a")))
    run.emit(pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RETRYING)))
    run.emit(pb.AgentEvent(log=pb.Log(stream=pb.OUTPUT_STREAM_STDOUT)))
    run.emit(pb.AgentEvent(log=pb.Log(stream=pb.OUTPUT_STREAM_STDERR)))
    assert run.phase == pb.RUN_PHASE_RETRYING
    run.finish(pb.Result())
    counters = (await written(run))[-1].result.counters
    assert counters == pb.RunCounters(
        tool_calls=2, failed_tool_calls=1, denied_tool_calls=1, file_changes=1, retries=1, unparsed_lines=1
    )


async def test_the_result_is_redacted_like_everything_else() -> None:
    run = make_run(secrets=[SECRET])
    run.notice(pb.SEVERITY_INFO, "c", f"has {SECRET}", f"hint {SECRET}")
    run.state(pb.RUN_PHASE_RUNNING, reason=SECRET)
    run.finish(pb.Result(summary=f"it is {SECRET}", failure=pb.Failure(errors=[SECRET])))
    for event in (await written(run))[1:]:
        assert event.redacted
        assert b"hunter2" not in event.SerializeToString()


async def test_the_token_is_known_before_the_adapter_says_so() -> None:
    run = Run(api.ExecuteRequest(run_id="r", auth_token=SECRET), None, adapter="fake", instance_id="i")
    run.started(pb.Started(notes=[SECRET]))
    assert (await written(run))[0].started.notes == ["[redacted]"]


async def test_a_cut_that_no_field_counts_is_reported() -> None:
    run = make_run()
    run.emit(pb.AgentEvent(plan=pb.Plan(entries=[pb.PlanEntry(content="x" * (2 * MAX_EVENT_BYTES))])))
    run.emit(pb.AgentEvent(message=pb.Message(text="x" * (2 * MAX_EVENT_BYTES))))
    events = await written(run)
    assert kinds(events) == ["started", "plan", "notice", "message"]
    assert events[2].notice.code == "event_cut"
    assert "of this plan" in events[2].notice.message
    assert events[3].message.truncated_bytes > MAX_EVENT_BYTES


async def test_a_huge_attempt_ended_has_no_notice_after_it() -> None:
    run = make_run()
    run.attempt_ended(pb.AttemptEnded(reason="x" * (2 * MAX_EVENT_BYTES)))
    run.finish(pb.Result(failure=pb.Failure(message="x" * (2 * MAX_EVENT_BYTES))))
    assert kinds(await written(run)) == ["started", "attempt_ended", "result"]


# The heartbeat.


def test_a_heartbeat_comes_after_silence_and_is_no_activity() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        run = make_run()
        reader = run.event_buffer.reader(1)
        run.begin()
        await asyncio.sleep(HEARTBEAT_AFTER_S - 1)
        run.emit(notice())
        began = loop.time()
        beats: list[tuple[float, pb.AgentEvent]] = []
        while len(beats) < 3:
            for data in await reader.read():
                event = pb.AgentEvent.FromString(data)
                if event.HasField("heartbeat"):
                    beats.append((loop.time() - began, event))
        assert [at for at, _ in beats] == [HEARTBEAT_AFTER_S, 2 * HEARTBEAT_AFTER_S, 3 * HEARTBEAT_AFTER_S]
        assert [event.heartbeat.idle.seconds for _, event in beats] == [15, 30, 45]
        for _, event in beats:
            assert event.sequence == 0
            assert (event.run_id, event.attempt, event.heartbeat.last_sequence) == ("run-1", 1, 2)
        run.finish(pb.Result())
        assert len(await written(run)) == 3

    travel(story)


def test_the_adapters_own_words_end_the_silence_but_are_not_the_agents() -> None:
    async def story() -> None:
        run = make_run()
        run.begin()
        await asyncio.sleep(10)
        run.notice(pb.SEVERITY_INFO, "c", "m")
        reader = run.event_buffer.reader(run.event_buffer.last_sequence)
        (beat,) = [pb.AgentEvent.FromString(data) for data in await reader.read()]
        assert beat.heartbeat.idle.seconds == 10 + HEARTBEAT_AFTER_S
        run.finish(pb.Result())

    travel(story)


def test_no_heartbeat_after_the_end() -> None:
    async def story() -> None:
        run = make_run()
        run.begin()
        run.finish(pb.Result())
        run.begin()
        reader = run.event_buffer.reader(2)
        await asyncio.sleep(100)
        (again,) = await reader.read()
        assert pb.AgentEvent.FromString(again).WhichOneof("body") == "result"
        assert await reader.read() == []

    travel(story)


# Any run.


def ask_next(run: Run) -> None:
    run.inputs.open(ask(run.event_buffer.last_sequence))


def answer_first(run: Run) -> None:
    for request_id in list(run.inputs._open)[:1]:
        run.inputs.answer(request_id, pb.InputAnswer(option_ids=["no"]), "me")


def withdraw_first(run: Run) -> None:
    for request_id in list(run.inputs._open)[:1]:
        run.inputs.withdraw(request_id)


def again(run: Run) -> None:
    end_attempt(run)
    begin(run)


STEPS: dict[str, Step] = {
    "text": lambda run: run.emit(pb.AgentEvent(text=pb.Text(item_id="i", delta="some hunt"))),
    "output": lambda run: run.emit(pb.AgentEvent(tool_output=pb.ToolOutput(tool_call_id="c", text="hunter2-"))),
    "tool_result": lambda run: run.emit(pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id="c"))),
    "notice": lambda run: run.emit(notice(SECRET)),
    "huge": lambda run: run.emit(pb.AgentEvent(plan=pb.Plan(entries=[pb.PlanEntry(content="x" * MAX_EVENT_BYTES)]))),
    "state": lambda run: run.state(pb.RUN_PHASE_RUNNING),
    "ask": ask_next,
    "answer": answer_first,
    "withdraw": withdraw_first,
    "cancel": lambda run: run.cancel(5),
    "again": again,
}


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=20))
async def test_any_run_keeps_the_order(steps: list[str]) -> None:
    run = make_run(secrets=[SECRET])
    for step in steps:
        STEPS[step](run)
    run.finish(pb.Result())
    events = await written(run)
    assert not any(b"hunter2-hunter2" in event.SerializeToString() for event in events)
    assert all(event.ByteSize() <= MAX_EVENT_BYTES for event in events)
