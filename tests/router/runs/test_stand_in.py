"""What the router does in place of an adapter ends with the attempt."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dragoman.protocol.redaction.redactor import Redactor
from dragoman.protocol.redaction.sources import request_secrets
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.tasks import Tasks
from dragoman.router.runs import stand_in as module
from dragoman.router.runs.actor import Run, RunHost
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2
from google.protobuf import duration_pb2

from tests.router.test_run import CLOCK
from tests.sdk.running import travel

QUESTION = event_pb2.AgentEvent(
    sequence=1, input_request=event_pb2.InputRequest(id="q", kind=event_pb2.INPUT_KIND_PERMISSION)
)
SECRET = "a-secret-of-the-request"
ASKING = event_pb2.Capabilities(items=[event_pb2.Capability(feature=event_pb2.FEATURE_PERMISSION_REQUESTS)])


def standing_in(limits: event_pb2.Limits | None = None, **permissions: Any) -> module.StandIn:
    """Return what stands in for an adapter that declares no duty."""
    description = pb.DescribeResponse(capabilities=ASKING)
    backend = SimpleNamespace(record=SimpleNamespace(description=description))
    run = Run(
        RunRecord(run_id="r", adapter="fake", accepted_at=0.0),
        cast("AdapterBackend", backend),
        RunHost(CLOCK, Tasks()),
    )
    request = pb.ExecuteRequest(
        prompt="p", auth_token=SECRET, limits=limits, permissions=event_pb2.Permissions(**permissions)
    )
    return module.StandIn(run, request, description, Redactor(request_secrets(request)))


@pytest.mark.parametrize(("stays_s", "answered"), [(0, []), (6, ["q"])], ids=["over", "not over"])
def test_a_question_of_an_attempt_that_is_over_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch, stays_s: int, answered: list[str]
) -> None:
    asked: list[str] = []

    async def send(_run: Run, request: pb.RespondRequest, _data: bytes) -> bytes:
        assert request.responder == "router"
        asked.append(request.request_id)
        return b""

    async def attempt() -> None:
        stands_in = standing_in(interactive=True, request_timeout=duration_pb2.Duration(seconds=5))
        with stands_in.watching():
            stands_in.take(QUESTION, QUESTION.SerializeToString())
            await asyncio.sleep(stays_s)
        await asyncio.sleep(6)

    monkeypatch.setattr(module, "send", send)
    travel(attempt)
    assert asked == answered


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        (event_pb2.InputRequest(id="q"), "question_declined", "q"),
        (event_pb2.InputRequest(id="q", title="Which one?"), "question_declined", "Which one?"),
        (
            event_pb2.InputRequest(id="q", title="t", subject=event_pb2.InputSubject(tool_name="Bash")),
            "question_declined",
            "Bash",
        ),
        (
            event_pb2.InputRequest(id="q", kind=event_pb2.INPUT_KIND_PERMISSION, title=f"Show {SECRET}?"),
            "permission_denied",
            "Show [redacted]?",
        ),
    ],
)
def test_a_notice_names_the_question_that_is_declined(
    monkeypatch: pytest.MonkeyPatch, asked: event_pb2.InputRequest, code: str, named: str
) -> None:
    async def send(_run: Run, _request: pb.RespondRequest, _data: bytes) -> bytes:
        return b""

    async def attempt() -> list[tuple[str, str]]:
        stands_in = standing_in()
        question = event_pb2.AgentEvent(sequence=1, input_request=asked)
        warned: list[tuple[str, str]] = []
        monkeypatch.setattr(stands_in._run.notices, "warn", lambda *notice: warned.append(notice))
        with stands_in.watching():
            assert stands_in.take(question, question.SerializeToString())
        return warned

    monkeypatch.setattr(module, "send", send)
    assert travel(attempt) == [(code, f"{named} was declined, as the run is unattended.")]


def test_a_question_that_is_answered_in_time_gets_no_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(_run: Run, request: pb.RespondRequest, _data: bytes) -> bytes:
        raise AssertionError(request.request_id)

    async def attempt() -> None:
        stands_in = standing_in(interactive=True, request_timeout=duration_pb2.Duration(seconds=5))
        resolved = event_pb2.AgentEvent(sequence=2, input_resolved=event_pb2.InputResolved(id="q", responder="ada"))
        with stands_in.watching():
            stands_in.take(QUESTION, b"")
            assert [shown for shown, _data in stands_in.take(resolved, b"")] == [resolved]
            await asyncio.sleep(6)

    monkeypatch.setattr(module, "send", send)
    travel(attempt)


def test_an_answer_of_the_router_is_shown_as_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(_run: Run, _request: pb.RespondRequest, _data: bytes) -> bytes:
        return b""

    async def attempt() -> None:
        stands_in = standing_in(interactive=True, request_timeout=duration_pb2.Duration(seconds=5))
        resolved = event_pb2.AgentEvent(
            sequence=2,
            input_resolved=event_pb2.InputResolved(
                id="q", responder="router", resolution=event_pb2.INPUT_RESOLUTION_ANSWERED
            ),
        )
        with stands_in.watching():
            stands_in.take(QUESTION, b"")
            await asyncio.sleep(6)
            ((shown, data),) = stands_in.take(resolved, b"as it came")
        expected = event_pb2.InputResolved(id="q", resolution=event_pb2.INPUT_RESOLUTION_EXPIRED)
        assert shown.input_resolved == expected
        assert event_pb2.AgentEvent.FromString(data) == shown

    monkeypatch.setattr(module, "send", send)
    travel(attempt)


def test_the_idle_clock_stands_still_while_a_question_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_at_adapter(_run: Run, ending: event_pb2.Result) -> None:
        ended.append(ending)

    async def attempt() -> None:
        stands_in = standing_in(event_pb2.Limits(idle=duration_pb2.Duration(seconds=5)), interactive=True)
        started = event_pb2.AgentEvent(sequence=1, started=event_pb2.Started())
        asked = event_pb2.AgentEvent(sequence=2, input_request=event_pb2.InputRequest(id="q"))
        resolved = event_pb2.AgentEvent(sequence=3, input_resolved=event_pb2.InputResolved(id="q"))
        with stands_in.watching():
            stands_in.take(started, b"")
            stands_in.take(asked, b"")
            await asyncio.sleep(60)
            assert ended == []
            stands_in.take(resolved, b"")
            await asyncio.sleep(4)
            assert ended == []
            await asyncio.sleep(2)

    ended: list[event_pb2.Result] = []
    monkeypatch.setattr(module, "end_at_adapter", end_at_adapter)
    travel(attempt)
    (ending,) = ended
    assert ending.outcome == event_pb2.OUTCOME_TIMED_OUT
    assert ending.failure.kind == event_pb2.FAILURE_KIND_IDLE_TIMEOUT
    assert ending.failure.code == "idle_limit"
    assert ending.failure.message == "The run exceeded limits.idle. Raise the limit if the task needs more time."
