"""What a second answer to a question gets, from what is recorded of the first."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.policy.answers import repeat_answer
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.router.harness import PATIENCE_S, Caller, failure
from tests.router.test_runs import beside

ANSWERED = pb.INPUT_RESOLUTION_ANSWERED


def resolved(
    answer: pb.InputAnswer, how: pb.InputResolution.ValueType = ANSWERED, *, redacted: bool = False
) -> pb.AgentEvent:
    resolution = pb.InputResolved(id="q", resolution=how, answer=answer)
    return pb.AgentEvent(sequence=7, redacted=redacted, input_resolved=resolution)


def outcome(event: pb.AgentEvent, answer: pb.InputAnswer, *, is_over: bool = True) -> int | Reason | None:
    try:
        return repeat_answer("r", event, answer, is_over=is_over).sequence
    except DragomanError as error:
        return error.reason


def text(value: str) -> pb.InputAnswer:
    return pb.InputAnswer(text=value)


def test_the_same_answer_gets_what_the_first_got() -> None:
    assert outcome(resolved(text("yes")), text("yes")) == 7
    assert outcome(resolved(text("yes")), text("no")) is Reason.ALREADY_RESOLVED
    with pytest.raises(DragomanError) as caught:
        repeat_answer("r", resolved(text("yes")), text("no"), is_over=True)
    assert json.loads(caught.value.metadata["answer"]) == {"text": "yes"}


@pytest.mark.parametrize(
    ("how", "is_over", "reason"),
    [
        (pb.INPUT_RESOLUTION_EXPIRED, True, Reason.REQUEST_EXPIRED),
        (pb.INPUT_RESOLUTION_DROPPED, True, Reason.RUN_FINISHED),
        (pb.INPUT_RESOLUTION_DROPPED, False, Reason.REQUEST_EXPIRED),
        (pb.INPUT_RESOLUTION_POLICY, False, Reason.REQUEST_EXPIRED),
    ],
)
def test_a_question_that_no_client_answered_takes_no_answer(
    how: pb.InputResolution.ValueType, is_over: bool, reason: Reason
) -> None:
    assert outcome(resolved(text("x"), how), text("x"), is_over=is_over) is reason


@pytest.mark.parametrize(
    ("recorded", "sent", "is_same"),
    [
        ("the key is [redacted]!", "the key is s3cret!", True),
        ("[redacted]", "s3cret", True),
        ("a [redacted] b [redacted]", "a x b y", True),
        ("[redacted] b", "x c", False),
        ("a [redacted]", "b x", False),
        ("aa[redacted]aa", "aaa", False),
        ("plain", "s3cret", False),
    ],
)
def test_what_was_masked_may_be_anything(recorded: str, sent: str, is_same: bool) -> None:
    expected = 7 if is_same else Reason.ALREADY_RESOLVED
    assert outcome(resolved(text(recorded), redacted=True), text(sent)) == expected
    chosen = pb.InputAnswer(text=recorded, option_ids=["a"])
    assert outcome(resolved(chosen, redacted=True), text(sent)) is Reason.ALREADY_RESOLVED
    if recorded != sent:
        assert outcome(resolved(text(recorded)), text(sent)) is Reason.ALREADY_RESOLVED


async def test_the_same_answer_is_fine_after_the_run_is_over_and_another_gets_the_first(folder: Path) -> None:
    steps = ({"ask": "q"}, {"ask": "open"}, {"end": "SUCCEEDED"})
    first = pb.InputAnswer(option_ids=["yes"], message="go")

    def answer(request_id: str, content: pb.InputAnswer) -> Any:
        request = api.RespondRequest(run_id="r", request_id=request_id, answer=content)
        return caller.adapter.Respond(request, timeout=PATIENCE_S)

    async def check(caller: Caller) -> None:
        for _ in range(2):
            assert (await answer("q", first)).sequence == 3
        other = await failure(answer("q", pb.InputAnswer(option_ids=["no"])))
        assert other.reason is Reason.ALREADY_RESOLVED
        assert json.loads(other.metadata["answer"]) == {"optionIds": ["yes"], "message": "go"}
        assert (await failure(answer("nothing", first))).reason is Reason.REQUEST_NOT_FOUND

    async with beside(folder) as (caller, sidecar):
        stream = caller.execute("fake", *steps, run_id="r")
        await stream.until("input_request")
        await answer("q", first)
        await stream.until("input_request")
        sidecar.runs["r"].pending.clear()
        await answer("open", first)
        await stream.rest()
        calls = len(sidecar.requests("Respond"))
        await check(caller)
        assert len(sidecar.requests("Respond")) == calls, "the adapter may be gone"
        assert (await failure(answer("open", first))).reason is Reason.RUN_FINISHED, "nothing is recorded of it"
    async with beside(folder) as (caller, _sidecar):
        await check(caller)  # from the log


def raw(sequence: int, **body: Any) -> dict[str, str]:
    event = pb.AgentEvent(sequence=sequence, run_id="r", attempt=1, **body)
    return {"raw": event.SerializeToString().hex()}


async def test_a_request_that_its_run_dropped_takes_no_answer_as_the_run_is_over(folder: Path) -> None:
    asked = pb.InputRequest(id="q", kind=pb.INPUT_KIND_TEXT)
    dropped = pb.InputResolved(id="q", resolution=pb.INPUT_RESOLUTION_DROPPED)
    steps = (raw(2, input_request=asked), raw(3, input_resolved=dropped), {"end": "SUCCEEDED"})
    async with beside(folder) as (caller, _sidecar):
        await caller.execute("fake", *steps, run_id="r").rest()
        late = api.RespondRequest(run_id="r", request_id="q", answer=text("late"))
        error = await failure(caller.adapter.Respond(late, timeout=PATIENCE_S))
        assert error.reason is Reason.RUN_FINISHED
