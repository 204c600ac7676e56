"""What Codex notifies of while a turn runs, one notification at a time."""

from typing import Any

import pytest
from dragoman.adapters.codex.thread import ThreadEvents
from dragoman.adapters.codex.tools import Calls
from dragoman.adapters.codex.usage import RunTotals
from dragoman.v1 import event_pb2 as pb

from tests.adapters.codex.replay import of_kind


def thread(native_id: str = "main") -> ThreadEvents:
    """Return the events of a thread that has begun."""
    events = ThreadEvents(Calls("/work"), RunTotals())
    events.thread, events.session.now.native_id = native_id, native_id
    return events


def taken(events: ThreadEvents, method: str, **params: Any) -> list[pb.AgentEvent]:
    found = events.take(method, params)
    assert found is not None, f"{method} is not known"
    return found


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("item/agentMessage/delta", "text"),
        ("item/reasoning/summaryTextDelta", "thinking"),
        ("item/reasoning/textDelta", "thinking"),
    ],
)
def test_words_come_in_pieces(method: str, kind: str) -> None:
    (words,) = of_kind(taken(thread(), method, itemId="i", delta="d"), kind)
    assert (words.item_id, words.delta) == ("i", "d")


def test_parts_of_a_thought_are_paragraphs() -> None:
    events = thread()
    assert taken(events, "item/reasoning/summaryPartAdded", itemId="i") == []
    taken(events, "item/reasoning/summaryTextDelta", itemId="i", delta="a")
    (words,) = of_kind(taken(events, "item/reasoning/summaryPartAdded", itemId="i"), "thinking")
    assert words.delta == "\n\n"


@pytest.mark.parametrize(
    ("method", "params", "severity", "code", "message"),
    [
        ("warning", {"message": "Old."}, pb.SEVERITY_WARNING, "codex_warning", "Old."),
        ("configWarning", {"summary": "A", "details": "b"}, pb.SEVERITY_INFO, "codex_config_warning", "A b"),
        ("deprecationNotice", {"summary": "A"}, pb.SEVERITY_INFO, "codex_deprecation", "A"),
        ("deprecationNotice", {}, pb.SEVERITY_INFO, "codex_deprecation", "Codex gives no details."),
    ],
)
def test_what_codex_warns_of(method: str, params: dict[str, Any], severity: int, code: str, message: str) -> None:
    (notice,) = of_kind(taken(thread(), method, **params), "notice")
    assert (notice.severity, notice.code, notice.message) == (severity, code, message)


def test_a_plan_has_numbered_steps_with_a_status() -> None:
    words = {"inProgress": "IN_PROGRESS", "completed": "COMPLETED", "pending": "PENDING", "sunset": "PENDING"}
    steps = [{"step": word, "status": word} for word in words]
    (plan,) = of_kind(taken(thread(), "turn/plan/updated", plan=steps), "plan")
    assert plan.id == "plan"
    assert [(entry.id, entry.content, pb.PlanEntryStatus.Name(entry.status)) for entry in plan.entries] == [
        (str(number), word, f"PLAN_ENTRY_STATUS_{status}") for number, (word, status) in enumerate(words.items(), 1)
    ]


def test_a_title_is_reported_when_it_changes() -> None:
    events = thread()
    (session,) = of_kind(taken(events, "thread/name/updated", threadName="Words"), "session")
    assert (session.native_id, session.title) == ("main", "Words")
    assert taken(events, "thread/name/updated", threadName="Words") == []


def test_a_model_that_is_replaced() -> None:
    events = thread()
    notice, session = taken(events, "model/rerouted", fromModel="a", toModel="b")
    assert (notice.notice.code, notice.notice.severity) == ("codex_model_rerouted", pb.SEVERITY_WARNING)
    assert notice.notice.message == "a was replaced by b."
    assert session.session.model == "b"
    nested = taken(events, "model/rerouted", fromModel="a", toModel="c", threadId="nested")
    assert [event.WhichOneof("body") for event in nested] == ["notice"]
    assert events.session.now.model == "b", "the model of a nested agent is not the run's"


def test_mcp_servers_are_reported_once_they_have_started_or_not() -> None:
    events = thread()
    assert taken(events, "mcpServer/startupStatus/updated", name="a", status="starting") == []
    (session,) = of_kind(taken(events, "mcpServer/startupStatus/updated", name="a", status="ready"), "session")
    assert [(server.name, server.status) for server in session.mcp_servers] == [("a", "ready")]
    notice, session = taken(events, "mcpServer/startupStatus/updated", name="b", status="failed", error="gone")
    assert (notice.notice.code, notice.notice.severity) == ("codex_mcp_server_failed", pb.SEVERITY_WARNING)
    assert notice.notice.message == "The MCP server b did not start: gone."
    assert [server.name for server in session.session.mcp_servers] == ["a", "b"]
    unopened = thread("")
    assert taken(unopened, "mcpServer/startupStatus/updated", name="a", status="ready") == []
    (notice,) = taken(unopened, "mcpServer/startupStatus/updated", name="b", status="failed")
    assert notice.notice.message == "The MCP server b did not start: no reason was given."


