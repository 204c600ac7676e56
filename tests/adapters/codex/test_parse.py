"""Codex's output, understood: recordings, any split, and unexpected frames."""

import json
from typing import Any

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.parse import AppServerParser
from dragoman.sdk import Ask, CloseInput, Line, Output, SessionPlan, Withdraw, Write
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.codex.replay import NAMES, frame, job, of_kind, parser, recorded, replay, request
from tests.adapters.jobs import OLD_ID
from tests.sdk.feeding import feed, pieces_of

SLOW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
FRAMES = [json.loads(line) for name in NAMES for line in recorded(name).splitlines()]
INITIALIZED = frame(id=1, result={})


def written(outputs: list[Output]) -> list[Any]:
    return [json.loads(output.data) for output in outputs if isinstance(output, Write)]


def words(outputs: list[Output], kind: str = "text") -> str:
    """Return what a reader shows of a kind in the end."""
    items: dict[str, str] = {}
    for piece in of_kind(outputs, kind):
        before = "" if piece.WhichOneof("content") == "whole" else items.get(piece.item_id, "")
        items[piece.item_id] = before + piece.whole + piece.delta
    return "".join(items.values())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_was_recorded_is_unknown(name: str) -> None:
    outputs, _ = replay(name)
    assert of_kind(outputs, "log") == []


def test_a_missing_bubblewrap_is_reported_once() -> None:
    reader = parser()
    words = "Codex could not find bubblewrap on PATH. Install bubblewrap with your OS package manager."
    line = f"\x1b[2m2026-11-22T23:05:15Z\x1b[0m \x1b[31mERROR\x1b[0m codex_app_server: {words}".encode()
    outputs = list(reader.line("stderr", Line(line, 0, True)))
    outputs += reader.line("stdout", frame(method="configWarning", params={"summary": words}))
    assert of_kind(outputs, "log") == []
    assert len(of_kind(outputs, "notice")) == 1


