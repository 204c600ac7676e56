"""Copilot's messages, understood: recordings of the real one, what it might say, and what no program should."""

import json
from typing import Any

import pytest
from dragoman.sdk import Answer, Ask, CloseInput, Line, Write
from dragoman.v1 import event_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.copilot.replay import (
    FORKED,
    NAMES,
    RESUMED,
    event,
    feed,
    job,
    message_in,
    messages,
    of_kind,
    parser,
    shown,
)
from tests.adapters.jobs import NEW_ID, OLD_ID

ALLOW = Answer(allowed=True)
DENY = Answer(allowed=False, message="Not here.")


def test_it_leads_the_conversation() -> None:
    tested = parser(job(prompt="Say hello."))
    outputs = feed(tested, messages("text"))
    created, sent = (message_in(output.data) for output in outputs if isinstance(output, Write))
    assert (created["method"], created["params"]["sessionId"]) == ("session.create", NEW_ID)
    assert created["params"]["requestPermission"] is True
    session_id = tested.report.session_id
    assert sent["method"] == "session.send"
    assert sent["params"] == {"sessionId": session_id, "prompt": "Say hello."}
    assert tested.report.terminal is not None
    assert tested.report.terminal.succeeded


def test_a_text() -> None:
    tested = parser()
    outputs = feed(tested, messages("text"))
    assert shown(outputs) == tested.report.summary == "Hello from the scripted model."
    assert of_kind(outputs, "log") == []
    assert of_kind(outputs, "notice") == []
    session = of_kind(outputs, "session")[0]
    assert (session.native_id, session.agent_version) == (tested.report.session_id, "1.0.102")
    assert "github-pr-media" in session.skills
    assert (tested.report.model, tested.report.provider) == ("claude-sonnet-4-5", "anthropic")


@pytest.mark.parametrize(("data", "item_id"), [({"reasoningId": "r"}, "r"), ({}, "reasoning")])
def test_a_thought_in_pieces_is_not_repeated(data: dict[str, Any], item_id: str) -> None:
    piece, whole = {**data, "deltaContent": "Hm."}, {**data, "content": "Hm."}
    lines = [event("assistant.reasoning_delta", piece), event("assistant.reasoning", whole)]
    thoughts = of_kind(feed(parser(), lines), "thinking")
    assert [(thought.item_id, thought.delta, thought.whole) for thought in thoughts] == [
        (item_id, "Hm.", ""),
        (item_id, "", ""),
    ]


def test_cached_tokens_are_not_counted_twice() -> None:
    tested = parser()
    (call,) = of_kind(feed(tested, messages("text")), "usage")
    assert (call.tokens.input, call.tokens.cache_read, call.tokens.output) == (400, 800, 42)
    assert not call.tokens.HasField("reasoning")
    assert call.context_size == 128000
    assert tested.report.usage is not None
    assert tested.report.usage.scope == pb.USAGE_SCOPE_RUN
    assert tested.report.usage.tokens.input == 400


def test_a_session_is_resumed() -> None:
    tested = parser(job(session=RESUMED))
    outputs = feed(tested, messages("text")[:1])
    (resumed,) = (message_in(output.data) for output in outputs if isinstance(output, Write))
    assert (resumed["method"], resumed["params"]["sessionId"]) == ("session.resume", OLD_ID)


def test_a_session_is_copied_first_and_the_copy_resumed() -> None:
    tested = parser(job(session=FORKED))
    forked = json.dumps({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "copy"}}).encode()
    outputs = feed(tested, [messages("text")[0], forked])
    first, second = (message_in(output.data) for output in outputs if isinstance(output, Write))
    assert (first["method"], first["params"]) == ("sessions.fork", {"sessionId": OLD_ID})
    assert (second["method"], second["params"]["sessionId"]) == ("session.resume", "copy")


def test_an_unknown_session() -> None:
    tested = parser(job(session=RESUMED))
    feed(tested, messages("unknown_session"))
    terminal = tested.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_SESSION_LOST


