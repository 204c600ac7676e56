"""Recorded conversations with real agents, and frames that no agent should send."""

import copy
import json
from typing import Any

import pytest
from dragoman.sdk import Answer, Line
from dragoman.sdk._encoding.lines import LineSplitter
from dragoman.sdk.acp import AcpParser, Conversation
from dragoman.v1 import event_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sdk.acp.talking import CWD, NAMES, Talk, recorded
from tests.sdk.feeding import pieces_of

SLOW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
LOADED = {"copilot_load": "0b87f88e-e694-43c8-9d07-a6f55f44dfb6"}


def replay(name: str, pieces: list[bytes] | None = None) -> Talk:
    talk = Talk(conversation=Conversation(CWD, "hello", session_id=LOADED.get(name, "")))
    splitter = LineSplitter(1 << 20)
    for piece in pieces if pieces is not None else [recorded(name)]:
        talk.feed(line.data for line in splitter.feed(piece))
    return talk


def shown(talk: Talk) -> list[str]:
    return [str(output) for output in talk.outputs if isinstance(output, pb.AgentEvent)]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_was_recorded_is_unknown(name: str) -> None:
    talk = replay(name)
    assert talk.of("log") == []
    assert talk.parser.report.terminal is not None
    assert talk.parser.report.session_id


def test_opencode_writes_a_file() -> None:
    talk = replay("opencode_write")
    (result,) = talk.of("tool_result")
    assert (result.status, result.content) == (pb.TOOL_STATUS_COMPLETED, "Wrote file successfully.")
    assert [change.path for change in talk.of("file_change")] == [f"{CWD}/acp_opencode.txt"]
    assert talk.parser.report.model == "mock/mock-model"


def test_opencode_thinks() -> None:
    talk = replay("opencode_thinking")
    assert "".join(item.delta for item in talk.of("thinking")) == "Let me think. Two plus two is four."
    assert talk.parser.report.summary == "The answer is 4."


def test_opencode_names_an_exit_code() -> None:
    (result,) = replay("opencode_shell").of("tool_result")
    assert (result.exit_code, result.status) == (3, pb.TOOL_STATUS_COMPLETED)


def test_opencode_cannot_log_in_to_its_model() -> None:
    terminal = replay("opencode_401").parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED


def test_opencode_is_cancelled() -> None:
    terminal = replay("opencode_cancel").parser.report.terminal
    assert terminal is not None
    assert terminal.interrupted


def test_copilot_asks_and_is_refused() -> None:
    talk = Talk()
    first, *rest = recorded("copilot_denied").splitlines()
    talk.feed([first])
    for line in rest:
        talk.feed([line])
        for ask in talk.asked:
            ask.encode(Answer(False, ask.request.options[-1]))
    (ask,) = talk.asked
    assert list(ask.request.subject.paths) == ["/home/ada/acp_denied_copilot.txt"]
    assert ask.request.subject.tool_kind == pb.TOOL_KIND_EDIT
    (result,) = talk.of("tool_result")
    assert result.status == pb.TOOL_STATUS_DENIED
    assert {call.title for call in talk.of("tool_call")} == {"Creating /home/ada/acp_denied_copilot.txt"}


def test_copilot_sends_a_diff() -> None:
    (change,) = replay("copilot_write").of("file_change")
    assert (change.operation, change.provenance) == (pb.FILE_OPERATION_CREATE, pb.PROVENANCE_NATIVE)
    assert "+hello from mock\n" in change.diff


def test_copilot_goes_on_without_repeating_itself() -> None:
    talk = replay("copilot_load")
    assert talk.text == "Hello from the mock."
    assert talk.of("tool_call") == []


def test_openclaw_ends_a_failed_turn_in_silence() -> None:
    terminal = replay("openclaw_401").parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_NO_RESULT


@SLOW
@given(st.data())
def test_any_split_of_a_recording_gives_the_same_events(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    whole = recorded(name)
    assert shown(replay(name, pieces_of(whole, data))) == shown(replay(name))


FRAMES = [json.loads(line) for name in NAMES for line in recorded(name).splitlines()]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
METHODS = st.sampled_from(
    [
        *("session/update", "session/request_permission", "elicitation/create", "fs/read_text_file"),
        *("fs/write_text_file", "terminal/create", "terminal/output", "$/cancel_request", "x"),
    ]
)


def corrupt(data: st.DataObject, frame: Any) -> Any:
    """Return a frame with something in it replaced by anything."""
    changed = copy.deepcopy(frame)
    place = changed
    while isinstance(place, dict) and place:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
        place = place[0] if isinstance(place, list) else place
    return changed


@SLOW
@given(st.data())
def test_nothing_that_an_agent_says_raises(data: st.DataObject) -> None:
    parser = AcpParser(Conversation(CWD, "hello"))
    for frame in FRAMES[: data.draw(st.integers(0, 3))]:
        list(parser.line("stdout", Line(json.dumps(frame).encode(), 0, True)))
    for _ in range(data.draw(st.integers(1, 6))):
        frame = data.draw(
            st.sampled_from(FRAMES)
            | st.fixed_dictionaries({"method": METHODS, "params": JSON}, optional={"id": JSON})
            | st.fixed_dictionaries({"id": st.integers(0, 4), "result": JSON})
            | st.fixed_dictionaries({"id": st.integers(0, 4), "error": JSON})
        )
        line = json.dumps(corrupt(data, frame)).encode()
        for output in parser.line("stdout", Line(line, 0, True)):
            if hasattr(output, "encode"):
                assert isinstance(output, object)
    list(parser.interrupt())
    list(parser.finish())


@given(st.binary(max_size=300))
def test_no_garbage_raises_or_is_lost(data: bytes) -> None:
    parser = AcpParser(Conversation(CWD, "hello"))
    assert len(list(parser.line("stdout", Line(data, 0, False)))) == 1


@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_nesting_without_end_is_a_log_or_an_error(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    call = b'{"toolCallId": "t", "rawInput": {"x": %s}' % deep
    asked = b'{"id": 5, "method": "session/request_permission", "params": {"toolCall": %s}}}' % call
    message = b'{"method": "session/update", "params": {"update": %s, "sessionUpdate": "tool_call"}}}' % call
    talk = Talk.ready()
    before = len(talk.outputs)
    talk.feed([message, asked])
    assert len(talk.outputs) >= before + 2
