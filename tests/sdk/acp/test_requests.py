"""What the agent asks of its client: permissions and forms."""

import json
from typing import Any

import pytest
from dragoman.sdk import Answer, Ask
from dragoman.v1 import event_pb2 as pb

from tests.sdk.acp.talking import CWD, Talk, agent_text, asks, update

OPTIONS = [
    {"optionId": "ever", "kind": "allow_always", "name": "Always"},
    {"optionId": "once", "kind": "allow_once", "name": "Yes", "_meta": {"x": 1}},
    {"optionId": "no", "kind": "reject_once", "name": "No"},
    {"optionId": "never", "kind": "reject_always"},
    {"optionId": "once", "kind": "reject_once", "name": "Twice"},
    {"optionId": "odd", "kind": "sunset", "name": "Odd"},
]
CALL = {"toolCallId": "t", "title": "Write a.txt", "kind": "edit", "locations": [{"path": "a.txt"}]}


def permission(call: dict[str, Any] | None = None, request_id: Any = 7) -> dict[str, Any]:
    return asks("session/request_permission", request_id, toolCall=call or CALL, options=OPTIONS)


def answer(ask: Ask, option_id: str = "") -> dict[str, Any]:
    option = next((item for item in ask.request.options if item.id == option_id), None)
    allowed = option is not None and option.kind in {
        pb.INPUT_OPTION_KIND_ALLOW_ONCE,
        pb.INPUT_OPTION_KIND_ALLOW_ALWAYS,
    }
    message: dict[str, Any] = json.loads(ask.encode(Answer(allowed, option)))
    return message


def test_a_permission_is_asked_in_the_agents_own_options() -> None:
    (ask,) = Talk.ready(update("tool_call", **{**CALL, "name": "write_file"}), permission()).asked
    request = ask.request
    assert (request.id, request.kind, request.title) == ("acp-7", pb.INPUT_KIND_PERMISSION, "Write a.txt")
    assert [(item.id, item.kind, item.label) for item in request.options] == [
        ("ever", pb.INPUT_OPTION_KIND_ALLOW_ALWAYS, "Always"),
        ("once", pb.INPUT_OPTION_KIND_ALLOW_ONCE, "Yes"),
        ("no", pb.INPUT_OPTION_KIND_REJECT_ONCE, "No"),
        ("never", pb.INPUT_OPTION_KIND_REJECT_ALWAYS, "never"),
        ("odd", pb.INPUT_OPTION_KIND_UNSPECIFIED, "Odd"),
    ]
    assert json.loads(request.options[1].native_json) == OPTIONS[1]
    assert request.subject == pb.InputSubject(
        tool_call_id="t", tool_name="write_file", tool_kind=pb.TOOL_KIND_EDIT, paths=[f"{CWD}/a.txt"]
    )


def test_an_input_that_only_the_question_has_is_emitted_with_the_result() -> None:
    asked = permission({**CALL, "rawInput": {"path": "a.txt"}})
    talk = Talk.ready(
        update("tool_call", **CALL), asked, update("tool_call_update", toolCallId="t", status="completed")
    )
    assert [call.input_json for call in talk.of("tool_call")] == ["", '{"path":"a.txt"}']


@pytest.mark.parametrize("option", ["once", "ever", "no", "never", "odd"])
def test_the_chosen_option_is_sent(option: str) -> None:
    (ask,) = Talk.ready(permission()).asked
    assert answer(ask, option)["result"] == {"outcome": {"outcome": "selected", "optionId": option}}


def test_without_an_option_it_is_cancelled() -> None:
    (ask,) = Talk.ready(permission()).asked
    assert answer(ask) == {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}}


def test_a_command_is_what_a_permission_for_a_shell_is_about() -> None:
    raw = {"command": ["echo", "a b"], "path": "/elsewhere", "url": "https://words.example/x"}
    (ask,) = Talk.ready(permission({"toolCallId": "t", "kind": "execute", "rawInput": raw})).asked
    assert (ask.request.subject.command, list(ask.request.subject.paths)) == ("echo 'a b'", [])
    assert ask.request.subject.host == "words.example"