@SLOW
@given(st.data())
def test_any_split_of_a_recording_gives_the_same(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    whole = recorded(name)
    reader = parser()
    expected, other = replay(name)
    events = [output for output in feed(reader, pieces_of(whole, data)) if isinstance(output, pb.AgentEvent)]
    assert events == [output for output in expected if isinstance(output, pb.AgentEvent)]
    assert reader.report == other.report


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@SLOW
@given(st.data())
def test_no_value_anywhere_makes_it_raise(data: st.DataObject) -> None:
    """A frame with one of its values replaced by anything."""
    document = json.loads(json.dumps(data.draw(st.sampled_from(FRAMES))))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    reader = parser()
    list(reader.line("stdout", INITIALIZED))
    list(reader.line("stdout", Line(json.dumps(document).encode(), 0, True)))
    list(reader.finish())


@SLOW
@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    reader = parser()
    for stream in ("stdout", "stderr"):
        list(reader.line(stream, Line(data, 0, True)))


def test_a_deep_nest_is_a_log_line() -> None:
    deep = b'{"method":"turn/completed","params":{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}}"
    outputs = list(parser().line("stdout", Line(deep, 0, True)))
    assert len(outputs) == 1
    assert of_kind(outputs, "log")


class TestConversation:
    def test_the_way_to_a_turn(self) -> None:
        reader = AppServerParser(job(request(model="m-1")), adapter().spec.version)
        first = written(list(reader.line("stdout", INITIALIZED)))
        assert first[0] == {"method": "initialized"}
        assert first[1]["method"] == "thread/start"
        assert first[1]["params"]["model"] == "m-1"
        thread = {"thread": {"id": OLD_ID, "cliVersion": "0.169.0"}, "model": "m-1", "approvalPolicy": "on-request"}
        opened = list(reader.line("stdout", frame(id=2, result=thread)))
        (turn,) = written(opened)
        assert turn["params"] == {"threadId": OLD_ID, "input": [{"type": "text", "text": "Do it."}]}
        (session,) = of_kind(opened, "session")
        assert (session.native_id, session.model, session.mode) == (OLD_ID, "m-1", "on-request")

    @pytest.mark.parametrize(
        ("disposition", "method"),
        [(pb.SESSION_DISPOSITION_RESUME, "thread/resume"), (pb.SESSION_DISPOSITION_FORK, "thread/fork")],
    )
    def test_the_way_back(self, disposition: pb.SessionDisposition.ValueType, method: str) -> None:
        reader = AppServerParser(job(session=SessionPlan(disposition, OLD_ID)), adapter().spec.version)
        _, asked = written(list(reader.line("stdout", INITIALIZED)))
        assert (asked["method"], asked["params"]["threadId"]) == (method, OLD_ID)
        message = "no rollout found for thread id " + OLD_ID
        list(reader.line("stdout", frame(id=2, error={"code": -32600, "message": message})))
        assert reader.report.terminal is not None
        assert reader.report.terminal.failure is not None
        assert reader.report.terminal.failure.kind == pb.FAILURE_KIND_SESSION_LOST

    def test_a_refused_start_is_a_failure(self) -> None:
        reader = AppServerParser(job(), adapter().spec.version)
        list(reader.line("stdout", INITIALIZED))
        outputs = list(reader.line("stdout", frame(id=2, error={"code": -32600, "message": "no such sandbox"})))
        assert isinstance(outputs[-1], CloseInput)
        assert reader.report.terminal is not None
        assert reader.report.terminal.failure is not None
        assert reader.report.terminal.failure.kind == pb.FAILURE_KIND_INVALID_CONFIG
        assert reader.report.terminal.failure.code == "codex_refused"
        assert "no such sandbox" in reader.report.terminal.failure.message

    def test_a_thread_without_an_id_is_a_failure(self) -> None:
        reader = AppServerParser(job(), adapter().spec.version)
        list(reader.line("stdout", INITIALIZED))
        assert [type(output) for output in reader.line("stdout", frame(id=2, result={}))] == [CloseInput]
        assert reader.report.terminal is not None
        assert reader.report.terminal.failure is not None
        assert reader.report.terminal.failure.code == "codex_no_thread_id"

    def test_instructions_that_are_refused_are_a_notice_and_the_turn_begins(self) -> None:
        run_request = request(
            system_prompt="New.", session=api.SessionSelector(handle=pb.SessionHandle(native_id=OLD_ID))
        )
        reader = AppServerParser(
            job(run_request, SessionPlan(pb.SESSION_DISPOSITION_RESUME, OLD_ID)), adapter().spec.version
        )
        list(reader.line("stdout", INITIALIZED))
        list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))
        outputs = list(reader.line("stdout", frame(id=3, error={"code": -32600, "message": "too long"})))
        (notice,) = of_kind(outputs, "notice")
        assert (notice.code, notice.severity) == ("codex_instructions_refused", pb.SEVERITY_WARNING)
        assert "too long" in notice.message
        assert [message["method"] for message in written(outputs)] == ["turn/start"]

    @pytest.mark.parametrize(
        ("method", "params", "code", "words"),
        [
            ("warning", {"message": "It is slow."}, "codex_warning", "It is slow."),
            (
                "model/rerouted",
                {"fromModel": "m-1", "toModel": "m-2"},
                "codex_model_rerouted",
                "m-1 was replaced by m-2.",
            ),
            ("model/rerouted", {}, "codex_model_rerouted", "The model was replaced by another."),
            (
                "mcpServer/startupStatus/updated",
                {"name": "far", "status": "failed"},
                "codex_mcp_server_failed",
                "The MCP server far did not start: no reason was given.",
            ),
        ],
    )
    def test_what_it_reports_beside_its_work_is_a_notice(
        self, method: str, params: dict[str, Any], code: str, words: str
    ) -> None:
        (notice,) = of_kind(list(parser().line("stdout", frame(method=method, params=params))), "notice")
        assert (notice.code, notice.severity, notice.message) == (code, pb.SEVERITY_WARNING, words)

    def test_an_unknown_request_is_refused(self) -> None:
        (answer,) = written(list(parser().line("stdout", frame(id=7, method="attestation/generate", params={}))))
        assert (answer["id"], answer["error"]["code"]) == (7, -32601)

    def test_a_stop_before_the_turn_is_known_waits_for_it(self) -> None:
        reader = AppServerParser(job(), adapter().spec.version)
        list(reader.line("stdout", INITIALIZED))
        list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))
        assert list(reader.interrupt()) == []
        (stop,) = written(list(reader.line("stdout", frame(id=3, result={"turn": {"id": "t-1"}}))))
        assert (stop["method"], stop["params"]) == ("turn/interrupt", {"threadId": OLD_ID, "turnId": "t-1"})

    def test_a_turn_may_begin_before_it_is_confirmed(self) -> None:
        reader = AppServerParser(job(), adapter().spec.version)
        list(reader.line("stdout", INITIALIZED))
        list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))
        params = {"threadId": OLD_ID, "turn": {"id": "t-1"}}
        assert list(reader.line("stdout", frame(method="turn/started", params=params))) == []
        (stop,) = written(list(reader.interrupt()))
        assert stop["params"]["turnId"] == "t-1"

    def test_a_stop_before_there_is_a_thread_ends_it(self) -> None:
        reader = AppServerParser(job(), adapter().spec.version)
        assert [type(output) for output in reader.interrupt()] == [CloseInput]
        list(reader.line("stdout", INITIALIZED))
        assert list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))[-1:] != []
        assert "turn/start" not in str(written(list(reader.line("stdout", frame(id=2, result={})))))


