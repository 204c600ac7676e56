"""Claude Code's system frames, results of calls and rate limits, one at a time."""

from typing import Any

import pytest
from dragoman.adapters.claude_code.system import SystemFrames
from dragoman.adapters.claude_code.tools import exit_code, file_change, result_status, result_text, tool_title
from dragoman.adapters.claude_code.usage import RunTotals
from dragoman.v1 import event_pb2 as pb


def taken(frames: SystemFrames, subtype: str, **fields: Any) -> list[pb.AgentEvent]:
    found = frames.take({"type": "system", "subtype": subtype, **fields})
    assert found is not None, f"{subtype} is not known"
    return list(found)


def test_a_compaction_that_failed_has_ended() -> None:
    frames = SystemFrames()
    (begun,) = taken(frames, "status", status="compacting")
    ended, notice = taken(frames, "status", compact_result="failed", compact_error="too little is left")
    assert (begun.WhichOneof("body"), ended.WhichOneof("body")) == ("compaction", "compaction")
    assert begun != ended
    assert (notice.notice.code, notice.notice.message) == ("claude_compaction_failed", "too little is left")
    *_, notice = taken(frames, "status", compact_result="failed")
    assert notice.notice.message == "The agent could not shorten its context."
    assert taken(frames, "status", compact_result="success") == []


def test_a_compaction_has_its_tokens() -> None:
    (event,) = taken(
        SystemFrames(), "compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 9, "post_tokens": 3}
    )
    assert (event.compaction.tokens_before, event.compaction.tokens_after) == (9, 3)


@pytest.mark.parametrize("key", ["title", "content"])
def test_a_title_is_reported_when_it_changes(key: str) -> None:
    frames = SystemFrames()
    frames.session.now.native_id = "s"
    (event,) = taken(frames, "session_title_changed", **{key: "Words"})
    assert event.session.title == "Words"
    assert taken(frames, "session_title_changed", **{key: "Words"}) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "A tool was denied by Claude Code (its own rules)."),
        ({"tool_name": "Bash"}, "Bash was denied by Claude Code (its own rules)."),
        ({"tool_name": "Bash", "decision_reason_type": "mode"}, "Bash was denied by Claude Code (mode)."),
        ({"decision_reason": "unsafe", "decision_reason_type": "mode"}, "A tool was denied by Claude Code (unsafe)."),
    ],
)
def test_what_claude_code_denies_by_itself(fields: dict[str, str], message: str) -> None:
    frames = SystemFrames()
    (event,) = taken(frames, "permission_denied", tool_use_id="t", **fields)
    assert (event.notice.code, event.notice.message) == ("permission_denied", message)
    assert frames.denied == {"t"}


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("completed", pb.SUBAGENT_STATUS_COMPLETED),
        ("failed", pb.SUBAGENT_STATUS_FAILED),
        ("stopped", pb.SUBAGENT_STATUS_CANCELLED),
        ("killed", pb.SUBAGENT_STATUS_CANCELLED),
        ("sunset", pb.SUBAGENT_STATUS_COMPLETED),
    ],
)
def test_a_nested_agent_begins_and_ends(status: str, end: int) -> None:
    frames = SystemFrames()
    about = {"task_id": "a", "tool_use_id": "t", "subagent_type": "explorer"}
    steps = [
        taken(frames, "task_started", task_type="local_agent", description="Look.", **about),
        taken(frames, "task_progress", description="Found one.", **about),
        taken(frames, "task_notification", status=status, summary="Done.", **about),
    ]
    found = [event.subagent for (event,) in steps]
    assert {(each.id, each.tool_call_id, each.type) for each in found} == {("a", "t", "explorer")}
    assert [(each.status, each.description) for each in found] == [
        (pb.SUBAGENT_STATUS_STARTED, "Look."),
        (pb.SUBAGENT_STATUS_RUNNING, "Found one."),
        (end, "Done."),
    ]


def test_a_long_command_is_no_nested_agent() -> None:
    frames = SystemFrames()
    assert taken(frames, "task_started", task_type="local_bash", task_id="b", tool_use_id="t") == []
    assert taken(frames, "task_progress", task_id="b", tool_use_id="t") == []
    assert taken(frames, "task_notification", task_id="b", status="completed") == []


@pytest.mark.parametrize("subtype", ["model_refusal_no_fallback", "model_refusal_fallback"])
def test_a_model_that_refuses(subtype: str) -> None:
    (event,) = taken(SystemFrames(), subtype, original_model="m-1", api_refusal_explanation="unsafe")
    assert (event.notice.code, event.notice.message) == (f"claude_{subtype}", "m-1 refused: unsafe")
    (event,) = taken(SystemFrames(), subtype)
    assert event.notice.message == "The model refused."


OK: dict[str, Any] = {"is_error": False}
ERROR: dict[str, Any] = {"is_error": True}


