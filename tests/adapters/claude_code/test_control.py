"""The control channel: what is asked, and the very line that answers it."""

import json
from typing import Any

import pytest
from dragoman.adapters.claude_code import control
from dragoman.adapters.claude_code.parse import ClaudeParser
from dragoman.sdk import Answer, Ask, Line, Write
from dragoman.v1 import event_pb2 as pb

from tests.adapters.claude_code.replay import of_kind

RULE = {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch b *"}], "behavior": "allow"}
WRITE = {"file_path": "/workspace/a.txt", "content": "one"}
ONE = {
    "question": "Which colour?",
    "header": "Colour",
    "multiSelect": False,
    "options": [{"label": "Red", "description": "like a fire"}, {"label": "Blue", "description": ""}],
}


def request(tool: str = "Write", tool_input: Any = None, **fields: Any) -> dict[str, Any]:
    tool_arguments = WRITE if tool_input is None else tool_input
    return {"subtype": "can_use_tool", "tool_name": tool, "input": tool_arguments, "tool_use_id": "call-1", **fields}


def frame(kind: str, **fields: Any) -> Line:
    return Line(json.dumps({"type": kind, **fields}).encode(), 0, True)


def asked(body: dict[str, Any], parser: ClaudeParser | None = None) -> Ask:
    outputs = list(
        (parser or ClaudeParser()).line("stdout", frame("control_request", request_id="r-1", request=body))
    )
    (ask,) = outputs
    assert isinstance(ask, Ask)
    return ask


def answered(ask: Ask, answer: Answer) -> Any:
    line = ask.encode(answer)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    frame = json.loads(line)
    assert frame["type"] == "control_response"
    assert frame["response"]["request_id"] == "r-1"
    assert frame["response"]["subtype"] == "success"
    return frame["response"]["response"]


def option(ask: Ask, option_id: str) -> pb.InputOption:
    return next(item for item in ask.request.options if item.id == option_id)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(allowed=True), {"behavior": "allow"}),
        (
            Answer(allowed=True, updated_input_json='{"file_path":"/workspace/a.txt","content":"two"}'),
            {"behavior": "allow", "updatedInput": {"file_path": "/workspace/a.txt", "content": "two"}},
        ),
        (Answer(allowed=False, message="not there"), {"behavior": "deny", "message": "not there"}),
        (Answer(allowed=False), {"behavior": "deny", "message": "The user does not allow this."}),
    ],
    ids=["allow", "edited", "deny", "deny-without-a-word"],
)
def test_a_permission_is_answered_as_claude_code_wants_it(answer: Answer, expected: Any) -> None:
    assert answered(asked(request()), answer) == expected


