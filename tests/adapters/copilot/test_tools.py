"""What a permission of Copilot's is about, as rules see it."""

from typing import Any

import pytest
from dragoman.adapters.copilot.tools import Calls, decision, permission, subject, tool_result, tool_title
from dragoman.sdk import Answer
from dragoman.v1 import event_pb2 as pb


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://docs.example:8443/a", "docs.example"), ("docs.example/a", ""), ("http://[broken", ""), ("", "")],
)
def test_a_permission_to_fetch_names_the_host_if_there_is_one(url: str, host: str) -> None:
    assert subject({"kind": "url", "url": url}, {}, "web_fetch").host == host


def asked(**request: Any) -> pb.InputRequest:
    about = subject(request, {}, "bash")
    return permission("q", about, request, lambda _: b"").request


def test_a_permission_shows_what_it_is_about() -> None:
    prompt = {"kind": "path"}
    request = {"kind": "write", "toolCallId": "t", "fileName": "/a", "path": "/b", "toolName": "own"}
    about = subject(request, prompt, "")
    assert (about.tool_call_id, about.tool_name, list(about.paths)) == ("t", "own", ["/a"])
    assert about.reason == "It is outside of the directories of this session."
    question = permission(
        "q", about, {**request, "intention": "Write a", "warning": "w", "diff": " d\n"}, lambda _: b""
    )
    assert (question.request.id, question.request.kind) == ("q", pb.INPUT_KIND_PERMISSION)
    assert (question.request.title, question.request.subject) == ("Write a", about)
    assert question.request.description == f"{about.reason}\nw\nd"
    assert asked(toolTitle="Shell").title == "Shell"
    assert asked().title == "bash"


@pytest.mark.parametrize(("kind", "paths"), [("read", ["/a"]), ("write", ["/a"]), ("shell", [])])
def test_files_that_a_command_may_touch_are_guesses(kind: str, paths: list[str]) -> None:
    about = subject({"kind": kind, "path": "/a", "fullCommandText": "ls"}, {}, "t")
    assert (list(about.paths), about.command, about.reason) == (paths, "ls", "")


ONCE = [("allow_once", pb.INPUT_OPTION_KIND_ALLOW_ONCE, "Allow once")]
REJECT = [("reject_once", pb.INPUT_OPTION_KIND_REJECT_ONCE, "Reject")]


@pytest.mark.parametrize(
    ("request_", "approval"),
    [
        ({"kind": "write", "canOfferSessionApproval": True}, {"kind": "write"}),
        (
            {"kind": "shell", "canOfferSessionApproval": True, "commands": [{"identifier": "ls"}]},
            {"kind": "commands", "commandIdentifiers": ["ls"]},
        ),
        ({"kind": "shell", "canOfferSessionApproval": True}, {}),
        ({"kind": "write"}, {}),
    ],
)
def test_what_may_be_approved_for_the_session(request_: dict[str, Any], approval: dict[str, Any]) -> None:
    options = asked(**request_).options
    ever = [
        ("allow_always", pb.INPUT_OPTION_KIND_ALLOW_ALWAYS, f"Allow {approval['kind']} for this session")
        for _ in range(bool(approval))
    ]
    assert [(option.id, option.kind, option.label) for option in options] == [*ONCE, *ever, *REJECT]
    for option in options:
        answer = decision(Answer(option.id != "reject_once", option=option), request_)
        assert (
            answer
            == {
                "allow_once": {"kind": "approve-once"},
                "allow_always": {"kind": "approve-for-session", "approval": approval},
                "reject_once": {"kind": "reject", "feedback": "The user does not allow this."},
            }[option.id]
        )
    assert decision(Answer(False, message="Not here."), request_)["feedback"] == "Not here."


