"""What a line comes down to."""

from collections.abc import Callable, Iterable, Iterator

import pytest
from dragoman.sdk import Line, Output, Report, Write, outputs_of
from dragoman.sdk.parsing import text_event
from dragoman.v1 import event_pb2 as pb

LINE = Line(b"{}", 0, True)


def word() -> pb.AgentEvent:
    return pb.AgentEvent(text=pb.Text(item_id="a", delta="x"))


def too_deep() -> Iterator[Output]:
    yield word()
    raise RecursionError


def unknown() -> None:
    return None


@pytest.mark.parametrize("read", [None, unknown, too_deep])
def test_a_line_that_says_nothing_known_is_a_log(read: Callable[[], Iterable[Output] | None] | None) -> None:
    report = Report()
    (event,) = outputs_of(report, "stdout", LINE, read, "native")
    assert isinstance(event, pb.AgentEvent)
    assert (event.log.text, event.native.type) == ("{}", "")
    assert report.has_output is (read is not None)


def test_the_first_event_has_the_frames_name() -> None:
    first, second, third = outputs_of(Report(), "stdout", LINE, lambda: (Write(b"x"), word(), word()), "assistant")
    assert first == Write(b"x")
    assert isinstance(second, pb.AgentEvent)
    assert isinstance(third, pb.AgentEvent)
    assert (second.native.type, third.native.type) == ("assistant", "")


def test_without_a_name_nothing_is_named_and_silence_is_no_log() -> None:
    (event,) = outputs_of(Report(), "stdout", LINE, lambda: [word()])
    assert event == word()
    report = Report()
    assert outputs_of(report, "stdout", LINE, lambda: (), "system") == []
    assert report.has_output


def test_words_come_in_pieces_or_whole_and_end() -> None:
    text, thinking = pb.Text(item_id="a", delta="x"), pb.Thinking(item_id="a", whole="")
    assert text_event("text", "a", delta="x") == pb.AgentEvent(text=text)
    assert text_event("thinking", "a", whole="") == pb.AgentEvent(thinking=thinking)
    assert text_event("text", "a") == pb.AgentEvent(text=pb.Text(item_id="a"))
