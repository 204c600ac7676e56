"""Codex's items as tool calls, results and changes of files."""

import json
from typing import Any

import pytest
from dragoman.adapters.codex.tools import Calls, changed_paths, file_changes, script_of, tool_call, tool_result
from dragoman.v1 import event_pb2 as pb

CWD = "/srv/w"


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": "c1", **fields}


def results(events: Any) -> list[pb.ToolResult]:
    return [event.tool_result for event in events if event.WhichOneof("body") == "tool_result"]


@pytest.mark.parametrize(
    ("what", "name", "kind", "title", "arguments"),
    [
        (
            item("commandExecution", command="/bin/bash -lc 'ls -l'", cwd=CWD),
            *("exec_command", pb.TOOL_KIND_EXECUTE, "ls -l", {"cmd": "ls -l"}),
        ),
        (
            item("commandExecution", command="ls", cwd="/tmp"),
            *("exec_command", pb.TOOL_KIND_EXECUTE, "ls", {"cmd": "ls", "workdir": "/tmp"}),
        ),
        (
            item("fileChange", changes=[{"path": f"{CWD}/a", "kind": {"type": "add"}}]),
            *("apply_patch", pb.TOOL_KIND_EDIT, "Edit a"),
            {"changes": [{"path": f"{CWD}/a", "kind": {"type": "add"}}]},
        ),
        (
            item("fileChange", changes=[{"path": "/b", "kind": {"type": "delete"}}]),
            *("apply_patch", pb.TOOL_KIND_DELETE, "Delete /b"),
            {"changes": [{"path": "/b", "kind": {"type": "delete"}}]},
        ),
        (
            item("mcpToolCall", server="files", tool="read", arguments={"a": 1}),
            *("mcp__files__read", pb.TOOL_KIND_MCP, "files: read", {"a": 1}),
        ),
        (item("dynamicToolCall", tool="t", arguments={}), "t", pb.TOOL_KIND_OTHER, "t", {}),
        (item("dynamicToolCall", arguments={}), "tool", pb.TOOL_KIND_OTHER, "tool", {}),
        (
            item("collabAgentToolCall", tool="spawnAgent", prompt="Look.", model="m"),
            *("spawnAgent", pb.TOOL_KIND_SUBAGENT, "Look.", {"prompt": "Look.", "model": "m"}),
        ),
        (
            item("collabAgentToolCall", prompt="Look."),
            *("agent", pb.TOOL_KIND_SUBAGENT, "Look.", {"prompt": "Look.", "model": None}),
        ),
        (
            item("webSearch", query="cats", action={"type": "search"}),
            *("web_search", pb.TOOL_KIND_SEARCH, "Search the web: cats"),
            {"query": "cats", "action": {"type": "search"}},
        ),
        (
            item("webSearch"),
            *("web_search", pb.TOOL_KIND_SEARCH, "Search the web", {"query": "", "action": None}),
        ),
        (item("imageView", path="/a.png"), "view_image", pb.TOOL_KIND_READ, "View /a.png", {"path": "/a.png"}),
        (item("imageGeneration"), "imageGeneration", pb.TOOL_KIND_OTHER, "imageGeneration", item("imageGeneration")),
        (item("sleep"), "sleep", pb.TOOL_KIND_OTHER, "sleep", item("sleep")),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) and "type" in value else "",
)
def test_an_item_as_a_call(what: Any, name: str, kind: Any, title: str, arguments: Any) -> None:
    call = tool_call(what, CWD)
    assert call is not None
    assert (call.id, call.name, call.kind, call.title) == ("c1", name, kind, title)
    assert json.loads(call.input_json) == arguments
    assert call.mcp_server == ("files" if what["type"] == "mcpToolCall" else "")


@pytest.mark.parametrize("what", [item("agentMessage"), {"type": "sleep"}, {"type": "sleep", "id": ""}, {}])
def test_what_is_no_call(what: Any) -> None:
    assert tool_call(what, CWD) is None
    assert list(Calls(CWD).begin(what)) == []
    assert list(Calls(CWD).end(what)) == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, pb.TOOL_STATUS_COMPLETED),
        ({"status": "completed"}, pb.TOOL_STATUS_COMPLETED),
        ({"status": "failed"}, pb.TOOL_STATUS_FAILED),
        ({"status": "declined"}, pb.TOOL_STATUS_DENIED),
        ({"status": "interrupted"}, pb.TOOL_STATUS_CANCELLED),
        ({"status": "completed", "success": False}, pb.TOOL_STATUS_FAILED),
        ({"status": "completed", "success": None}, pb.TOOL_STATUS_COMPLETED),
        ({"status": "completed", "error": {"message": "broken\n"}}, pb.TOOL_STATUS_FAILED),
    ],
)
def test_how_a_call_ended(fields: dict[str, Any], status: Any) -> None:
    result = tool_result(item("dynamicToolCall", **fields))
    assert (result.tool_call_id, result.status) == ("c1", status)
    assert result.is_error is (status != pb.TOOL_STATUS_COMPLETED)
    assert result.content == ("broken" if "error" in fields else "")


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"aggregatedOutput": "a\nb\n"}, "a\nb"),
        ({"result": {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {}]}}, "a\n[image]\n[content]"),
        ({"contentItems": [{"type": "inputText", "text": "b"}]}, "b"),
        ({"aggregatedOutput": "first", "contentItems": [{"text": "b"}]}, "first"),
    ],
)
def test_what_a_call_gave(fields: dict[str, Any], content: str) -> None:
    assert tool_result(item("x", **fields)).content == content


