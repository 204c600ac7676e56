"""What ``opencode run --format json`` prints, on recordings of opencode 1.18.33 and on whatever may come."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.opencode.run_format import RunParser
from dragoman.sdk import Line, Output
from dragoman.sdk._encoding.lines import LineSplitter
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

RECORDINGS = Path(__file__).parent / "recordings"


def replay(name: str) -> tuple[RunParser, list[pb.AgentEvent]]:
    parser = RunParser("mock/mock-model")
    events: list[Output] = []
    for line in (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines():
        events += parser.line("stdout", Line(line, 0, complete=True))
    events += parser.finish()
    return parser, [event for event in events if isinstance(event, pb.AgentEvent)]


def bodies(events: list[pb.AgentEvent], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


def test_a_file_is_written() -> None:
    parser, events = replay("write_auto")
    assert [event.WhichOneof("body") for event in events] == [
        *("session", "text", "tool_call", "tool_result", "file_change", "usage"),
        *("text", "usage"),
    ]
    (call,), (result,), (change,) = (bodies(events, kind) for kind in ("tool_call", "tool_result", "file_change"))
    assert (call.name, call.kind) == ("write", pb.TOOL_KIND_EDIT)
    assert json.loads(call.input_json) == {"content": "hello from mock\n", "filePath": "hello.txt"}
    assert (result.tool_call_id, result.status) == (call.id, pb.TOOL_STATUS_COMPLETED)
    assert (change.path, change.operation) == ("/workspace/hello.txt", pb.FILE_OPERATION_CREATE)
    assert "+hello from mock" in change.diff
    report = parser.report
    assert report.terminal is not None
    assert report.terminal.succeeded
    assert report.summary == "Done. tool said: Wrote file successfully."
    assert report.session_id == "ses_e0031de8effeAS4F3T5T24cWy1"
    assert report.usage is not None
    assert report.usage.tokens == pb.TokenCounts(input=180, output=40, cache_read=20, cache_write=0, reasoning=10)
    assert report.usage.cost.amount == "0.000262"


def test_reasoning() -> None:
    _, events = replay("reasoning_thinking")
    assert [item.whole for item in bodies(events, "thinking")] == ["Let me think. Two plus two is four."]


def test_a_failing_tool_and_a_failing_command() -> None:
    (failed,) = bodies(replay("toolfail")[1], "tool_result")
    assert (failed.status, failed.content) == (pb.TOOL_STATUS_FAILED, "File not found: /nonexistent/nope.txt")
    (ended,) = bodies(replay("bash_exit3")[1], "tool_result")
    assert (ended.status, ended.exit_code) == (pb.TOOL_STATUS_COMPLETED, 3)


def test_what_opencode_refuses_ends_the_run() -> None:
    parser, events = replay("write_outside_noauto")
    (refused,) = bodies(events, "tool_result")
    assert refused.status == pb.TOOL_STATUS_DENIED
    assert bodies(events, "file_change") == []
    terminal = parser.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_PERMISSION_DENIED


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("err401", pb.FAILURE_KIND_AUTH_REQUIRED, 401),
        ("err400", pb.FAILURE_KIND_INVALID_CONFIG, 400),
        ("drop", pb.FAILURE_KIND_NETWORK, None),
    ],
)
def test_errors(name: str, kind: pb.FailureKind.ValueType, status: int | None) -> None:
    terminal = replay(name)[0].report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert (terminal.failure.kind, terminal.failure.http_status) == (kind, status)
    assert terminal.failure.code == "opencode_APIError"
    assert terminal.failure.errors


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("length", pb.FAILURE_KIND_OUTPUT_LIMIT),
        ("content-filter", pb.FAILURE_KIND_MODEL_REFUSED),
        ("who-knows", pb.FAILURE_KIND_NO_RESULT),
    ],
)
def test_other_ends(reason: str, kind: pb.FailureKind.ValueType) -> None:
    parser = RunParser()
    line = json.dumps({"type": "step_finish", "sessionID": "ses_1", "part": {"reason": reason}}).encode()
    assert list(parser.line("stdout", Line(line, 0, complete=True)))
    list(parser.finish())
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.kind == kind
    assert parser.report.usage is None, "absent is not zero"


def test_what_is_not_understood_is_kept() -> None:
    parser = RunParser()
    for stream, data in (("stdout", b"hello"), ("stdout", b'{"type": "new_thing"}'), ("stderr", b'{"type": "text"}')):
        (event,) = parser.line("stdout" if stream == "stdout" else "stderr", Line(data, 0, complete=True))
        assert isinstance(event, pb.AgentEvent)
        assert event.log.text == data.decode()
    assert parser.report.terminal is None


FRAMES = [json.loads(line) for path in sorted(RECORDINGS.glob("*.jsonl")) for line in path.read_text().splitlines()]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def spoiled(frame: dict[str, Any], path: list[int], value: Any) -> dict[str, Any]:
    """Return a frame with one value replaced, somewhere in it."""
    copy: dict[str, Any] = json.loads(json.dumps(frame))
    place: Any = copy
    for step in path:
        keys = list(place)
        key = keys[step % len(keys)]
        if not isinstance(place[key], dict) or not place[key]:
            break
        place = place[key]
    place[list(place)[path[0] % len(place)]] = value
    return copy


@settings(max_examples=100)
@given(st.sampled_from(FRAMES), st.lists(st.integers(0, 20), min_size=1, max_size=4), JSON)
def test_nothing_raises(frame: dict[str, Any], path: list[int], value: Any) -> None:
    parser = RunParser()
    line = json.dumps(spoiled(frame, path, value)).encode()
    for event in (*parser.line("stdout", Line(line, 0, complete=True)), *parser.finish()):
        assert isinstance(event, pb.AgentEvent)
        event.SerializeToString()


@settings(max_examples=50)
@given(st.sampled_from(sorted(path.name for path in RECORDINGS.glob("*.jsonl"))), st.integers(1, 97))
def test_any_split_gives_the_same(name: str, size: int) -> None:
    data = (RECORDINGS / name).read_bytes()
    parser, splitter = RunParser("mock/mock-model"), LineSplitter()
    lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    events = [event for line in lines for event in parser.line("stdout", line)]
    assert [*events, *parser.finish()] == replay(name.removesuffix(".jsonl"))[1]
