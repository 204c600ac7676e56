"""When an attempt's agent is stopped, and by which clock."""

from dragoman.protocol.clocks import ClockLimits, Clocks
from dragoman.sdk._request.job import TERMINATE
from dragoman.sdk._run.deadlines import Deadlines
from dragoman.sdk._run.stop_sequence import StopSequence


def test_what_the_agent_does_in_its_grace_changes_no_clock_that_stopped_it() -> None:
    clocks = Clocks(ClockLimits(idle_s=10.0, wall_s=15.0), accepted_at=0.0)
    clocks.spawned(0.0)
    clocks.activity(0.0)
    stopping = StopSequence(TERMINATE)
    deadlines = Deadlines(clocks, stopping)
    assert not deadlines.has_expired(9.9)
    assert deadlines.has_expired(10.0)
    stopping.begin(10.0, 20.0)
    clocks.activity(11.0)
    for now in (12.0, 16.0):
        assert not deadlines.has_expired(now)
        assert deadlines.stopped_by == "idle"