def test_nothing_is_lost_in_a_session_that_was_never_there() -> None:
    tested = parser()
    feed(tested, messages("unknown_session"))
    terminal = tested.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind != pb.FAILURE_KIND_SESSION_LOST


def test_a_command_that_fails() -> None:
    outputs = feed(parser(), messages("command_fails"))
    (result,) = of_kind(outputs, "tool_result")
    assert (result.status, result.exit_code, result.is_error) == (pb.TOOL_STATUS_FAILED, 3, False)
    assert result.content == "hi"
    assert [output.text for output in of_kind(outputs, "tool_output")] == ["hi\n"]
    calls = of_kind(outputs, "tool_call")
    assert [call.status for call in calls] == [pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING]
    assert (calls[1].kind, calls[1].title) == (pb.TOOL_KIND_EXECUTE, "bash echo hi; exit 3")


def test_a_permission_is_asked_and_answered() -> None:
    outputs = feed(parser(), messages("write_denied"))
    (ask,) = (output for output in outputs if isinstance(output, Ask))
    assert ask.request.subject.tool_kind == pb.TOOL_KIND_EDIT
    assert (ask.request.subject.tool_name, list(ask.request.subject.paths)) == ("create", ["/workspace/a.txt"])
    assert "+hello" in ask.request.description
    answered = message_in(ask.encode(DENY))
    assert answered["method"] == "session.permissions.handlePendingPermissionRequest"
    assert answered["params"]["requestId"] == ask.request.id
    assert answered["params"]["result"] == {"kind": "reject", "feedback": "Not here."}
    assert message_in(ask.encode(ALLOW))["params"]["result"] == {"kind": "approve-once"}
    always = Answer(allowed=True, option=ask.request.options[1])
    approved = {"kind": "approve-for-session", "approval": {"kind": "write"}}
    assert message_in(ask.encode(always))["params"]["result"] == approved
    (result,) = of_kind(outputs, "tool_result")
    assert (result.status, result.is_error) == (pb.TOOL_STATUS_DENIED, True)
    assert "Not in this workspace." in result.content


def test_a_command_is_about_no_path_and_is_not_approved_for_good() -> None:
    (ask,) = (output for output in feed(parser(), messages("command_fails")) if isinstance(output, Ask))
    assert ask.request.subject.command == "echo hi; exit 3"
    assert list(ask.request.subject.paths) == []
    assert [option.id for option in ask.request.options] == ["allow_once", "reject_once"]


def read_request(number: int, prompt: str, path: str = "/outside/a.txt") -> bytes:
    request = {"kind": "read", "toolCallId": "c1", "path": path, "intention": "Read a file"}
    data = {"requestId": f"q{number}", "permissionRequest": request, "promptRequest": {"kind": prompt}}
    return event("permission.requested", data)


def test_what_was_allowed_is_not_asked_again_and_what_was_denied_is() -> None:
    tested = parser()
    (first,) = feed(tested, [read_request(1, "path")])
    assert isinstance(first, Ask)
    first.encode(DENY)
    (again,) = feed(tested, [read_request(2, "path")])
    assert isinstance(again, Ask)
    again.encode(ALLOW)
    (second,) = feed(tested, [read_request(3, "read")])
    assert isinstance(second, Write)
    assert message_in(second.data)["params"]["result"] == {"kind": "approve-once"}


@pytest.mark.parametrize(
    ("rules", "asks"),
    [
        ([], False),
        ([pb.PermissionRule(decision=pb.PERMISSION_DECISION_ALLOW, tool_kind=pb.TOOL_KIND_EDIT)], False),
        ([pb.PermissionRule(decision=pb.PERMISSION_DECISION_DENY, path_glob="*/.env")], True),
        ([pb.PermissionRule(decision=pb.PERMISSION_DECISION_ASK, tool_kind=pb.TOOL_KIND_READ)], True),
    ],
)
def test_the_workspace_may_be_read_unless_a_rule_wants_otherwise(rules: Any, asks: bool) -> None:
    tested = parser(job(permissions=pb.Permissions(rules=rules)))
    (output,) = feed(tested, [read_request(1, "read", "/workspace/.env")])
    assert isinstance(output, Ask) == asks