def test_all_paths_that_are_named_count() -> None:
    diff = {"type": "diff", "path": "/d", "newText": ""}
    talk = Talk.ready(
        update("tool_call", toolCallId="t", kind="edit", locations=[{"path": "/l"}], rawInput={"file_path": "r"}),
        permission({"toolCallId": "t", "kind": "other", "locations": [{"path": "/p"}], "content": [diff]}),
    )
    assert sorted(talk.asked[0].request.subject.paths) == ["/d", "/l", "/p", f"{CWD}/r"]
    assert talk.asked[0].request.subject.tool_kind == pb.TOOL_KIND_EDIT


def test_a_refused_call_is_denied_however_the_agent_calls_it() -> None:
    talk = Talk.ready(update("tool_call", **CALL), permission())
    answer(talk.asked[0], "no")
    talk.hear(update("tool_call_update", toolCallId="t", status="failed"))
    assert talk.of("tool_result")[0].status == pb.TOOL_STATUS_DENIED


def test_a_refused_call_ends_once_in_a_turn_that_was_stopped() -> None:
    talk = Talk.ready(update("tool_call", **CALL), update("tool_call", toolCallId="other"), permission())
    answer(talk.asked[0], "no")
    talk.outputs += talk.parser.interrupt()
    talk.hear({"id": 3, "result": {"stopReason": "cancelled"}})
    results = {result.tool_call_id: result.status for result in talk.of("tool_result")}
    assert results == {CALL["toolCallId"]: pb.TOOL_STATUS_DENIED, "other": pb.TOOL_STATUS_CANCELLED}
    assert len(talk.of("tool_result")) == 2


def test_a_call_that_only_its_permission_names_is_emitted() -> None:
    talk = Talk.ready(agent_text("I will."), permission())
    kinds = [event.WhichOneof("body") for event in talk.events]
    assert kinds[-3:] == ["text", "text", "tool_call"]
    assert talk.of("text")[-1].WhichOneof("content") is None
    answer(talk.asked[0], "no")
    talk.hear(agent_text("No?"), {"id": 3, "result": {"stopReason": "end_turn"}})
    assert [result.status for result in talk.of("tool_result")] == [pb.TOOL_STATUS_DENIED]
    assert talk.parser.report.summary == "No?"


def test_questions_with_one_id_in_two_forms_are_two() -> None:
    talk = Talk.ready(permission(request_id=1), permission(request_id="1"))
    assert [ask.request.id for ask in talk.asked] == ["acp-1", 'acp-"1"']
    assert [answer(ask, "no")["id"] for ask in talk.asked] == [1, "1"]


# Forms.


def test_a_form_is_put_to_the_caller() -> None:
    schema = {"type": "object", "properties": {"how": {"type": "string"}}}
    (ask,) = Talk.ready(asks("elicitation/create", mode="form", message="How?", requestedSchema=schema)).asked
    assert (ask.request.kind, ask.request.title) == (pb.INPUT_KIND_SCHEMA, "How?")
    assert json.loads(ask.request.schema_json) == schema
    filled = json.loads(ask.encode(Answer(True, value_json='{"how":"so"}')))
    assert filled["result"] == {"action": "accept", "content": {"how": "so"}}
    assert json.loads(ask.encode(Answer(False)))["result"] == {"action": "decline"}


def test_no_address_is_opened() -> None:
    talk = Talk.ready(asks("elicitation/create", mode="url", url="https://words.example/", elicitationId="e"))
    assert talk.asked == []
    assert talk.written[-1]["error"]["code"] == -32602


# Files and commands.


def test_a_request_that_only_informs_is_acknowledged() -> None:
    frame = asks("fs/write_text_file", path=f"{CWD}/a.txt", content="x")
    talk = Talk.ready(frame, acknowledged=("fs/write_text_file",))
    assert talk.asked == []
    assert talk.written[-1]["result"] == {}


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/output"])
def test_an_editors_files_and_terminals_are_not_offered(method: str) -> None:
    talk = Talk.ready(asks(method, path="/project/a", content="", command="ls", terminalId="x"))
    assert talk.written[-1]["error"]["code"] == -32601
    assert not talk.asked
