"""What the agent asks of its client: permissions, forms, files, commands."""

import json
from typing import Any

import pytest
from dragoman.sdk import Answer, Ask
from dragoman.sdk._output.parser import HostCall
from dragoman.sdk._process.host_services import AbsentError, HostCallError
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


def host_calls(talk: Talk) -> list[HostCall]:
    return [output for output in talk.outputs if isinstance(output, HostCall)]


def test_a_request_that_only_informs_is_acknowledged_and_not_executed() -> None:
    talk = Talk.ready(
        asks("fs/write_text_file", path=f"{CWD}/a.txt", content="x"),
        writes_files=True,
        acknowledged=("fs/write_text_file",),
    )
    assert talk.asked == []
    assert talk.written[-1]["result"] == {}


@pytest.mark.parametrize(
    "method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/output", "terminal/release"]
)
def test_what_was_not_offered_is_refused(method: str) -> None:
    talk = Talk.ready(asks(method, path="/project/a", content="", command="ls", terminalId="x"))
    assert talk.written[-1]["error"]["code"] == -32601
    assert not host_calls(talk)
    assert not talk.asked


def test_reading_is_free_unless_refused() -> None:
    (ask,) = Talk.ready(asks("fs/read_text_file", path="/project/a"), reads_files=True).asked
    assert ask.is_free
    assert ask.perform is not None
    assert ask.perform(Answer(False)) is None
    assert ask.perform(Answer(True)) is not None
    assert ask.request.subject == pb.InputSubject(
        tool_name="fs/read_text_file", tool_kind=pb.TOOL_KIND_READ, paths=["/project/a"]
    )


def test_writing_needs_permission() -> None:
    talk = Talk.ready(asks("fs/write_text_file", path="/project/a.txt", content="x"), writes_files=True)
    (ask,) = talk.asked
    assert not ask.is_free
    assert host_calls(talk) == []
    assert json.loads(ask.encode(Answer(False, message="No.")))["error"]["message"] == "No."


def test_what_was_just_allowed_is_not_asked_again_and_only_once() -> None:
    write = asks("fs/write_text_file", 8, path=f"{CWD}/a.txt", content="x")
    talk = Talk.ready(permission(), reads_files=True, writes_files=True)
    answer(talk.asked[0], "once")
    talk.hear(asks("fs/read_text_file", 9, path=f"{CWD}/a.txt"), write)
    assert len(host_calls(talk)) == 1
    talk.hear(write)
    assert len(host_calls(talk)) == 1
    assert [ask.request.subject.tool_name for ask in talk.asked[1:]] == ["fs/read_text_file", "fs/write_text_file"]


def test_what_was_refused_is_asked_again() -> None:
    talk = Talk.ready(permission(), writes_files=True)
    answer(talk.asked[0], "no")
    talk.hear(asks("fs/write_text_file", 8, path=f"{CWD}/a.txt", content="x"))
    assert host_calls(talk) == []


def test_what_is_allowed_always_is_not_asked_again() -> None:
    talk = Talk.ready(permission(), writes_files=True, terminals=True)
    answer(talk.asked[0], "ever")
    talk.hear(
        asks("fs/write_text_file", 8, path=f"{CWD}/b.txt", content="x"), asks("terminal/create", 9, command="ls")
    )
    assert len(host_calls(talk)) == 1
    assert [ask.request.subject.command for ask in talk.asked[1:]] == ["ls"], "it was about editing"


def test_a_command_is_asked_for_as_it_will_run() -> None:
    (ask,) = Talk.ready(asks("terminal/create", command="git", args=["commit", "-m", "a b"]), terminals=True).asked
    assert ask.request.subject.command == "git commit -m 'a b'"
    assert ask.request.subject.tool_kind == pb.TOOL_KIND_EXECUTE


@pytest.mark.parametrize(
    "wrong",
    [
        asks("fs/write_text_file", path="/project/a"),
        asks("fs/write_text_file", content="x"),
        asks("terminal/create", args=["x"]),
    ],
)
def test_a_request_that_says_too_little_is_refused(wrong: dict[str, Any]) -> None:
    talk = Talk.ready(wrong, writes_files=True, terminals=True)
    assert talk.written[-1]["error"]["code"] == -32602


def test_the_outcome_of_a_question_is_reported() -> None:
    (call,) = host_calls(Talk.ready(asks("terminal/output", terminalId="c"), terminals=True))
    assert json.loads(call.encode({"output": ""}))["result"] == {"output": ""}
    assert json.loads(call.encode(AbsentError("gone")))["error"]["code"] == -32002
    refused = json.loads(call.encode(HostCallError("outside")))["error"]
    assert (refused["code"], refused["message"]) == (-32603, "outside")


def test_a_terminal_that_is_part_of_a_call_is_its_output() -> None:
    talk = Talk.ready(
        update("tool_call", toolCallId="t", kind="execute", content=[{"type": "terminal", "terminalId": "c"}]),
        asks("terminal/output", terminalId="c"),
        asks("terminal/wait_for_exit", 8, terminalId="c"),
        terminals=True,
    )
    output, ended = host_calls(talk)
    output.encode({"output": "hi\n", "truncated": False})
    ended.encode({"exitCode": 3, "signal": None})
    talk.hear(update("tool_call_update", toolCallId="t", status="completed"))
    (result,) = talk.of("tool_result")
    assert (result.content, result.exit_code) == ("hi\n", 3)
