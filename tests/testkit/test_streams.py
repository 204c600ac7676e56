"""The stream checks let good streams pass and name what is wrong with bad ones."""

from collections.abc import Callable

import pytest
from dragoman.testkit.streams import StreamProblem, check_stream
from dragoman.v1 import event_pb2 as pb


def stream(*bodies: pb.AgentEvent) -> list[pb.AgentEvent]:
    events = [pb.AgentEvent(started=pb.Started(adapter="fake")), *bodies]
    for number, event in enumerate(events, start=1):
        event.sequence, event.run_id, event.attempt = number, "r", 1
    return events


def text(delta: str, offset: int) -> pb.AgentEvent:
    return pb.AgentEvent(text=pb.Text(item_id="t", delta=delta, offset=offset))


def call(name: str = "c") -> pb.AgentEvent:
    return pb.AgentEvent(tool_call=pb.ToolCall(id=name, name="Bash", status=pb.TOOL_STATUS_RUNNING))


def returned(name: str = "c") -> pb.AgentEvent:
    return pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id=name, status=pb.TOOL_STATUS_COMPLETED))


def succeeded() -> pb.AgentEvent:
    return pb.AgentEvent(result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))


def test_a_good_stream_passes() -> None:
    check_stream(stream(text("é", 0), text("b", 2), call(), returned(), succeeded()), secrets=["hidden-value"])


def test_the_next_attempt_may_call_its_items_and_tools_the_same() -> None:
    first = stream(text("a", 0), call(), returned(), pb.AgentEvent(attempt_ended=pb.AttemptEnded()))
    second = stream(text("b", 0), call(), returned(), succeeded())
    for number, event in enumerate(second, start=len(first) + 1):
        event.sequence, event.attempt = number, 2
    check_stream([*first, *second])


def test_a_reader_that_joined_late_need_not_know_what_was_before() -> None:
    events = stream(text("a", 0), call(), text("b", 1), returned(), succeeded())
    check_stream(events[3:], after_sequence=3)


def _fails_without_reason() -> list[pb.AgentEvent]:
    return stream(pb.AgentEvent(result=pb.Result(outcome=pb.OUTCOME_FAILED)))


BAD: dict[str, tuple[Callable[[], list[pb.AgentEvent]], str]] = {
    "a hole in an item": (lambda: stream(text("ab", 0), text("c", 3), succeeded()), "2 is due"),
    "offsets in characters": (lambda: stream(text("é", 0), text("c", 1), succeeded()), "2 is due"),
    "a result without a call": (lambda: stream(returned(), succeeded()), "unknown tool call"),
    "two results of a call": (lambda: stream(call(), returned(), returned(), succeeded()), "second result"),
    "a secret": (lambda: stream(text("my hidden-value", 0), succeeded()), "contains a secret"),
    "no result": (lambda: stream(text("a", 0)), "without a result"),
    "no reason": (_fails_without_reason, "without a failure"),
    "no outcome": (lambda: stream(pb.AgentEvent(result=pb.Result())), "no outcome"),
    "after the result": (lambda: stream(succeeded(), text("a", 0)), "after the result"),
    "too large": (lambda: stream(text("x" * 1_100_000, 0), succeeded()), "bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_stream_is_reported(name: str) -> None:
    make, why = BAD[name]
    with pytest.raises(StreamProblem, match=why):
        check_stream(make(), secrets=["hidden-value"])