@pytest.mark.parametrize(
    ("data", "is_cancelled", "status", "content", "code"),
    [
        ({"success": True, "result": {"content": "a"}}, False, pb.TOOL_STATUS_COMPLETED, "a", None),
        ({"success": True, "shellExecution": {"exitCode": 0}}, False, pb.TOOL_STATUS_COMPLETED, "", 0),
        ({"success": True, "shellExecution": {"exitCode": 3}}, False, pb.TOOL_STATUS_FAILED, "", 3),
        ({"success": True, "shellExecution": {"exitCode": 2**31}}, False, pb.TOOL_STATUS_FAILED, "", None),
        ({"error": {"message": "m"}}, False, pb.TOOL_STATUS_FAILED, "m", None),
        ({"error": {"message": "m", "code": "denied"}}, False, pb.TOOL_STATUS_DENIED, "m", None),
        ({"error": {"message": "m", "code": "rejected"}}, True, pb.TOOL_STATUS_DENIED, "m", None),
        ({"error": {"message": "m"}}, True, pb.TOOL_STATUS_CANCELLED, "m", None),
        (
            {"success": True, "result": {"content": "a\n<shellId: 7 completed with exit code 0>\n"}},
            False,
            pb.TOOL_STATUS_COMPLETED,
            "a",
            None,
        ),
    ],
)
def test_how_a_call_ended(
    data: dict[str, Any], is_cancelled: bool, status: int, content: str, code: int | None
) -> None:
    result = tool_result({"toolCallId": "t", **data}, is_cancelled=is_cancelled)
    assert (result.tool_call_id, result.status, result.content) == ("t", status, content)
    assert result.is_error == (data.get("success") is not True)
    assert (result.exit_code if result.HasField("exit_code") else None) == code


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ({"path": "/a", "command": "ls"}, "t /a"),
        ({"command": "ls"}, "t ls"),
        ({"pattern": "x"}, "t x"),
        ({"url": "u"}, "t u"),
        ({"description": "d"}, "t d"),
        ({"skill": "s"}, "t s"),
        ({}, "t"),
    ],
)
def test_a_call_has_a_title(arguments: dict[str, Any], title: str) -> None:
    assert tool_title("t", arguments) == title


def test_a_call_from_its_beginning_to_its_end() -> None:
    calls = Calls()
    data = {"toolCallId": "t", "toolName": "bash"}
    (pending,) = calls.pending(data, "bash")
    assert (pending.tool_call.status, pending.tool_call.kind) == (pb.TOOL_STATUS_PENDING, pb.TOOL_KIND_EXECUTE)
    assert list(calls.pending(data, "bash")) == []
    (running,) = calls.begin({**data, "arguments": {"command": "ls"}})
    assert (running.tool_call.status, running.tool_call.input_json) == (pb.TOOL_STATUS_RUNNING, '{"command":"ls"}')
    assert (calls.name("t"), calls.name("u")) == ("bash", "")
    printed = [
        *calls.output({"toolCallId": "t", "text": "é"}),
        *calls.output({"toolCallId": "t", "text": "b"}),
        *calls.output({"toolCallId": "t", "text": "c", "stream": "stderr"}),
        *calls.output({"toolCallId": "u", "text": "of none"}),
    ]
    assert [(event.tool_output.stream, event.tool_output.text) for event in printed] == [
        (pb.OUTPUT_STREAM_STDOUT, "é"),
        (pb.OUTPUT_STREAM_STDOUT, "b"),
        (pb.OUTPUT_STREAM_STDERR, "c"),
    ]
    (ended,) = calls.cancel()
    assert (ended.tool_result.tool_call_id, ended.tool_result.status) == ("t", pb.TOOL_STATUS_CANCELLED)
    assert list(calls.end({"toolCallId": "t", "success": True}, is_cancelled=False)) == [], "it ends once"
    (server,) = calls.begin({**data, "mcpServerName": "words", "arguments": "raw"})
    assert (server.tool_call.kind, server.tool_call.mcp_server) == (pb.TOOL_KIND_MCP, "words")
    assert server.tool_call.input_json == "raw"
    assert list(calls.begin({"toolName": "bash"})) == []