def test_always_holds_for_the_session_and_writes_no_file() -> None:
    suggestions = [
        {**RULE, "destination": "localSettings"},
        {"type": "addDirectories", "directories": ["/elsewhere"], "destination": "session"},
        {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
    ]
    ask = asked(request("Bash", {"command": "touch b"}, permission_suggestions=suggestions))
    always = [item for item in ask.request.options if item.kind == pb.INPUT_OPTION_KIND_ALLOW_ALWAYS]
    assert [(item.id, item.label) for item in always] == [
        ("allow_always", "Allow Bash(touch b *) for this session"),
        ("allow_always_2", "Allow work in /elsewhere for this session"),
        ("allow_always_3", "Switch to mode acceptEdits for this session"),
    ]
    assert answered(ask, Answer(allowed=True, option=always[0])) == {
        "behavior": "allow",
        "updatedPermissions": [{**RULE, "destination": "session"}],
    }


@pytest.mark.parametrize(
    "suggestion",
    [
        {"type": "setMode", "mode": "bypassPermissions", "destination": "session"},
        {"type": "addRules", "rules": [], "behavior": "deny", "destination": "session"},
    ],
    ids=["bypass", "deny"],
)
def test_one_answer_never_gives_everything_away(suggestion: dict[str, Any]) -> None:
    ask = asked(request(permission_suggestions=[suggestion]))
    assert [item.id for item in ask.request.options] == [control.ALLOW_ONCE, control.REJECT_ONCE]


def test_the_default_of_a_permission_is_a_refusal_once() -> None:
    kinds = [item.kind for item in asked(request()).request.options]
    assert kinds == [pb.INPUT_OPTION_KIND_ALLOW_ONCE, pb.INPUT_OPTION_KIND_REJECT_ONCE]


@pytest.mark.parametrize(
    ("tool", "tool_input", "fields", "expected"),
    [
        ("Write", WRITE, {}, {"paths": ["/workspace/a.txt"], "tool_kind": pb.TOOL_KIND_EDIT}),
        ("NotebookEdit", {"notebook_path": "/w/n.ipynb"}, {}, {"paths": ["/w/n.ipynb"]}),
        ("Read", {"file_path": "/etc/hosts"}, {}, {"paths": ["/etc/hosts"], "tool_kind": pb.TOOL_KIND_READ}),
        ("Bash", {"command": "touch b"}, {}, {"command": "touch b", "paths": [], "tool_kind": pb.TOOL_KIND_EXECUTE}),
        ("Bash", {"command": "rm b"}, {"blocked_path": "/w/b"}, {"paths": [], "reason": "/w/b"}),
        ("WebFetch", {"url": "https://example.org:8443/x"}, {}, {"host": "example.org"}),
        ("WebFetch", {"url": "http://[broken"}, {}, {"host": ""}),
        ("mcp__files__put", {"path": "/w/x"}, {}, {"tool_kind": pb.TOOL_KIND_MCP, "paths": []}),
        ("Write", WRITE, {"decision_reason": "outside"}, {"reason": "outside"}),
    ],
)
def test_policies_see_what_it_is_about(tool: str, tool_input: Any, fields: Any, expected: dict[str, Any]) -> None:
    subject = asked(request(tool, tool_input, **fields)).request.subject
    assert (subject.tool_name, subject.tool_call_id) == (tool, "call-1")
    for name, value in expected.items():
        found = getattr(subject, name)
        assert (list(found) if isinstance(value, list) else found) == value


def test_the_reason_is_shown_to_people() -> None:
    body = request(decision_reason="Path is outside", description="a.txt", blocked_path="/workspace/a.txt")
    assert asked(body).request.description == "Path is outside\na.txt\nIt is about /workspace/a.txt."


def test_a_question_is_a_choice_and_its_answer_the_label() -> None:
    body = request("AskUserQuestion", {"questions": [ONE]})
    ask = asked(body)
    shown = ask.request
    assert (shown.kind, shown.title, shown.multiple) == (pb.INPUT_KIND_CHOICE, "Which colour?", False)
    assert [option.description for option in shown.options] == ["like a fire", ""]
    assert not shown.description, "each stands beside its option"
    chosen = (option(ask, "option_2"),)
    answer = answered(ask, Answer(allowed=True, option=chosen[0], chosen=chosen))
    assert answer == {
        "behavior": "allow",
        "updatedInput": {"questions": [ONE], "answers": {"Which colour?": "Blue"}},
    }
    other = answered(ask, Answer(allowed=True, text="Green"))
    assert other["updatedInput"]["answers"] == {"Which colour?": "Green"}


def test_several_labels_are_joined() -> None:
    ask = asked(request("AskUserQuestion", {"questions": [{**ONE, "multiSelect": True}]}))
    assert ask.request.multiple
    answer = answered(ask, Answer(allowed=True, chosen=tuple(ask.request.options)))
    assert answer["updatedInput"]["answers"] == {"Which colour?": "Red, Blue"}


def test_several_questions_are_a_form() -> None:
    two = {"question": "How many?", "options": [{"label": "One"}, {"label": "Two"}], "multiSelect": True}
    ask = asked(request("AskUserQuestion", {"questions": [ONE, two]}))
    assert ask.request.kind == pb.INPUT_KIND_SCHEMA
    schema = json.loads(ask.request.schema_json)
    assert schema["required"] == ["Which colour?", "How many?"]
    value = {"Which colour?": "Green", "How many?": ["One", "Two"]}
    answer = answered(ask, Answer(allowed=True, value_json=json.dumps(value)))
    assert answer["updatedInput"]["answers"] == {"Which colour?": "Green", "How many?": "One, Two"}


def test_an_unanswered_question_is_declined_and_kept_for_the_result() -> None:
    parser = ClaudeParser()
    ask = asked(request("AskUserQuestion", {"questions": [ONE]}), parser)
    answer = answered(ask, Answer(allowed=False))
    assert answer["behavior"] == "deny"
    assert answer["message"].startswith("No one is there to answer.")
    assert parser.report.question == pb.Question(prompt="Which colour?", choices=["Red", "Blue"])


@pytest.mark.parametrize("questions", [[], [{}], [ONE, ONE], "none"], ids=["none", "empty", "twice", "no-list"])
def test_a_question_without_a_question_is_an_ordinary_permission(questions: Any) -> None:
    ask = asked(request("AskUserQuestion", {"questions": questions}))
    assert ask.request.kind == pb.INPUT_KIND_PERMISSION


def test_an_edited_input_is_what_the_file_change_is_about() -> None:
    parser = ClaudeParser()
    use = {"type": "tool_use", "id": "call-1", "name": "Write", "input": WRITE}
    list(parser.line("stdout", frame("assistant", message={"id": "m", "content": [use]})))
    answered(asked(request(), parser), Answer(allowed=True, updated_input_json='{"file_path":"/workspace/b.txt"}'))
    done = {"type": "tool_result", "tool_use_id": "call-1", "content": "File created successfully at: x"}
    outputs = parser.line("stdout", frame("user", message={"content": [done]}))
    (change,) = of_kind(outputs, "file_change")
    assert (change.path, change.operation) == ("/workspace/b.txt", pb.FILE_OPERATION_CREATE)
    assert change.provenance == pb.PROVENANCE_INFERRED


def test_an_unknown_request_is_answered_so_that_the_agent_continues() -> None:
    line = frame("control_request", request_id="r-1", request={"subtype": "hook_callback"})
    (write,) = list(ClaudeParser().line("stdout", line))
    assert isinstance(write, Write)
    response = json.loads(write.data)["response"]
    assert (response["subtype"], response["request_id"]) == ("error", "r-1")


@pytest.mark.parametrize(
    "prompt", ["plain", "two\nlines", "\u2028 \u00e4 \U0001f980", '"quoted"', "-p", "x" * 1_000_000]
)
def test_a_prompt_is_one_line_and_arrives_whole(prompt: str) -> None:
    line = control.user_message(prompt)
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line)["message"] == {"role": "user", "content": prompt}