class TestRecordings:
    def test_text(self) -> None:
        outputs, reader = replay("text")
        assert words(outputs) == reader.report.summary == "Hello from the scripted model."
        assert len(of_kind(outputs, "text")) > 2
        assert not any(piece.whole for piece in of_kind(outputs, "text")), "it was emitted in pieces already"
        usage = reader.report.usage
        assert usage is not None
        assert (usage.tokens.input, usage.tokens.cache_read, usage.tokens.output) == (400, 800, 42)
        assert reader.report.terminal is not None
        assert reader.report.terminal.succeeded

    def test_thinking(self) -> None:
        outputs, reader = replay("thinking")
        assert words(outputs, "thinking") == "The user wants a short answer."
        assert reader.report.usage is not None
        assert reader.report.usage.tokens.reasoning == 7

    def test_a_patch(self) -> None:
        outputs, _ = replay("write")
        (asked,) = [output for output in outputs if isinstance(output, Ask)]
        assert list(asked.request.subject.paths) == ["/workspace/notes.txt"]
        assert asked.request.title == "Edit /workspace/notes.txt"
        (change,) = of_kind(outputs, "file_change")
        assert change.provenance == pb.PROVENANCE_NATIVE
        assert change.diff == (
            "--- /dev/null\n+++ /workspace/notes.txt\n@@ -0,0 +1,1 @@\n+hello from the scripted model\n"
        )

    def test_a_patch_that_is_declined(self) -> None:
        outputs, _ = replay("write_declined")
        assert of_kind(outputs, "file_change") == []
        assert [result.status for result in of_kind(outputs, "tool_result")] == [pb.TOOL_STATUS_DENIED]

    def test_a_command_that_wants_out_of_the_sandbox(self) -> None:
        outputs, _ = replay("escalate")
        (asked,) = [output for output in outputs if isinstance(output, Ask)]
        subject = asked.request.subject
        assert (subject.command, subject.reason, subject.tool_name) == ("touch made.txt", "May I?", "exec_command")
        calls = of_kind(outputs, "tool_call")
        assert [call.status for call in calls] == [pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING]
        assert [call.id for call in calls] == [subject.tool_call_id] * 2
        assert (calls[-1].title, json.loads(calls[-1].input_json)["cmd"]) == ("touch made.txt", "touch made.txt")

    def test_a_command_that_fails(self) -> None:
        (result,) = of_kind(replay("failing_tool")[0], "tool_result")
        assert (result.status, result.exit_code, result.is_error) == (pb.TOOL_STATUS_FAILED, 1, True)

    def test_a_try_that_broke_off_is_taken_back(self) -> None:
        outputs, reader = replay("cut_once")
        assert words(outputs) == reader.report.summary == "Recovered from the cut."
        retrying, running = of_kind(outputs, "state")
        assert (retrying.phase, retrying.retry_attempt, retrying.max_retries) == (pb.RUN_PHASE_RETRYING, 1, 1)
        assert retrying.retry_cause == pb.FAILURE_KIND_NETWORK
        assert running.phase == pb.RUN_PHASE_RUNNING

    def test_an_interruption(self) -> None:
        _, reader = replay("interrupted")
        assert reader.report.terminal is not None
        assert reader.report.terminal.interrupted
        assert not reader.report.terminal.succeeded
        assert reader.report.terminal.failure is not None
        assert reader.report.terminal.failure.code == "codex_interrupted"

    def test_a_question(self) -> None:
        outputs, _ = replay("question")
        (asked,) = [output for output in outputs if isinstance(output, Ask)]
        assert asked.request.kind == pb.INPUT_KIND_CHOICE
        assert [option.label for option in asked.request.options] == ["Red", "Blue"]

    def test_a_tool_server(self) -> None:
        outputs, _ = replay("tool_server")
        (asked,) = [output for output in outputs if isinstance(output, Ask)]
        (result,) = of_kind(outputs, "tool_result")
        assert asked.request.subject.tool_call_id == result.tool_call_id
        assert result.content == "The first word has 6 letters."

    def test_a_nested_agent_is_distinguished(self) -> None:
        outputs, reader = replay("nested")
        agents = of_kind(outputs, "subagent")
        assert agents[0].status == pb.SUBAGENT_STATUS_STARTED
        nested = [out for out in outputs if isinstance(out, pb.AgentEvent) and out.HasField("lineage")]
        assert all(event.lineage.subagent_id == agents[0].id for event in nested)
        assert reader.report.summary == 'Done: {"task_name":"/root/helper"}', (
            "another agent's words are not its answer"
        )