def test_what_a_hook_has_decided_is_not_asked() -> None:
    data = {"requestId": "q", "resolvedByHook": True, "permissionRequest": {"kind": "write"}}
    assert feed(parser(), [event("permission.requested", data)]) == []


def test_a_changed_file() -> None:
    (change,) = of_kind(feed(parser(), messages("edit")), "file_change")
    assert (change.path, change.operation) == ("/workspace/a.txt", pb.FILE_OPERATION_MODIFY)
    assert "-hello\n+bye" in change.diff
    assert change.provenance == pb.PROVENANCE_NATIVE


def test_a_retry_and_its_end_are_reported() -> None:
    outputs = feed(parser(), messages("rate_limited_once"))
    retrying, running = of_kind(outputs, "state")
    assert (retrying.phase, running.phase) == (pb.RUN_PHASE_RETRYING, pb.RUN_PHASE_RUNNING)
    assert (retrying.retry_attempt, retrying.retry_cause) == (1, pb.FAILURE_KIND_RATE_LIMITED)
    assert not retrying.HasField("max_retries")


def test_the_output_of_a_broken_call_is_withdrawn() -> None:
    tested = parser()
    outputs = feed(tested, messages("cut_stream"))
    terminal = tested.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_NETWORK
    assert len([text for text in of_kind(outputs, "text") if text.WhichOneof("content") == "whole"]) == 5
    assert [state.retry_attempt for state in of_kind(outputs, "state") if state.retry_attempt] == [1, 2, 3, 4, 5]


def test_a_wrong_key() -> None:
    tested = parser()
    outputs = feed(tested, messages("unauthorized"))
    terminal = tested.report.terminal
    assert terminal is not None
    failure = terminal.failure
    assert failure is not None
    assert (failure.kind, failure.http_status) == (pb.FAILURE_KIND_AUTH_REQUIRED, 401)
    assert "copilot login" in failure.message
    assert [notice.code for notice in of_kind(outputs, "notice")] == ["copilot_authentication"]


def test_a_withheld_answer_is_no_success() -> None:
    tested = parser()
    feed(tested, messages("refusal"))
    terminal = tested.report.terminal
    assert terminal is not None
    assert terminal.failure is not None
    assert terminal.failure.kind == pb.FAILURE_KIND_MODEL_REFUSED


def test_an_error_that_was_overcome_is_none() -> None:
    tested = parser()
    error = event("session.error", {"errorType": "query", "message": "Something broke"})
    usage = event("assistant.usage", {"model": "m", "inputTokens": 1})
    feed(tested, [error, usage, event("session.idle", {})])
    assert tested.report.terminal is not None
    assert tested.report.terminal.succeeded


def test_an_interruption_ends_calls_and_the_run() -> None:
    tested = parser()
    outputs = feed(tested, messages("aborted_in_tool"))
    assert [result.status for result in of_kind(outputs, "tool_result")] == [pb.TOOL_STATUS_CANCELLED]
    assert tested.report.terminal is not None
    assert tested.report.terminal.interrupted
    assert tested.report.terminal.failure is not None
    assert tested.report.terminal.failure.code == "copilot_interrupted"


def test_it_is_interrupted_once_it_works_and_left_alone_before() -> None:
    tested = parser()
    assert list(tested.interrupt()) == [CloseInput()]
    assert tested.report.terminal is not None
    assert tested.report.terminal.interrupted
    assert feed(tested, messages("text")[:3]) == []
    working = parser()
    feed(working, messages("text")[:4])
    (abort,) = working.interrupt()
    assert isinstance(abort, Write)
    assert message_in(abort.data)["method"] == "session.abort"


