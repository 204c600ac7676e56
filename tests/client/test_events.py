"""What the reader of a run gets of the messages of its streams."""

from dragoman.client._events import EventFilter
from dragoman.v1 import event_pb2 as pb


def request(sequence: int = 0) -> pb.AgentEvent:
    return pb.AgentEvent(sequence=sequence, input_request=pb.InputRequest(id="q"))


def passed(events: EventFilter, message: pb.AgentEvent) -> tuple[int, bool]:
    """Return how many events came out, and whether the run is known to be alive."""
    return len(list(events.events(message))), events.progressed


def test_an_open_request_is_passed_on_once() -> None:
    events = EventFilter(0)
    assert passed(events, request(1)) == (1, True)
    assert passed(events, request()) == (0, False)
    assert passed(events, pb.AgentEvent(sequence=2, text=pb.Text(delta="a"))) == (1, True)
    assert passed(events, request()) == (0, False), "only its resolution ends it"
    assert passed(events, pb.AgentEvent(sequence=3, input_resolved=pb.InputResolved(id="q"))) == (1, True)
    assert passed(events, request()) == (1, False), "the same ID is another request by then"
    assert passed(events, request()) == (0, False)


def test_what_was_delivered_is_dropped() -> None:
    events = EventFilter(5)
    assert passed(events, pb.AgentEvent(sequence=5, text=pb.Text(delta="a"))) == (0, False)
    assert passed(events, pb.AgentEvent(sequence=6, text=pb.Text(delta="a"))) == (1, True)
    assert events.last_sequence == 6
    assert passed(events, pb.AgentEvent(gap=pb.Gap(from_sequence=2, to_sequence=6))) == (0, False)
    (gap,) = events.events(pb.AgentEvent(gap=pb.Gap(from_sequence=2, to_sequence=9)))
    assert (gap.gap.from_sequence, gap.gap.to_sequence, events.last_sequence) == (7, 9, 9)
    assert passed(events, pb.AgentEvent(replay_done=pb.ReplayDone())) == (1, False)
    assert passed(events, pb.AgentEvent(replay_done=pb.ReplayDone())) == (0, False)


def test_nothing_follows_the_result() -> None:
    events = EventFilter(5)
    result = pb.AgentEvent(sequence=4, result=pb.Result(outcome=pb.OUTCOME_SUCCEEDED))
    assert passed(events, result) == (0, False)
    assert events.result is not None
    assert passed(events, pb.AgentEvent(sequence=6, text=pb.Text(delta="a"))) == (0, False)