def test_a_compaction_begins_and_ends() -> None:
    item = {"type": "contextCompaction", "id": "c"}
    (begun,) = of_kind(taken(thread(), "item/started", item=item), "compaction")
    (ended,) = of_kind(taken(thread(), "item/completed", item=item), "compaction")
    assert begun != ended


def test_what_a_command_prints_comes_as_it_is_printed() -> None:
    events = thread()
    pieces = [
        *taken(events, "item/commandExecution/outputDelta", itemId="c", delta="é"),
        *taken(events, "item/commandExecution/outputDelta", itemId="c", delta="b"),
    ]
    assert [piece.tool_output.text for piece in pieces] == ["é", "b"]
    assert {piece.tool_output.stream for piece in pieces} == {pb.OUTPUT_STREAM_PTY}
    assert taken(events, "item/commandExecution/outputDelta", itemId="c", delta="") == []


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("completed", pb.SUBAGENT_STATUS_COMPLETED),
        ("failed", pb.SUBAGENT_STATUS_FAILED),
        ("interrupted", pb.SUBAGENT_STATUS_CANCELLED),
        ("sunset", pb.SUBAGENT_STATUS_COMPLETED),
    ],
)
def test_a_nested_agent_begins_and_ends(status: str, end: int) -> None:
    events = thread()
    item = {"type": "subAgentActivity", "id": "c", "kind": "started", "agentThreadId": "n", "agentPath": "/root/a"}
    call, started, result = taken(events, "item/completed", item=item)
    assert (call.tool_call.id, call.tool_call.name, call.tool_call.title) == (
        "c",
        "spawn_agent",
        "Start agent /root/a",
    )
    assert (call.tool_call.kind, call.tool_call.status) == (pb.TOOL_KIND_SUBAGENT, pb.TOOL_STATUS_RUNNING)
    assert (started.subagent.id, started.subagent.status) == ("n", pb.SUBAGENT_STATUS_STARTED)
    assert (started.subagent.description, started.subagent.tool_call_id) == ("/root/a", "c")
    assert (result.tool_result.tool_call_id, result.tool_result.content) == ("c", "/root/a")
    assert (result.tool_result.status, result.tool_result.is_error) == (pb.TOOL_STATUS_COMPLETED, False)
    (words,) = taken(events, "item/agentMessage/delta", itemId="i", delta="d", threadId="n")
    assert (words.lineage.subagent_id, words.lineage.parent_tool_call_id) == ("n", "c")
    (ended,) = events.agent_ended({"threadId": "n", "turn": {"status": status}})
    assert (ended.subagent.id, ended.subagent.status, ended.subagent.tool_call_id) == ("n", end, "c")
    assert list(events.agent_ended({"threadId": "n", "turn": {"status": status}})) == [], "it ends once"


@pytest.mark.parametrize(("field", "value"), [("kind", "ended"), ("agentThreadId", "")])
def test_other_news_of_nested_agents_is_none(field: str, value: str) -> None:
    item = {"type": "subAgentActivity", "id": "c", "kind": "started", "agentThreadId": "n", field: value}
    assert taken(thread(), "item/completed", item=item) == []


def test_nested_agents_that_are_left_end_with_the_turn() -> None:
    events = thread()
    item = {"type": "subAgentActivity", "id": "c", "kind": "started", "agentThreadId": "n"}
    taken(events, "item/completed", item=item)
    (ended,) = of_kind(events.end(), "subagent")
    assert (ended.id, ended.status, ended.tool_call_id) == ("n", pb.SUBAGENT_STATUS_CANCELLED, "c")
    assert of_kind(events.end(), "subagent") == []


@pytest.mark.parametrize(
    ("message", "attempt", "most"), [("Reconnecting... 2/5", 2, 5), ("stream disconnected before completion", 0, 0)]
)
def test_a_retry_withdraws_what_is_open(message: str, attempt: int, most: int) -> None:
    events = thread()
    taken(events, "item/agentMessage/delta", itemId="i", delta="half")
    found = taken(events, "error", willRetry=True, error={"message": message, "additionalDetails": "it was cut"})
    words, end = of_kind(found, "text")
    assert (words.item_id, words.WhichOneof("content"), words.whole) == ("i", "whole", "")
    assert (end.item_id, end.WhichOneof("content")) == ("i", None)
    (state,) = of_kind(found, "state")
    assert (state.phase, state.reason) == (pb.RUN_PHASE_RETRYING, "it was cut")
    assert (state.retry_attempt, state.max_retries) == (attempt, most)
    assert taken(thread(), "error", willRetry=False, error={"message": message}) == []
    assert of_kind(taken(thread(), "error", willRetry=True, threadId="n", error={"message": message}), "state") == []