def test_a_question_that_codex_answers_itself_is_taken_back() -> None:
    reader = parser()
    params = {"threadId": "", "itemId": "c-1", "command": "ls"}
    (ask,) = reader.line("stdout", frame(id=4, method="item/commandExecution/requestApproval", params=params))
    assert isinstance(ask, Ask)
    resolved = frame(method="serverRequest/resolved", params={"requestId": 4})
    assert list(reader.line("stdout", resolved)) == [Withdraw(ask.request.id)]
    assert list(reader.line("stdout", resolved)) == []


def test_what_a_nested_agent_says_and_asks_is_marked_as_its_own() -> None:
    reader = AppServerParser(job(), adapter().spec.version)
    list(reader.line("stdout", INITIALIZED))
    list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))
    item = {"type": "subAgentActivity", "id": "c-1", "kind": "started", "agentThreadId": "child", "agentPath": "/a"}
    list(reader.line("stdout", frame(method="item/completed", params={"threadId": OLD_ID, "item": item})))
    delta = {"threadId": "child", "itemId": "m-1", "delta": "Hello."}
    (event,) = reader.line("stdout", frame(method="item/agentMessage/delta", params=delta))
    assert isinstance(event, pb.AgentEvent)
    assert (event.lineage.subagent_id, event.lineage.parent_tool_call_id) == ("child", "c-1")
    params = {"threadId": "child", "itemId": "c-2", "command": "ls"}
    (ask,) = reader.line("stdout", frame(id=9, method="item/commandExecution/requestApproval", params=params))
    assert isinstance(ask, Ask)
    assert ask.lineage is not None
    assert ask.lineage.subagent_id == "child"
    done = {"threadId": "child", "turn": {"status": "completed"}}
    (ended,) = of_kind(reader.line("stdout", frame(method="turn/completed", params=done)), "subagent")
    assert (ended.id, ended.status) == ("child", pb.SUBAGENT_STATUS_COMPLETED)
    assert reader.report.terminal is None, "the run goes on"


def test_usage_of_an_earlier_turn_is_not_this_runs() -> None:
    reader = AppServerParser(job(session=SessionPlan(pb.SESSION_DISPOSITION_RESUME, OLD_ID)), adapter().spec.version)
    list(reader.line("stdout", INITIALIZED))
    list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))
    list(reader.line("stdout", frame(id=3, result={"turn": {"id": "now"}})))
    for turn, total in (("before", 100), ("now", 130)):
        usage = {"total": {"inputTokens": total, "outputTokens": 9}, "last": {"inputTokens": 30, "outputTokens": 4}}
        params = {"threadId": OLD_ID, "turnId": turn, "tokenUsage": usage}
        list(reader.line("stdout", frame(method="thread/tokenUsage/updated", params=params)))
    done = {"threadId": OLD_ID, "turn": {"id": "now", "status": "completed"}}
    list(reader.line("stdout", frame(method="turn/completed", params=done)))
    assert reader.report.usage is not None
    assert (reader.report.usage.tokens.input, reader.report.usage.tokens.output) == (30, 4)


def test_a_call_that_is_cut_off_is_cancelled() -> None:
    reader = parser()
    item = {"id": "item_1", "type": "commandExecution", "command": "/bin/bash -lc 'sleep 9'", "status": "inProgress"}
    list(reader.line("stdout", frame(method="item/started", params={"item": item})))
    assert [result.status for result in of_kind(reader.finish(), "tool_result")] == [pb.TOOL_STATUS_CANCELLED]