@pytest.mark.parametrize(
    ("block", "content", "meta", "was_denied", "status"),
    [
        (OK, "", {}, False, pb.TOOL_STATUS_COMPLETED),
        ({}, "", {}, False, pb.TOOL_STATUS_COMPLETED),
        (ERROR, "no", {}, False, pb.TOOL_STATUS_FAILED),
        (ERROR, "Command timed out after 2m", {}, False, pb.TOOL_STATUS_TIMED_OUT),
        (OK, "Command timed out after 2m", {}, False, pb.TOOL_STATUS_COMPLETED),
        (ERROR, "", {}, True, pb.TOOL_STATUS_DENIED),
        (ERROR, "", {"permission_decision": {"decision": "reject"}}, False, pb.TOOL_STATUS_DENIED),
        (ERROR, "", {"permission_decision": {"decision": "accept"}}, False, pb.TOOL_STATUS_FAILED),
        (ERROR, "", {"non_execution_kind": "permission-rule"}, False, pb.TOOL_STATUS_DENIED),
        (ERROR, "", {"non_execution_kind": "user-rejected"}, False, pb.TOOL_STATUS_CANCELLED),
    ],
)
def test_how_a_call_ended(
    block: dict[str, Any], content: str, meta: dict[str, Any], was_denied: bool, status: int
) -> None:
    assert result_status(block, content, meta, was_denied=was_denied) == status


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("Bash", "Exit code 3\nno", 3),
        ("Bash", "Error: Exit code 127", 127),
        ("Bash", "fine", None),
        ("Bash", "it has Exit code 3", None),
        ("Read", "Exit code 3", None),
    ],
)
def test_a_command_has_an_exit_code(name: str, content: str, code: int | None) -> None:
    assert exit_code(name, content) == code


def test_the_text_of_a_result() -> None:
    blocks: list[Any] = [{"type": "text", "text": "a"}, {"type": "image"}, {}]
    assert result_text({"content": "whole"}) == "whole"
    assert result_text({"content": blocks}) == "a\n[image]\n[content]"


@pytest.mark.parametrize(
    ("name", "tool_input", "title"),
    [
        ("Read", {"file_path": "/w/a.txt"}, "Read a.txt"),
        ("NotebookEdit", {"notebook_path": "/w/a.ipynb"}, "NotebookEdit a.ipynb"),
        ("LS", {"path": "/w/src"}, "LS src"),
        ("Grep", {"path": "/w/src", "pattern": "x+"}, "Grep: x+"),
        ("TaskCreate", {"subject": "One", "description": "Two"}, "TaskCreate: One"),
        ("Task", {"description": "Look", "command": "c"}, "Task: Look"),
        ("Bash", {"command": "ls"}, "Bash: ls"),
        ("WebSearch", {"query": "words"}, "WebSearch: words"),
        ("WebFetch", {"url": "https://words.example"}, "WebFetch: https://words.example"),
        ("Skill", {"skill": "pdf"}, "Skill: pdf"),
        ("ExitPlanMode", {"plan": "First."}, "ExitPlanMode: First."),
        ("EnterPlanMode", {}, "EnterPlanMode"),
        ("mcp__words__find", {"command": "ls"}, "words: find"),
        ("AskUserQuestion", {"questions": [{"question": "Which?"}]}, "Which?"),
        ("AskUserQuestion", {}, "AskUserQuestion"),
    ],
)
def test_a_call_has_a_title(name: str, tool_input: dict[str, Any], title: str) -> None:
    assert tool_title(name, tool_input, "/w") == title


def test_only_tools_that_edit_change_files() -> None:
    about = {"file_path": "/w/a.txt"}
    assert file_change("Read", "t", about, {}, "") is None
    assert file_change("Write", "t", {}, {}, "") is None
    created = file_change("Write", "t", about, {"filePath": "/w/b.txt", "type": "create"}, "")
    assert created is not None
    assert (created.path, created.operation) == ("/w/b.txt", pb.FILE_OPERATION_CREATE)
    nested = file_change("Edit", "t", about, {}, "The file was updated.")
    assert nested is not None
    assert (nested.path, nested.operation, nested.tool_call_id) == ("/w/a.txt", pb.FILE_OPERATION_MODIFY, "t")
    new = file_change("Write", "t", about, {}, "File created successfully at: /w/a.txt")
    assert new is not None
    assert new.operation == pb.FILE_OPERATION_CREATE


def test_each_window_of_a_limit_is_reported() -> None:
    five = {"status": "allowed", "utilization": 0.256, "resetsAt": 1_800_000_000}
    info: dict[str, Any] = {"rateLimitType": "seven_day", "status": "rejected", "unifiedWindows": {"five_hour": five}}
    main, other = RunTotals().limits(info)
    assert (main.window, main.status, main.HasField("used_percent")) == ("seven_day", "rejected", False)
    assert (other.window, other.status, other.used_percent) == ("five_hour", "allowed", 25.6)
    assert other.resets_at.ToSeconds() == 1_800_000_000
    (only,) = RunTotals().limits({**info, "rateLimitType": "five_hour"})
    assert only == other
    (alone,) = RunTotals().limits({"status": "allowed"})
    assert (alone.window, alone.status) == ("", "allowed")
    assert RunTotals().limits({}) == []
