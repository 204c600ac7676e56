"""Codex's questions, and the answers in its own form."""

import json
from typing import Any

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.parse import AppServerParser
from dragoman.adapters.codex.plan import digest
from dragoman.sdk import Answer, Ask, SessionPlan
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.adapters.codex.replay import frame, job, of_kind, parser, request
from tests.adapters.jobs import OLD_ID

COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"


def asked(method: str, reader: Any = None, **params: Any) -> Ask:
    (ask,) = (reader or parser()).line("stdout", frame(id=5, method=method, params={"threadId": "", **params}))
    assert isinstance(ask, Ask)
    return ask


def response_to(ask: Ask, answer: Answer) -> Any:
    message = json.loads(ask.encode(answer))
    assert message["id"] == 5
    return message["result"]


def answers(ask: Ask) -> dict[str, Answer]:
    """Return the answer that each of its options makes."""
    return {
        option.id: Answer(allowed=option.kind != pb.INPUT_OPTION_KIND_REJECT_ONCE, option=option, chosen=(option,))
        for option in ask.request.options
    }


@pytest.mark.parametrize("method", [COMMAND, PATCH])
def test_decisions(method: str) -> None:
    ask = asked(method, itemId="c-1", command="/bin/bash -lc ls")
    decided = {name: response_to(ask, answer)["decision"] for name, answer in answers(ask).items()}
    assert decided == {"allow_once": "accept", "allow_always": "acceptForSession", "reject_once": "decline"}
    assert response_to(ask, Answer(allowed=False)) == {"decision": "decline"}


def test_what_a_command_is_about() -> None:
    subject = asked(COMMAND, itemId="c-1", command="/bin/bash -lc 'git push'", reason="May I?").request.subject
    assert (subject.tool_call_id, subject.command, subject.reason) == ("c-1", "git push", "May I?")
    assert (subject.tool_kind, subject.host) == (pb.TOOL_KIND_EXECUTE, "")
    network = {"host": "api.example", "protocol": "https"}
    subject = asked(COMMAND, itemId="c-1", command="curl", networkApprovalContext=network).request.subject
    assert (subject.tool_kind, subject.host) == (pb.TOOL_KIND_FETCH, "api.example")


def test_what_a_patch_is_about_is_known_from_its_item() -> None:
    reader = parser()
    changes = [
        {"path": "/a.txt", "kind": {"type": "update", "move_path": "/b.txt"}, "diff": "@@"},
        {"path": "/c.txt", "kind": {"type": "delete"}, "diff": ""},
    ]
    item = {"type": "fileChange", "id": "c-1", "changes": changes, "status": "inProgress"}
    list(reader.line("stdout", frame(method="item/started", params={"item": item})))
    request_ = asked(PATCH, reader, itemId="c-1", grantRoot="/wide").request
    assert list(request_.subject.paths) == ["/a.txt", "/b.txt", "/c.txt", "/wide"]
    assert request_.subject.tool_kind == pb.TOOL_KIND_EDIT


def test_the_message_of_a_refusal_is_in_the_result() -> None:
    reader = parser()
    item = {"type": "commandExecution", "id": "c-1", "command": "ls", "status": "declined"}
    response_to(asked(COMMAND, reader, itemId="c-1", command="ls"), Answer(allowed=False, message="Not now."))
    outputs = reader.line("stdout", frame(method="item/completed", params={"item": item}))
    (result,) = of_kind(outputs, "tool_result")
    assert (result.status, result.content) == (pb.TOOL_STATUS_DENIED, "Not now.")


def test_a_refused_tool_of_a_tool_server_is_denied_though_codex_calls_it_failed() -> None:
    reader = parser()
    call = {"type": "mcpToolCall", "id": "c-1", "server": "words", "tool": "say"}
    list(reader.line("stdout", frame(method="item/started", params={"item": {**call, "status": "inProgress"}})))
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_name": "say"}
    ask = asked("mcpServer/elicitation/request", reader, serverName="words", _meta=meta, message="Allow it?")
    response_to(ask, Answer(allowed=False, message="Not now."))
    failed = {**call, "status": "failed", "error": {"message": "user rejected MCP tool call"}}
    outputs = reader.line("stdout", frame(method="item/completed", params={"item": failed}))
    (result,) = of_kind(outputs, "tool_result")
    assert (result.status, result.content, result.is_error) == (pb.TOOL_STATUS_DENIED, "Not now.", True)