@pytest.mark.parametrize(
    ("code", "expected"), [(3, 3), (0, 0), (-(2**31) + 1, -(2**31) + 1), (2**31, None), (True, None), ("1", None)]
)
def test_an_exit_code(code: Any, expected: int | None) -> None:
    result = tool_result(item("commandExecution", exitCode=code))
    assert (result.exit_code if result.HasField("exit_code") else None) == expected


@pytest.mark.parametrize(
    ("spent", "expected"), [(1500, 1500), (0, 0), (10**12 - 1, 10**12 - 1), (10**12, None), (-1, None)]
)
def test_a_duration(spent: int, expected: int | None) -> None:
    result = tool_result(item("commandExecution", durationMs=spent))
    assert (result.duration.ToMilliseconds() if result.HasField("duration") else None) == expected


def test_a_structured_result() -> None:
    assert json.loads(tool_result(item("x", result={"structuredContent": {"a": [1]}})).output_json) == {"a": [1]}
    assert tool_result(item("x", result={"structuredContent": {}})).output_json == ""


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("/bin/bash -lc 'a b'", "a b"),
        ("sh -c 'a b'", "a b"),
        ("/usr/bin/dash -c a", "a"),
        ("zsh -lc a", "a"),
        ("ksh -c a", "a"),
        ("fish -c a", "fish -c a"),
        ("bash -x a", "bash -x a"),
        ("bash -c a b", "bash -c a b"),
        ("bash -c 'a", "bash -c 'a"),
        ("ls", "ls"),
    ],
)
def test_the_script_of_a_shell(command: str, script: str) -> None:
    assert script_of(command) == script


MOVED = {"path": "/a", "kind": {"type": "update", "move_path": "/b"}, "diff": "@@ -1 +1 @@\n-x\n+y\n"}


def test_the_paths_of_a_patch() -> None:
    again = {"path": "/b", "kind": {"type": "add"}}
    assert changed_paths(item("fileChange", changes=[MOVED, again, {}])) == ["/a", "/b"]


@pytest.mark.parametrize(
    ("change", "operation", "old_path", "diff"),
    [
        (MOVED, pb.FILE_OPERATION_RENAME, "/a", "--- /a\n+++ /a\n@@ -1 +1 @@\n-x\n+y\n"),
        (
            {"path": "/b", "kind": {"type": "add"}, "diff": "one\ntwo\n"},
            *(pb.FILE_OPERATION_CREATE, "", "--- /dev/null\n+++ /b\n@@ -0,0 +1,2 @@\n+one\n+two\n"),
        ),
        (
            {"path": "/b", "kind": {"type": "delete"}, "diff": "one"},
            *(pb.FILE_OPERATION_DELETE, ""),
            "--- /b\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-one\n\\ No newline at end of file\n",
        ),
        ({"path": "/b", "kind": {"type": "update"}, "diff": "--- /b\n"}, pb.FILE_OPERATION_MODIFY, "", "--- /b\n"),
        ({"path": "/b", "kind": {"type": "new one"}}, pb.FILE_OPERATION_MODIFY, "", ""),
    ],
)
def test_a_change_of_a_file(change: Any, operation: Any, old_path: str, diff: str) -> None:
    (found,) = file_changes(item("fileChange", changes=[change]))
    assert (found.path, found.old_path) == ("/b", old_path)
    assert (found.operation, found.diff) == (operation, diff)
    assert (found.provenance, found.tool_call_id) == (pb.PROVENANCE_NATIVE, "c1")


def test_only_an_applied_patch_changes_files() -> None:
    calls = Calls(CWD)
    for status, number in (("completed", 1), ("failed", 0), ("declined", 0)):
        events = list(calls.end(item("fileChange", status=status, changes=[MOVED])))
        assert sum(event.HasField("file_change") for event in events) == number


def test_an_end_without_a_beginning_begins_the_call() -> None:
    calls = Calls(CWD)
    kinds = [event.WhichOneof("body") for event in calls.end(item("sleep"))]
    assert kinds == ["tool_call", "tool_call", "tool_result"]
    assert calls.open == {}


def test_what_a_command_prints() -> None:
    calls = Calls(CWD)
    pieces = [event.tool_output for words in ("é", "x") for event in calls.output({"itemId": "c1", "delta": words})]
    assert [(piece.tool_call_id, piece.text) for piece in pieces] == [("c1", "é"), ("c1", "x")]
    assert {piece.stream for piece in pieces} == {pb.OUTPUT_STREAM_PTY}
    assert list(calls.output({"itemId": "c1", "delta": ""})) == []
    assert list(calls.output({"delta": "x"})) == []


def test_a_refusal_gives_its_reason() -> None:
    calls = Calls(CWD)
    calls.refusals["c1"] = "Not here."
    for status in ("failed", "declined"):
        (result,) = results(
            calls.end(item("mcpToolCall", status=status, error={"message": "x"} if status == "failed" else None))
        )
        assert (result.status, result.content) == (pb.TOOL_STATUS_DENIED, "Not here.")
    (result,) = results(calls.end(item("mcpToolCall", status="completed", aggregatedOutput="fine")))
    assert (result.status, result.content) == (pb.TOOL_STATUS_COMPLETED, "fine")


def test_a_cancel_ends_each_open_call_once() -> None:
    calls = Calls(CWD)
    list(calls.begin(item("sleep")))
    (result,) = results(calls.cancel())
    assert (result.tool_call_id, result.status, result.is_error) == ("c1", pb.TOOL_STATUS_CANCELLED, True)
    assert list(calls.cancel()) == []