def test_a_nested_agent_is_distinguished() -> None:
    tested = parser()
    outputs = feed(tested, messages("nested_agent"))
    started, ended = of_kind(outputs, "subagent")
    assert (started.status, ended.status) == (pb.SUBAGENT_STATUS_STARTED, pb.SUBAGENT_STATUS_COMPLETED)
    nested = [item for item in outputs if isinstance(item, pb.AgentEvent) and item.HasField("lineage")]
    assert {item.lineage.subagent_id for item in nested} == {started.id}
    assert {item.lineage.parent_tool_call_id for item in nested} == {started.tool_call_id}
    assert tested.report.summary == shown(outputs) == "Done: Hello from the scripted model."
    assert tested.report.usage is not None
    assert tested.report.usage.tokens.output == 3 * 42


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (
            "session.warning",
            {"warningType": "policy", "message": "Look."},
            pb.AgentEvent(notice=pb.Notice(code="copilot_policy", message="Look.", severity=pb.SEVERITY_WARNING)),
        ),
        (
            "session.info",
            {"infoType": "mcp", "message": "Hm."},
            pb.AgentEvent(notice=pb.Notice(code="copilot_mcp", message="Hm.", severity=pb.SEVERITY_INFO)),
        ),
        (
            "session.info",
            {},
            pb.AgentEvent(
                notice=pb.Notice(code="copilot_info", message="Copilot gives no details.", severity=pb.SEVERITY_INFO)
            ),
        ),
        ("session.compaction_start", {"trigger": "auto"}, pb.AgentEvent(compaction=pb.Compaction(trigger="auto"))),
        (
            "session.compaction_complete",
            {"trigger": "auto", "summaryContent": "All.", "preCompactionTokens": 9, "postCompactionTokens": 2},
            pb.AgentEvent(
                compaction=pb.Compaction(
                    trigger="auto", summary="All.", finished=True, tokens_before=9, tokens_after=2
                )
            ),
        ),
        (
            "subagent.failed",
            {"toolCallId": "c", "agentName": "explore", "agentDescription": "Looks.", "error": "Broke."},
            pb.AgentEvent(
                subagent=pb.Subagent(
                    id="c",
                    type="explore",
                    status=pb.SUBAGENT_STATUS_FAILED,
                    description="Broke.",
                    tool_call_id="c",
                )
            ),
        ),
        *(
            ("session.info", {"infoType": kind}, None)
            for kind in ("model_retry", "file_created", "fork", "cancellation")
        ),
    ],
)
def test_an_event_that_no_recording_has(kind: str, data: dict[str, Any], expected: pb.AgentEvent | None) -> None:
    events = [output for output in feed(parser(), [event(kind, data)]) if isinstance(output, pb.AgentEvent)]
    assert events == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "agent.interrupted",
            "assistant.idle",
            "assistant.intent",
            "assistant.streaming_delta",
            "assistant.turn_end",
        ),
        *("capabilities.changed", "commands.changed", "human_response.recorded", "pending_messages.modified"),
        *("permission.completed", "prompt_cache_break", "sandbox.decision", "session.background_tasks_changed"),
        *("session.completion_receipt", "session.context_changed", "session.custom_agents_updated"),
        *("session.indexed_search", "session.managed_settings_resolved", "session.mcp_server_status_changed"),
        *("session.mode_changed", "session.mcp_server_tools_loaded", "session.model_change"),
        *("session.permissions_changed", "session.plan_changed", "session.quota_observation", "session.shutdown"),
        *("session.todos_changed", "session.tools_updated", "session.usage_checkpoint", "session.usage_record"),
        *("session.workspace_file_changed", "skill.context_delivered", "skill.context_delivered_ref"),
        *("skill.invoked", "skill.invoked_ref", "subagent.configured", "system.message", "system.notification"),
        *("tool.execution_partial_result", "tool.execution_progress", "user_input.completed"),
        *("user_input.requested", "model.call_start", "model.anything"),
    ],
)
def test_an_event_whose_content_others_have_says_nothing(kind: str) -> None:
    assert feed(parser(), [event(kind, {"message": "x"})]) == []