def test_more_rights() -> None:
    permissions = {"network": {"enabled": True}, "fileSystem": None}
    ask = asked("item/permissions/requestApproval", itemId="c-1", permissions=permissions, reason="To fetch.")
    results = {name: response_to(ask, answer) for name, answer in answers(ask).items()}
    assert results == {
        "allow_once": {"permissions": {"network": {"enabled": True}}, "scope": "turn"},
        "allow_always": {"permissions": {"network": {"enabled": True}}, "scope": "session"},
        "reject_once": {"permissions": {}, "scope": "turn"},
    }


def test_a_tool_of_a_tool_server() -> None:
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_name": "say"}
    ask = asked("mcpServer/elicitation/request", serverName="words", _meta=meta, message="Allow it?", mode="form")
    results = {name: response_to(ask, answer) for name, answer in answers(ask).items()}
    assert results["allow_once"] == {"action": "accept", "content": {}, "_meta": None}
    assert results["allow_always"] == {"action": "accept", "content": {}, "_meta": {"persist": "session"}}
    assert results["reject_once"]["action"] == "decline"
    assert ask.request.subject.tool_name == "mcp__words__say"


def test_a_form_of_a_tool_server() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    ask = asked("mcpServer/elicitation/request", serverName="words", message="Who?", requestedSchema=schema)
    assert (ask.request.kind, ask.request.title) == (pb.INPUT_KIND_SCHEMA, "Who?")
    assert json.loads(ask.request.schema_json) == schema
    response = response_to(ask, Answer(allowed=True, value_json='{"name": "Ada"}'))
    assert response == {"action": "accept", "content": {"name": "Ada"}, "_meta": None}
    assert response_to(ask, Answer(allowed=False))["action"] == "decline"
    assert response_to(ask, Answer(allowed=True, value_json="no json"))["action"] == "decline"


def test_questions_of_the_model() -> None:
    one = {"id": "colour", "question": "Which?", "options": [{"label": "Red", "description": ""}, {"label": "Blue"}]}
    ask = asked("item/tool/requestUserInput", itemId="c-1", questions=[one])
    assert (ask.request.kind, ask.request.title) == (pb.INPUT_KIND_CHOICE, "Which?")
    blue = ask.request.options[1]
    assert response_to(ask, Answer(allowed=True, option=blue, chosen=(blue,))) == {
        "answers": {"colour": {"answers": ["Blue"]}}
    }
    assert response_to(ask, Answer(allowed=True, text="Green")) == {"answers": {"colour": {"answers": ["Green"]}}}
    assert response_to(ask, Answer(allowed=False)) == {"answers": {}}
    two = [one, {"id": "size", "question": "How large?"}]
    ask = asked("item/tool/requestUserInput", itemId="c-1", questions=two)
    assert ask.request.kind == pb.INPUT_KIND_SCHEMA
    assert json.loads(ask.request.schema_json)["required"] == ["colour", "size"]
    response = response_to(ask, Answer(allowed=True, value_json='{"colour": "Red", "size": "9"}'))
    assert response == {"answers": {"colour": {"answers": ["Red"]}, "size": {"answers": ["9"]}}}


@pytest.mark.parametrize(
    ("before", "now", "method"),
    [
        ("Old.", "New.", "thread/inject_items"),
        ("", "New.", "thread/inject_items"),
        ("Same.", "Same.", "turn/start"),
        ("Old.", "", "turn/start"),
    ],
)
def test_instructions_of_an_old_thread(before: str, now: str, method: str) -> None:
    handle = pb.SessionHandle(native_id=OLD_ID)
    handle.params.update({"codexInstructions": digest(before)})
    run_request = request(system_prompt=now, session=api.SessionSelector(handle=handle))
    reader = AppServerParser(
        job(run_request, SessionPlan(pb.SESSION_DISPOSITION_RESUME, OLD_ID)), adapter().spec.version
    )
    list(reader.line("stdout", frame(id=1, result={})))
    outputs = list(reader.line("stdout", frame(id=2, result={"thread": {"id": OLD_ID}})))
    last = outputs[-1]
    assert hasattr(last, "data")
    assert json.loads(last.data)["method"] == method
    assert reader.report.session_params == {"codexInstructions": digest(now)}
