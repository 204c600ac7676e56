"""The gateway's frames, on recordings of OpenClaw 2026.9.6 and on whatever may come."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.openclaw.parse import OpenClawParser
from dragoman.sdk import Answer, Ask, CloseInput, Line, Output, Withdraw, Write
from dragoman.sdk._request.sessions import NEW, SessionPlan
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from .planning import COPIED, NEW_ID, RESUMED, job_of, request

RECORDINGS = Path(__file__).parent / "recordings"
KEY = f"agent:main:dragoman-{NEW_ID}"
RUN = "dragoman-run-1-1"
ALL = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


def new_parser(session: SessionPlan = NEW, **fields: Any) -> OpenClawParser:
    return OpenClawParser(job_of(request(**fields), session))


def feed(parser: OpenClawParser, lines: Iterable[bytes]) -> list[Output]:
    outputs: list[Output] = []
    for line in lines:
        outputs += parser.line("stdout", Line(line, 0, complete=True))
    outputs += parser.finish()
    return outputs


def replay(name: str, **fields: Any) -> tuple[OpenClawParser, list[Output]]:
    parser = new_parser(**fields)
    return parser, feed(parser, (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines())


def outputs_of(parser: OpenClawParser, *frames: dict[str, Any]) -> list[Output]:
    return feed(parser, [json.dumps(frame).encode() for frame in frames])


def of_agent(stream: str, run: str = RUN, **data: Any) -> dict[str, Any]:
    return {"type": "event", "event": "agent", "payload": {"runId": run, "stream": stream, "data": data}}


def answer(request_id: str, payload: dict[str, Any], *, ok: bool = True, error: str = "") -> dict[str, Any]:
    return {"type": "res", "id": request_id, "ok": ok, "payload": payload, "error": {"message": error}}


def bodies(outputs: list[Output], kind: str) -> list[Any]:
    return [
        getattr(item, kind) for item in outputs if isinstance(item, pb.AgentEvent) and item.WhichOneof("body") == kind
    ]


def written(outputs: list[Output]) -> list[tuple[str, Any]]:
    frames = [json.loads(item.data) for item in outputs if isinstance(item, Write)]
    return [(frame["method"], frame["params"]) for frame in frames]


def shown(outputs: list[Output]) -> str:
    items: dict[str, str] = {}
    for text in bodies(outputs, "text"):
        before = "" if text.WhichOneof("content") == "whole" else items.get(text.item_id, "")
        items[text.item_id] = before + text.whole + text.delta
    return "".join(items.values())


def test_what_is_taken_away_fails_and_the_run_goes_on() -> None:
    parser, outputs = replay("read_only_write")
    assert bodies(outputs, "log") == []
    (session,) = bodies(outputs, "session")
    assert (session.native_id, session.agent_version) == (NEW_ID, "2026.9.6")
    (call,), (result,) = bodies(outputs, "tool_call"), bodies(outputs, "tool_result")
    assert (call.name, call.kind, call.status) == ("write", pb.TOOL_KIND_EDIT, pb.TOOL_STATUS_RUNNING)
    assert (result.status, result.content) == (pb.TOOL_STATUS_FAILED, "Tool write not found")
    assert bodies(outputs, "file_change") == []
    report = parser.report
    assert report.terminal is not None
    assert report.terminal.succeeded
    assert report.summary == "Done: Tool write not found"
    assert shown(outputs) == "I will write that file.Done: Tool write not found"
    assert (report.session_id, report.provider, report.model, report.turns) == (NEW_ID, "mock", "mock-model", 2)
    assert report.usage is not None
    assert report.usage.tokens == pb.TokenCounts(input=800, output=84, cache_read=1600, cache_write=0)
    assert report.usage.cost.amount == "0.001128"
    assert any(isinstance(item, CloseInput) for item in outputs)


def test_openclaws_own_policy_about_commands_is_asked_too() -> None:
    _, outputs = replay("command_denied")
    (asked,) = [item for item in outputs if isinstance(item, Ask)]
    assert asked.request.subject.command == "echo shell-ran"
    assert asked.request.subject.tool_call_id
    assert json.loads(asked.encode(Answer(allowed=False)))["params"]["decision"] == "deny"
    assert json.loads(asked.encode(Answer(allowed=True)))["params"]["decision"] == "allow-once"
    assert any(isinstance(item, Withdraw) for item in outputs)
    (result,) = bodies(outputs, "tool_result")
    assert result.status == pb.TOOL_STATUS_DENIED


def test_a_refused_key_is_no_success() -> None:
    parser, _ = replay("refused_key")
    terminal = parser.report.terminal
    assert terminal is not None
    assert not terminal.succeeded
    assert terminal.failure is not None
    assert (terminal.failure.kind, terminal.failure.code) == (pb.FAILURE_KIND_AUTH_REQUIRED, "openclaw_auth")
    assert terminal.failure.http_status == 401
    assert "openclaw models auth login" in terminal.failure.message


def test_the_minute_after_a_refused_key_is_the_same() -> None:
    parser = new_parser()
    words = 'Inline API key for provider "mock" is temporarily disabled after a provider auth/billing failure.'
    outputs_of(parser, answer("turn", {"status": "error"}, ok=False, error=words))
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.kind == pb.FAILURE_KIND_AUTH_REQUIRED


def test_retries_are_reported_and_earlier_output_is_withdrawn() -> None:
    _, outputs = replay("cut_that_passes")
    states = bodies(outputs, "state")
    assert [state.phase for state in states].count(pb.RUN_PHASE_RETRYING) == 2
    assert states[0].retry_attempt == 1
    assert states[0].max_retries == 8
    assert states[0].retry_delay.ToMilliseconds() == 781
    assert states[-1].phase == pb.RUN_PHASE_RUNNING
    assert shown(outputs) == "Recovered from the cut."


def test_a_thought_that_a_tool_call_ended_is_not_continued() -> None:
    thought, call = of_agent("thinking", delta="Hm."), of_agent("tool", phase="start", toolCallId="c", name="read")
    items = bodies(outputs_of(new_parser(), thought, call, thought, of_agent("assistant", delta="Yes.")), "thinking")
    assert [(item.item_id, item.delta) for item in items] == [
        *[("thinking-1", "Hm."), ("thinking-1", "")],
        *[("thinking-2", "Hm."), ("thinking-2", "")],
    ]


def test_a_rate_limit_has_its_cause() -> None:
    parser, outputs = replay("rate_limit_that_passes")
    assert bodies(outputs, "state")[0].retry_cause == pb.FAILURE_KIND_RATE_LIMITED
    assert parser.report.terminal is not None
    assert parser.report.terminal.succeeded


def test_a_stopped_turn_says_so() -> None:
    parser, outputs = replay("stopped_in_a_tool")
    (result,) = bodies(outputs, "tool_result")
    assert result.status == pb.TOOL_STATUS_CANCELLED
    assert parser.report.terminal is not None
    assert parser.report.terminal.interrupted
    assert not parser.report.terminal.succeeded


# The conversation with the gateway.


def test_a_gateway_without_the_plugin_is_not_used() -> None:
    parser = new_parser()
    outputs = outputs_of(parser, {"type": "hello", "methods": ["agent"]})
    assert written(outputs) == []
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.code == "openclaw_plugin_missing"
    assert outputs_of(new_parser(), {"type": "hello", "methods": ["dragoman.question"]}) == []


def test_questions_are_fetched_only_where_a_decision_is_possible() -> None:
    outputs = outputs_of(new_parser(), answer("open", {"key": KEY}))
    assert [method for method, _ in written(outputs)] == ["dragoman.question", "agent"]
    trusted = new_parser(permissions=pb.Permissions(auto_approve=True))
    assert [method for method, _ in written(outputs_of(trusted, answer("open", {})))] == ["agent"]


def test_a_session_that_is_not_there_is_lost_and_nothing_is_begun() -> None:
    parser = new_parser(RESUMED)
    assert written(outputs_of(parser, answer("open", {"session": None}))) == []
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.kind == pb.FAILURE_KIND_SESSION_LOST
    assert parser.report.terminal.failure.code == "openclaw_session_unknown"
    assert parser.report.session_id == ""


def test_a_copy_of_a_session_that_is_not_there_is_lost() -> None:
    parser = new_parser(COPIED)
    outputs_of(parser, answer("open", {}, ok=False, error="unknown parent session: agent:main:x not found"))
    assert parser.report.terminal is not None
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.kind == pb.FAILURE_KIND_SESSION_LOST


def test_a_turn_that_something_else_stopped_has_failed() -> None:
    parser = new_parser()
    outputs_of(parser, answer("turn", {"status": "ok"}))
    assert parser.report.terminal is not None
    assert parser.report.terminal.interrupted
    assert parser.report.terminal.failure is not None
    assert parser.report.terminal.failure.code == "openclaw_stopped"


def test_a_resumed_session_is_adjusted_before_its_turn() -> None:
    parser = new_parser(RESUMED, model="a/b")
    assert [method for method, _ in written(outputs_of(parser, answer("open", {"session": {"key": "k"}})))] == [
        "dragoman.question",
        "sessions.patch",
    ]
    assert [method for method, _ in written(outputs_of(parser, answer("adjust", {})))] == ["agent"]


def test_a_question_is_put_and_the_next_one_fetched() -> None:
    parser = new_parser()
    question = {"id": "q", "call": "c", "tool": "write", "params": {"path": "/w/a", "content": "x"}}
    outputs = outputs_of(parser, answer("question", question))
    asked, following = outputs
    assert isinstance(asked, Ask)
    assert written([following])[0][0] == "dragoman.question"
    assert list(asked.request.subject.paths) == ["/w/a"]
    assert json.loads(asked.request.editable_input_json) == question["params"]
    edited = '{"path": "/w/b", "content": "y"}'
    reply = json.loads(asked.encode(Answer(allowed=True, updated_input_json=edited)))
    assert reply["method"] == "dragoman.answer"
    assert reply["params"] == {"id": "q", "allow": True, "message": "", "params": json.loads(edited)}
    refused = json.loads(asked.encode(Answer(allowed=False, message="No.")))["params"]
    assert refused == {"id": "q", "allow": False, "message": "No."}


def test_an_answer_without_a_question_asks_nothing() -> None:
    assert outputs_of(new_parser(), answer("question", {})) == []


def test_frames_of_other_runs_are_skipped() -> None:
    outputs = outputs_of(
        new_parser(),
        of_agent("assistant", run="another", delta="theirs", itemId="1"),
        {"type": "event", "event": "exec.approval.requested", "payload": {"id": "x", "request": {"sessionKey": "y"}}},
        answer("another-clients", {}),
    )
    assert outputs == []


def test_an_unknown_stream_is_a_log() -> None:
    assert len(bodies(outputs_of(new_parser(), of_agent("novelty", what="?")), "log")) == 1


def test_a_file_that_is_written_is_reported_with_its_diff() -> None:
    details = {"changed": True, "created": True, "patch": "+hello\n"}
    outputs = outputs_of(
        new_parser(),
        of_agent("tool", phase="start", name="write", toolCallId="c", args={"path": "/w/./a.txt"}),
        of_agent("tool", phase="result", name="write", toolCallId="c", isError=False, result={"details": details}),
    )
    (change,) = bodies(outputs, "file_change")
    assert (change.path, change.operation, change.diff) == ("/w/a.txt", pb.FILE_OPERATION_CREATE, "+hello\n")


def test_an_edit_that_changes_nothing_is_no_change() -> None:
    outputs = outputs_of(
        new_parser(),
        of_agent("tool", phase="start", name="edit", toolCallId="c", args={"path": "/w/a.txt"}),
        of_agent("tool", phase="result", name="edit", toolCallId="c", result={"details": {"changed": False}}),
    )
    assert bodies(outputs, "file_change") == []
    assert len(bodies(outputs, "tool_result")) == 1


def test_a_command_that_fails_has_its_exit_code() -> None:
    result = {"content": [{"type": "text", "text": "oops"}], "details": {"exitCode": 3, "durationMs": 27}}
    outputs = outputs_of(
        new_parser(), of_agent("tool", phase="result", name="exec", toolCallId="c", isError=False, result=result)
    )
    (ended,) = bodies(outputs, "tool_result")
    assert (ended.status, ended.exit_code, ended.content) == (pb.TOOL_STATUS_FAILED, 3, "oops")
    assert ended.duration.ToMilliseconds() == 27


# Whatever may come.


@pytest.mark.parametrize("name", ALL)
def test_no_recording_holds_what_is_not_understood(name: str) -> None:
    assert bodies(replay(name)[1], "log") == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80)
@given(
    st.sampled_from(ALL),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["payload", "data", "error", "id", "result"]), VALUES)),
)
def test_nothing_in_a_frame_raises(name: str, changes: list[tuple[int, str, Any]]) -> None:
    frames = [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_bytes().splitlines()]
    for place, key, value in changes:
        frame = frames[place % len(frames)]
        target = (
            frame
            if key in {"payload", "error", "id"} or not isinstance(frame.get("payload"), dict)
            else frame["payload"]
        )
        target[key] = value
    outputs_of(new_parser(), *frames)


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_garbage_is_a_log(data: bytes) -> None:
    parser = new_parser()
    outputs = list(parser.line("stdout", Line(data.replace(b"\n", b""), 0, complete=True)))
    assert all(isinstance(item, pb.AgentEvent) for item in outputs)
