"""Tool calls: announced once, ended once, and what they changed in files."""

import json
from pathlib import Path

from dragoman.sdk.parsing import FileTool, ToolCalls
from dragoman.v1 import event_pb2 as pb

KINDS = {"write": pb.TOOL_KIND_EDIT, "edit": pb.TOOL_KIND_EDIT, "rm": pb.TOOL_KIND_DELETE, "ls": pb.TOOL_KIND_SEARCH}
FILES = {
    "write": FileTool(content="content"),
    "edit": FileTool("file", replaces=("old", "new")),
    "rm": FileTool(deletes=True),
}


def result(call_id: str, status: pb.ToolStatus.ValueType = pb.TOOL_STATUS_COMPLETED) -> pb.ToolResult:
    return pb.ToolResult(tool_call_id=call_id, status=status)


def changes(calls: ToolCalls, name: str, arguments: dict[str, object]) -> list[pb.FileChange]:
    running = list(calls.running("1", name, json.loads(json.dumps(arguments))))
    assert len(running) == 1
    return [event.file_change for event in calls.ended(result("1")) if event.HasField("file_change")]


def test_a_call_is_announced_once_and_then_runs() -> None:
    calls = ToolCalls(KINDS, servers=("mine",))
    (pending,) = calls.pending("1", "ls")
    assert (pending.tool_call.status, pending.tool_call.kind) == (pb.TOOL_STATUS_PENDING, pb.TOOL_KIND_SEARCH)
    assert list(calls.pending("1", "ls")) == []
    (running,) = calls.running("1", "ls", {"path": "a"}, title="List a")
    call = running.tool_call
    assert (call.status, call.input_json, call.title) == (pb.TOOL_STATUS_RUNNING, '{"path":"a"}', "List a")
    assert calls.name("1") == "ls"
    (ended,) = calls.ended(result("1"))
    assert ended.tool_result.tool_call_id == "1"
    assert calls.name("1") == ""


def test_a_tool_of_a_server_is_emitted_as_such() -> None:
    calls = ToolCalls(KINDS, servers=("mine",))
    ((mine,), (other,)) = (calls.running(name, name, {}, input_json="") for name in ("mcp__mine__x", "new"))
    assert (mine.tool_call.kind, mine.tool_call.mcp_server) == (pb.TOOL_KIND_MCP, "mine")
    assert (other.tool_call.kind, other.tool_call.mcp_server) == (pb.TOOL_KIND_OTHER, "")
    assert mine.tool_call.input_json == ""


def test_a_call_without_id_is_none() -> None:
    calls = ToolCalls(KINDS)
    assert [*calls.pending("", "ls"), *calls.running("", "ls", {})] == []


def test_what_was_written_edited_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one two")
    calls = ToolCalls(KINDS, FILES, [str(tmp_path)])
    (edited,) = changes(calls, "edit", {"file": "a", "old": "one", "new": "1"})
    assert (edited.operation, "+1 two" in edited.diff) == (pb.FILE_OPERATION_MODIFY, True)
    (twice,) = changes(
        calls, "edit", {"file": "a", "edits": [{"old": "one", "new": "1"}, {"old": "two", "new": "2"}]}
    )
    assert "+1 2" in twice.diff
    (written,) = changes(calls, "write", {"path": "b", "content": "new"})
    assert (written.operation, "+new" in written.diff) == (pb.FILE_OPERATION_CREATE, True)
    (begun,) = changes(calls, "edit", {"file": "c", "old": "", "new": "new"})
    assert begun.operation == pb.FILE_OPERATION_CREATE, "a replacement of nothing makes a new file"
    (unknown,) = changes(calls, "write", {"path": "a"})
    assert (unknown.path, unknown.diff) == (str(tmp_path / "a"), "")
    (deleted,) = changes(calls, "rm", {"path": "a"})
    assert deleted.operation == pb.FILE_OPERATION_DELETE
    assert changes(calls, "write", {}) == []
    assert changes(calls, "ls", {"path": "a"}) == []


def test_a_call_that_failed_changed_nothing(tmp_path: Path) -> None:
    calls = ToolCalls(KINDS, FILES, [str(tmp_path)])
    assert len(list(calls.running("1", "write", {"path": "a", "content": "x"}))) == 1
    assert [event.WhichOneof("body") for event in calls.ended(result("1", pb.TOOL_STATUS_FAILED))] == ["tool_result"]
    assert [event.WhichOneof("body") for event in calls.ended(result("1"))] == ["tool_result"], "it has ended already"
