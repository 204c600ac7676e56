"""Log lines of an agent that is ahead, joined: nothing lost, nothing moved, nothing too large."""

from itertools import pairwise

from dragoman.sdk import Line, Stream, log_event
from dragoman.sdk._output.joining import join_logs
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

LINES = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")))
)


def bytes_of(events: list[pb.AgentEvent]) -> list[tuple[int, bytes]]:
    """Return each line with its stream."""
    return [
        (event.log.stream, line)
        for event in events
        for line in (event.log.raw or event.log.text.encode()).split(b"\n")
    ]


@given(LINES)
def test_lines_are_the_same_joined_or_not(lines: list[tuple[Stream, bytes]]) -> None:
    events = [log_event(stream, Line(data, 0, complete=True)) for stream, data in lines]
    joined = join_logs(events)
    assert bytes_of(joined) == bytes_of(events)
    for event in joined:
        text = "\n".join(line.decode("utf-8", "replace") for line in event.log.raw.split(b"\n"))
        assert not event.log.raw or event.log.text == text
    streams = [event.log.stream for event in joined]
    assert all(one != other for one, other in pairwise(streams))


def test_an_event_of_joined_lines_has_a_bounded_size() -> None:
    events = [log_event("stdout", Line(b"x" * 1000, 0, complete=True)) for _ in range(200)]
    joined = join_logs(events)
    assert len(joined) == 4
    assert max(len(event.log.text) for event in joined) <= 64 * 1024
    assert bytes_of(joined) == bytes_of(events)


def test_a_line_that_is_not_whole_stays_alone() -> None:
    cut = Line(b"cut", 7, complete=True)
    last = Line(b"last", 0, complete=False)
    whole = Line(b"whole", 0, complete=True)
    events = [log_event("stdout", line) for line in (whole, whole, cut, whole, last)]
    joined = join_logs(events)
    assert [event.log.text for event in joined] == ["whole\nwhole", "cut", "whole", "last"]
    assert joined[1].log.truncated_bytes == 7
    assert joined[3].log.unterminated