def test_a_question_of_the_model() -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": "userInput.request"}
    params = {"sessionId": "s", "question": "Which?", "choices": ["a", "b"], "allowFreeform": True}
    (ask,) = feed(parser(), [json.dumps({**request, "params": params}).encode()])
    assert isinstance(ask, Ask)
    assert (ask.request.kind, ask.request.title) == (pb.INPUT_KIND_CHOICE, "Which?")
    chosen = Answer(allowed=True, option=ask.request.options[1], chosen=(ask.request.options[1],))
    assert message_in(ask.encode(chosen)) == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"answer": "b", "wasFreeform": False},
    }
    written = message_in(ask.encode(Answer(allowed=True, text="neither")))
    assert written["result"] == {"answer": "neither", "wasFreeform": True}
    assert "No one" in message_in(ask.encode(Answer(allowed=False)))["result"]["answer"]


def test_an_unknown_request_is_refused() -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "sessionFs.readFile", "params": {}}).encode()
    (refused,) = feed(parser(), [line])
    assert isinstance(refused, Write)
    assert message_in(refused.data)["error"]["code"] == -32601


def test_what_is_not_known_is_a_log_line() -> None:
    lines = [event("session.brand_new", {}), b"Segmentation fault", b'{"jsonrpc":"2.0","method":"who.knows"}']
    assert len(of_kind(feed(parser(), lines), "log")) == 3


def test_another_version_gets_a_notice() -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"version": "9.9.9"}}).encode()
    (notice,) = of_kind(feed(parser(), [line]), "notice")
    assert notice.code == "version_untested"
    assert "9.9.9" in notice.message


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_cut_anywhere_raises_nothing_and_succeeds_only_whole(name: str) -> None:
    lines = messages(name)
    for end in range(len(lines)):
        tested = parser()
        feed(tested, lines[:end])
        assert tested.report.terminal is None or not tested.report.terminal.succeeded


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = sorted(parser()._handlers)


@given(st.lists(st.tuples(st.sampled_from(KINDS), values), max_size=6))
@settings(max_examples=100)
def test_no_data_raises(events: list[tuple[str, Any]]) -> None:
    tested = parser()
    feed(tested, messages("text")[:2])
    for kind, data in events:
        line = json.dumps({"method": "session.event", "params": {"event": {"type": kind, "data": data}}})
        list(tested.line("stdout", Line(line.encode(), 0, True)))


@given(st.sampled_from(NAMES), st.data())
@settings(max_examples=60)
def test_no_changed_field_raises(name: str, data: st.DataObject) -> None:
    lines = messages(name)
    place = data.draw(st.integers(0, len(lines) - 1))
    message = json.loads(lines[place])
    fields = message.get("params", {}).get("event", {}).get("data") or message.get("result") or {"x": 1}
    key = data.draw(st.sampled_from(sorted(fields)))
    fields[key] = data.draw(values)
    feed(parser(), [*lines[:place], json.dumps(message).encode(), *lines[place + 1 :]])


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_no_bytes_raise(data: bytes) -> None:
    feed(parser(), [data])


def test_nothing_is_interrupted_after_the_end() -> None:
    tested = parser()
    feed(tested, messages("text"))
    assert list(tested.interrupt()) == []


def test_a_session_is_reported_again_with_what_is_learnt() -> None:
    servers = {"servers": [{"name": "files", "status": "connected"}, {"name": "web", "status": "failed"}]}
    lines = [
        event("session.mcp_servers_loaded", servers),  # before it has an ID there is nothing to report
        event("session.start", {"sessionId": "s-1", "selectedModel": "m-1"}),
        event("session.skills_loaded", {"skills": [{"name": "review"}]}),
        event("session.skills_loaded", {"skills": [{"name": "review"}]}),
        event("session.mcp_servers_loaded", {"servers": [{"name": "web", "status": "connected"}]}),
        event("session.title_changed", {"title": "Tests"}),
    ]
    first, second, third = of_kind(feed(parser(), lines), "session")
    assert (first.native_id, first.model, list(first.skills)) == ("s-1", "m-1", ["review"])
    assert [(server.name, server.status) for server in first.mcp_servers] == [
        ("files", "connected"),
        ("web", "failed"),
    ]
    assert [(server.name, server.status) for server in second.mcp_servers] == [("web", "connected")]
    assert (second.title, third.title) == ("", "Tests")
