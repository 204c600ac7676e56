"""The clocks of a run."""

import pytest
from dragoman.protocol.clocks import ClockLimits, Clocks
from dragoman.v1 import event_pb2 as pb


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


# Tool calls.


def call(
    name: str,
    status: pb.ToolStatus.ValueType = pb.TOOL_STATUS_RUNNING,
    kind: pb.ToolKind.ValueType = pb.TOOL_KIND_EXECUTE,
) -> pb.AgentEvent:
    return pb.AgentEvent(tool_call=pb.ToolCall(id=name, status=status, kind=kind))


def ended(name: str) -> pb.AgentEvent:
    return pb.AgentEvent(tool_result=pb.ToolResult(tool_call_id=name))


def running(limits: ClockLimits) -> Clocks:
    """Return the clocks of an agent that was started at 100 and last heard at 102."""
    clocks = Clocks(limits, accepted_at=100.0)
    clocks.spawned(100.0)
    clocks.activity(102.0)
    return clocks


def test_the_idle_clock_stands_still_while_any_tool_call_is_open() -> None:
    clocks = running(ClockLimits(idle_s=5))
    assert clocks.observe(call("a"), 103.0)
    clocks.observe(call("b"), 104.0)
    assert clocks.expired(5000.0) is None
    clocks.observe(ended("a"), 2000.0)
    assert clocks.expired(5000.0) is None
    assert clocks.observe(ended("b"), 3000.0)
    assert clocks.next() == (3005.0, "idle")


def test_a_call_has_a_limit_of_its_own_from_when_it_runs() -> None:
    clocks = running(ClockLimits(idle_s=5, tool_call_s=60))
    clocks.observe(call("a", pb.TOOL_STATUS_PENDING), 103.0)
    assert clocks.next() == (107.0, "idle"), "its input is being written"
    clocks.observe(call("a"), 105.0)
    clocks.observe(call("b"), 106.0)
    clocks.observe(call("a"), 150.0)
    assert clocks.next() == (165.0, "tool_call"), "a call that is reported again is not a new one"
    clocks.activity(160.0)
    assert clocks.expired(165.0) == "tool_call", "its output does not prolong it"
    clocks.observe(ended("a"), 161.0)
    assert clocks.next() == (166.0, "tool_call")


@pytest.mark.parametrize("status", [pb.TOOL_STATUS_COMPLETED, pb.TOOL_STATUS_DENIED, pb.TOOL_STATUS_CANCELLED])
def test_a_call_may_also_end_by_its_status(status: pb.ToolStatus.ValueType) -> None:
    clocks = running(ClockLimits(idle_s=5, tool_call_s=60))
    clocks.observe(call("a"), 103.0)
    clocks.observe(call("a", status), 110.0)
    assert clocks.next() == (115.0, "idle")
    assert not clocks.observe(ended("a"), 112.0)


def test_the_call_of_a_nested_agent_is_not_limited_and_its_silence_is_silence() -> None:
    clocks = running(ClockLimits(idle_s=5, tool_call_s=1))
    assert not clocks.observe(call("a", kind=pb.TOOL_KIND_SUBAGENT), 103.0)
    assert clocks.next() == (107.0, "idle")


def test_the_time_of_a_call_stands_still_while_a_question_waits() -> None:
    clocks = running(ClockLimits(tool_call_s=60))
    clocks.observe(call("a"), 110.0)
    clocks.waiting(120.0, is_waiting=True)
    clocks.observe(call("b"), 150.0)
    assert clocks.next() is None
    clocks.waiting(220.0, is_waiting=False)
    assert clocks.next() == (270.0, "tool_call"), "ten seconds of its time were over"
    clocks.observe(ended("a"), 230.0)
    assert clocks.next() == (280.0, "tool_call"), "none of its were"


def test_open_calls_are_of_one_attempt_and_bounded() -> None:
    clocks = running(ClockLimits(idle_s=5, tool_call_s=60))
    for number in range(5000):
        clocks.observe(call(str(number)), 103.0 + number)
    assert clocks.next() == (103.0 + 5000 - 1024 + 60, "tool_call")
    clocks.spawned(9000.0)
    assert clocks.next() == (9005.0, "idle")


def test_silence_after_a_line_that_could_not_be_parsed() -> None:
    clocks = running(ClockLimits(unread_s=30))
    assert clocks.next() is None
    clocks.unread(is_unread=True)
    assert clocks.next() == (132.0, "unread")
    clocks.observe(call("a"), 103.0)
    assert clocks.next() is None
    clocks.observe(ended("a"), 110.0)
    clocks.unread(is_unread=False)
    assert clocks.next() is None
