"""Qwen Code's stream of JSON lines: recordings, cut lines, garbage; and how it is run for them."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.qwen import adapter
from dragoman.adapters.qwen.stream import QwenStreamParser, failure_of_words
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import Evidence, Line, Output, Report
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.qwen.test_qwen import SESSION, job

RECORDINGS = Path(__file__).parent / "recordings"
LINES = {"transport": "stream-json"}


def recorded(name: str) -> list[bytes]:
    return (RECORDINGS / f"stream_{name}.jsonl").read_bytes().splitlines()


def parsed(*lines: bytes, complete: bool = True) -> tuple[QwenStreamParser, list[pb.AgentEvent]]:
    parser = QwenStreamParser()
    outputs: list[Any] = []
    for number, data in enumerate(lines):
        outputs += parser.line("stdout", Line(data, 0, complete or number < len(lines) - 1))
    return parser, [*outputs, *parser.finish()]


def of(events: list[pb.AgentEvent], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("body") == kind]


@pytest.mark.parametrize("name", ["text", "toolfail", "drop", "err401", "resume"])
def test_everything_recorded_is_understood(name: str) -> None:
    parser, events = parsed(*recorded(name))
    assert of(events, "log") == []
    assert parser.report.session_id
    assert parser.report.terminal is not None


def test_text_and_tokens() -> None:
    parser, events = parsed(*recorded("text"))
    assert "".join(text.delta for text in of(events, "text")) == parser.report.summary == "Hello from the mock."
    (call,) = of(events, "usage")
    assert (call.tokens.input, call.tokens.cache_read) == (90, 10)
    assert parser.report.usage is not None
    assert parser.report.usage.tokens.input == 180, "a call without a frame is paid too"


def test_a_tool_from_its_first_word_to_its_result() -> None:
    _, events = parsed(*recorded("toolfail"))
    calls = of(events, "tool_call")
    assert [call.status for call in calls] == [pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING]
    assert json.loads(calls[1].input_json) == {"file_path": "/nonexistent/nope.txt"}
    (result,) = of(events, "tool_result")
    assert (result.status, result.content) == (pb.TOOL_STATUS_FAILED, "File not found: /nonexistent/nope.txt")


def test_tries_are_reported() -> None:
    parser, events = parsed(*recorded("drop"))
    retrying, running = pb.RUN_PHASE_RETRYING, pb.RUN_PHASE_RUNNING
    assert [state.phase for state in of(events, "state")] == [retrying, running] * 3
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.kind == pb.FAILURE_KIND_NETWORK


@pytest.mark.parametrize("name", ["text", "toolfail", "resume"])
def test_a_last_line_that_is_cut_still_reports_the_end(name: str) -> None:
    lines = recorded(name)
    start = lines[-1].replace(b'"session_id"', b'"uuid":"x","session_id"', 1)
    parser, events = parsed(*lines[:-1], start[:120], complete=False)
    assert of(events, "log") == []
    assert parser.report.terminal is not None
    assert parser.report.terminal.succeeded
    assert parser.report.summary
    assert parser.report.usage is None, "it stood in the part that is lost"


def test_a_failure_that_is_cut_is_no_success() -> None:
    lines = recorded("err401")
    parser, _ = parsed(*lines[:-1], lines[-1][:80], complete=False)
    assert parser.report.terminal is None


def test_a_nested_agent_has_its_lineage() -> None:
    frame = {"type": "stream_event", "parent_tool_use_id": "call_1"}
    frame["event"] = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}  # type: ignore[assignment]  # a frame is of any shape
    _, (event, _) = parsed(json.dumps(frame).encode())
    assert event.lineage.parent_tool_call_id == "call_1"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("[API Error: 401 Incorrect API key provided]", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("[API Error: 429 Rate limit exceeded]", pb.FAILURE_KIND_RATE_LIMITED),
        ("No auth type is selected. Please configure an auth type", pb.FAILURE_KIND_AUTH_REQUIRED),
        ("Strange.", pb.FAILURE_KIND_PROCESS_CRASHED),
    ],
)
def test_what_its_words_mean(words: str, kind: int) -> None:
    failure = failure_of_words(words)
    assert (failure.kind, failure.code) == (kind, "qwen_error")


def test_an_unknown_session() -> None:
    words = f"No saved session found with ID {SESSION}. Run `qwen --resume` without an ID to choose."
    found = adapter().classify(Evidence(Report(), exit_code=1, resumed=True, stderr_tail=words))
    assert found is not None
    assert (found.kind, found.code) == (pb.FAILURE_KIND_SESSION_LOST, "qwen_session")
    assert adapter().classify(Evidence(Report(), exit_code=1, stderr_tail=words)) is None


@settings(max_examples=50)
@given(st.data())
def test_no_mangled_recording_raises(data: st.DataObject) -> None:
    mangled = []
    for line in recorded(data.draw(st.sampled_from(["text", "toolfail", "drop"]))):
        at = data.draw(st.integers(0, len(line)))
        mangled.append(line[:at] + data.draw(st.binary(max_size=4)) + line[at + 1 :])
    parsed(*mangled)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["subtype", "message", "event", "delta", "content_block", "content", "usage", "tools", "error"]
)


@settings(max_examples=100)
@given(
    st.sampled_from(["system", "stream_event", "assistant", "user", "result", "x"]),
    st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON)),
)
def test_no_frame_raises(kind: str, fields: dict[str, Any]) -> None:
    parsed(json.dumps({**fields, "type": kind}).encode())


# How it is run.


def test_a_run_without_any_permission(tmp_path: Path) -> None:
    plan = adapter().plan(job(tmp_path, config=LINES))
    assert plan.argv == (
        *("/bin/qwen", "--output-format", "stream-json", "--include-partial-messages"),
        *("--session-id", SESSION, "--approval-mode", "default"),
    )
    assert (plan.stdin, plan.keep_stdin_open) == (b"Do it.", False)
    assert [code for code, _ in plan.notices] == ["tools_withheld"]
    assert "defaults.json" in plan.files


def test_a_run_that_may_do_all(tmp_path: Path) -> None:
    plan = adapter().plan(job(tmp_path, config=LINES, permissions=pb.Permissions(auto_approve=True)))
    assert plan.argv[-2:] == ("--approval-mode", "yolo")
    assert plan.notices == ()


def test_tool_servers_need_the_protocol(tmp_path: Path) -> None:
    request = api.ExecuteRequest(prompt="x", workspace=api.Workspace(cwd=str(tmp_path)))
    request.mcp_servers.add(name="s").stdio.command = "server"
    adapter().accept(request)
    request.config.update(LINES)
    with pytest.raises(DragomanError) as refused:
        adapter().accept(request)
    assert refused.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": "--yolo"}, "model"),
        ({"permissions": pb.Permissions(native_mode="--yolo")}, "permissions.native_mode"),
        ({"mcp_servers": [api.McpServer(stdio=api.McpStdio(command="x"))]}, "mcp_servers[0].name"),
    ],
)
def test_what_would_be_taken_for_something_else(tmp_path: Path, fields: Any, path: str) -> None:
    with pytest.raises(DragomanError) as refused:
        adapter().accept(api.ExecuteRequest(prompt="x", workspace=api.Workspace(cwd=str(tmp_path)), **fields))
    assert [violation.path for violation in refused.value.violations] == [path]


def test_what_a_tool_changed_is_reported(tmp_path: Path) -> None:
    parser, path = QwenStreamParser([str(tmp_path)]), str(tmp_path / "a.txt")
    outputs: list[Output] = []
    for call_id, name, inputs in (
        ("c1", "write_file", {"file_path": path, "content": "hello\n"}),
        ("c2", "edit", {"file_path": path, "old_string": "hello", "new_string": "bye"}),
    ):
        call = {"type": "tool_use", "id": call_id, "name": name, "input": inputs}
        ended = {"type": "tool_result", "tool_use_id": call_id, "content": "Done."}
        for kind, part in (("assistant", call), ("user", ended)):
            frame = {"type": kind, "message": {"content": [part]}}
            outputs += parser.line("stdout", Line(json.dumps(frame).encode(), 0, True))
        (tmp_path / "a.txt").write_text("hello\n", encoding="utf-8")
    changes = [output.file_change for output in outputs if isinstance(output, pb.AgentEvent)]
    created, modified = [change for change in changes if change.path]
    assert (created.operation, "+hello" in created.diff) == (pb.FILE_OPERATION_CREATE, True)
    assert (modified.operation, "-hello" in modified.diff) == (pb.FILE_OPERATION_MODIFY, True)
