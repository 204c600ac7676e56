"""Whether work had begun: true only if an event shows it, false only where nothing can have been missed."""

import pytest
from dragoman.protocol.work import EFFECTS, WorkSeen, note_work
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

STARTED = pb.AgentEvent(started=pb.Started())
REPORTING = pb.AgentEvent(started=pb.Started())
REPORTING.started.capabilities.items.add(feature=pb.FEATURE_TOOL_START)
STARTING = pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_STARTING))
RUNNING = pb.AgentEvent(state=pb.State(phase=pb.RUN_PHASE_RUNNING))
TEXT = pb.AgentEvent(text=pb.Text(delta="done: I removed it"))
PRINTED = pb.AgentEvent(log=pb.Log(stream=pb.OUTPUT_STREAM_STDOUT, text="removed"))
WARNED = pb.AgentEvent(log=pb.Log(stream=pb.OUTPUT_STREAM_STDERR, text="a warning"))
UNREAD = pb.AgentEvent(notice=pb.Notice(code="parser_failed"))
FAILED = pb.AgentEvent(result=pb.Result(failure=pb.Failure(code="adapter_failed")))
TOOL = pb.AgentEvent(tool_call=pb.ToolCall(id="t"))


def begun(*events: pb.AgentEvent) -> bool | None:
    seen = WorkSeen()
    for event in events:
        seen.observe(event, event.WhichOneof("body") or "")
    return seen.begun


@pytest.mark.parametrize("kind", sorted(EFFECTS))
def test_each_kind_of_work_counts(kind: str) -> None:
    event = pb.AgentEvent()
    getattr(event, kind).SetInParent()
    assert begun(STARTED, RUNNING, event) is True


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((STARTED, STARTING), False),
        ((STARTED, STARTING, RUNNING), None),
        ((STARTED, STARTING, RUNNING, PRINTED), None),
        ((STARTED,), None),
        ((REPORTING, STARTING, RUNNING, TEXT, WARNED), False),
        ((REPORTING, STARTING, RUNNING, PRINTED), None),
        ((REPORTING, STARTING, RUNNING, UNREAD), None),
        ((REPORTING, STARTING, RUNNING, TOOL, UNREAD), True),
        ((REPORTING, STARTING, RUNNING, TOOL, STARTED, STARTING), False),
        ((REPORTING, STARTING, RUNNING, FAILED), None),
        ((REPORTING, STARTING, RUNNING, TOOL, FAILED), True),
        ((), None),
    ],
    ids=[
        *("never started", "a silent program", "a program that printed", "an adapter without phases", "no tool"),
        *("an unknown line", "an unread line", "a tool before it", "an attempt before"),
        *("an adapter that failed", "an adapter that failed after a tool", "nothing"),
    ],
)
def test_what_is_not_known_stays_open(events: tuple[pb.AgentEvent, ...], expected: bool | None) -> None:
    assert begun(*events) is expected


@given(st.lists(st.sampled_from([STARTING, RUNNING, TEXT, PRINTED, WARNED, UNREAD, TOOL])), st.booleans())
def test_work_once_seen_stays_seen_and_denial_needs_certainty(events: list[pb.AgentEvent], reports: bool) -> None:
    found = begun(REPORTING if reports else STARTED, *events)
    assert (found is True) == (TOOL in events)
    if found is False and RUNNING in events:
        assert reports
        assert PRINTED not in events
        assert UNREAD not in events


def test_what_a_failure_says_itself_is_kept() -> None:
    failure = pb.Failure(work_begun=True)
    note_work(failure, begun=False)
    assert failure.work_begun
    unknown = pb.Failure()
    note_work(unknown, begun=None)
    assert not unknown.HasField("work_begun")
