"""The steps to the end of an agent."""

import signal

from dragoman.sdk._request.job import TERMINATE, CancelStep
from dragoman.sdk._run.stop_sequence import StopSequence
from hypothesis import given
from hypothesis import strategies as st

INTERRUPT = CancelStep(signal.SIGINT, write=b"stop", share=0.5)
TERM = CancelStep(signal.SIGTERM, share=0.5)


def test_each_step_has_its_share_and_then_it_is_over() -> None:
    stopping = StopSequence((INTERRUPT, TERM))
    assert not stopping.has_begun
    assert stopping.due(1e9) == []
    assert not stopping.is_over(1e9)
    stopping.begin(100, 110)
    assert stopping.due(100) == [INTERRUPT]
    assert stopping.next_time() == 105
    assert stopping.due(104.9) == []
    assert stopping.due(105) == [TERM]
    assert stopping.next_time() == 110
    assert not stopping.is_over(109.9)
    assert stopping.is_over(110)


def test_a_step_without_share_gives_way_at_once() -> None:
    stopping = StopSequence((CancelStep(signal.SIGINT, share=0.0), TERM))
    stopping.begin(100, 110)
    assert [step.signal for step in stopping.due(100)] == [signal.SIGINT, signal.SIGTERM]


def test_a_shorter_grace_shortens_and_a_longer_one_does_not() -> None:
    stopping = StopSequence((INTERRUPT, TERM))
    stopping.begin(100, 110)
    assert stopping.due(100) == [INTERRUPT]
    stopping.begin(101, 200)
    assert stopping.next_time() == 105
    stopping.begin(101, 104)
    assert stopping.next_time() == 102, "the shares are of what is left of the grace"
    assert stopping.due(102) == [TERM]
    stopping.begin(102, 102)
    assert stopping.is_over(102)


def test_no_grace_means_no_step() -> None:
    stopping = StopSequence(TERMINATE)
    stopping.begin(100, 100)
    assert stopping.due(100) == []
    assert stopping.is_over(100)


@given(
    st.lists(st.builds(CancelStep, share=st.floats(0, 2)), max_size=4),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 30)), min_size=1, max_size=6),
)
def test_it_always_ends_by_the_earliest_deadline_with_each_step_once(
    steps: list[CancelStep], requests: list[tuple[float, float]]
) -> None:
    stopping = StopSequence(steps)
    now, taken, earliest = 0.0, 0, float("inf")
    for pause, grace in requests:
        now += pause
        stopping.begin(now, now + grace)
        earliest = min(earliest, now + grace)
        taken += len(stopping.due(now))
        assert stopping.next_time() <= earliest
    for _ in range(len(steps) + 1):
        now = max(now, stopping.next_time())
        taken += len(stopping.due(now))
    assert taken <= len(steps)
    assert stopping.is_over(max(now, earliest))
