"""The three clocks."""

import pytest
from dragoman.sdk._clocks import ClockLimits, Clocks


def test_without_limits_nothing_ever_expires() -> None:
    clocks = Clocks(ClockLimits(), accepted_at=100.0)
    clocks.spawned(101.0)
    assert clocks.next() is None
    assert clocks.expired(1e12) is None


def test_the_wall_clock_runs_from_acceptance_whatever_happens() -> None:
    clocks = Clocks(ClockLimits(wall_s=10), accepted_at=100.0)
    assert clocks.next() == (110.0, "wall")
    clocks.spawned(105.0)
    clocks.activity(109.0)
    clocks.waiting(109.0, is_waiting=True)
    assert clocks.expired(109.9) is None
    assert clocks.expired(110.0) == "wall"
    clocks.spawned(109.0)
    assert clocks.next() == (110.0, "wall"), "a further attempt has no time of its own"


def test_the_start_up_clock_runs_from_spawn_to_the_first_output() -> None:
    clocks = Clocks(ClockLimits(start_up_s=5), accepted_at=100.0)
    assert clocks.next() is None, "looking for the agent is not its start"
    clocks.spawned(103.0)
    assert clocks.next() == (108.0, "start_up")
    assert clocks.expired(108.0) == "start_up"
    clocks.activity(107.0)
    assert clocks.next() is None
    clocks.spawned(120.0)
    assert clocks.next() == (125.0, "start_up"), "a further attempt starts anew"


def test_the_idle_clock_runs_from_the_last_output() -> None:
    clocks = Clocks(ClockLimits(idle_s=5), accepted_at=100.0)
    clocks.spawned(101.0)
    assert clocks.next() == (106.0, "idle")
    clocks.activity(104.0)
    assert clocks.next() == (109.0, "idle")
    assert clocks.expired(108.9) is None
    assert clocks.expired(109.0) == "idle"


def test_it_pauses_while_a_question_waits_and_starts_anew_after_it() -> None:
    clocks = Clocks(ClockLimits(idle_s=5, start_up_s=3), accepted_at=100.0)
    clocks.spawned(101.0)
    clocks.activity(102.0)
    clocks.waiting(103.0, is_waiting=True)
    clocks.waiting(104.0, is_waiting=True)
    assert clocks.next() is None
    assert clocks.expired(1000.0) is None
    clocks.waiting(1000.0, is_waiting=False)
    assert clocks.next() == (1005.0, "idle")
    clocks.waiting(1003.0, is_waiting=False)
    assert clocks.next() == (1005.0, "idle"), "not waiting is no activity"


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        (ClockLimits(start_up_s=1, idle_s=2, wall_s=30), "start_up"),
        (ClockLimits(start_up_s=3, idle_s=2, wall_s=30), "idle"),
        (ClockLimits(start_up_s=3, idle_s=2, wall_s=1), "wall"),
    ],
)
def test_the_earliest_speaks(limits: ClockLimits, first: str) -> None:
    clocks = Clocks(limits, accepted_at=100.0)
    clocks.spawned(100.0)
    assert clocks.expired(200.0) == first
