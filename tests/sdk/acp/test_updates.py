"""What the agent reports while it works."""

from typing import Any

import pytest
from dragoman.sdk.acp import AcpOptions, Conversation, ToolState, read_tokens, unified_diff
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb

from tests.sdk.acp.talking import CWD, READY, Talk, agent_text, asks, update

END = {"id": 3, "result": {"stopReason": "end_turn"}}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return update("agent_thought_chunk", content={"type": "text", "text": text}, **fields)


def tool(what: str = "tool_call_update", /, **fields: Any) -> dict[str, Any]:
    return update(what, toolCallId="t", **fields)


def words(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


# Text.


def test_an_item_ends_where_something_else_begins() -> None:
    talk = Talk.ready(
        agent_text("I "), agent_text("will. "), tool("tool_call", title="Write"), agent_text("Done."), END
    )
    items = [(text.item_id, text.delta) for text in talk.of("text")]
    assert items == [("text-1", "I "), ("text-1", "will. "), ("text-1", ""), ("text-2", "Done."), ("text-2", "")]
    kinds = [event.WhichOneof("body") for event in talk.events]
    assert kinds.index("tool_call") == kinds.index("text") + 3, "what was held back comes before the call"
    assert talk.parser.report.summary == "Done."


def test_messages_are_items_by_their_ids() -> None:
    talk = Talk.ready(
        thought("Hm", messageId="a"), agent_text("A", messageId="a"), agent_text("B", messageId="b"), END
    )
    assert [item.item_id for item in talk.of("thinking")] == ["a", "a"]
    assert list(dict.fromkeys(item.item_id for item in talk.of("text"))) == ["a-2", "b"]
    assert talk.parser.report.summary == "B"


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "image", "mimeType": "image/png", "data": "…"}, "[image/png]"),
        ({"type": "resource_link", "name": "a.txt", "uri": "file:///a.txt"}, "[a.txt](file:///a.txt)"),
        ({"type": "resource", "resource": {"uri": "u:1", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": {"uri": "u:1", "blob": "…"}}, "[u:1]"),
        ({"type": "sunset"}, "[sunset]"),
    ],
)
def test_what_is_no_text_is_named(block: dict[str, Any], shown: str) -> None:
    assert Talk.ready(update("agent_message_chunk", content=block)).text == shown


def test_another_session_is_a_nested_agents() -> None:
    talk = Talk.ready(
        agent_text("main"),
        update("agent_message_chunk", "s-2", content={"type": "text", "text": "nested"}),
        update("tool_call", "s-2", toolCallId="n", title="Look"),
        update("current_mode_update", "s-2", currentModeId="plan"),
        agent_text(" goes on"),
        END,
    )
    lineages = [(event.WhichOneof("body"), event.lineage.subagent_id) for event in talk.events[1:]]
    assert lineages[:4] == [("text", ""), ("text", "s-2"), ("text", "s-2"), ("tool_call", "s-2")]
    assert len({text.item_id for text in talk.of("text")}) == 2
    assert talk.parser.report.summary == "main goes on"
    assert talk.of("session")[-1].mode == ""


# Tools.


@pytest.mark.parametrize(
    ("name", "kind", "server"),
    [
        ("words_say", pb.TOOL_KIND_MCP, "words"),
        ("mcp__words__say", pb.TOOL_KIND_MCP, "words"),
        ("mcp__other__say", pb.TOOL_KIND_MCP, ""),
        ("skill", pb.TOOL_KIND_SKILL, ""),
        ("words_own", pb.TOOL_KIND_TODO, ""),
        ("strange", pb.TOOL_KIND_OTHER, ""),
    ],
)
def test_a_tools_name_says_what_the_protocol_has_no_word_for(
    name: str, kind: pb.ToolKind.ValueType, server: str
) -> None:
    own = {"skill": pb.TOOL_KIND_SKILL, "words_own": pb.TOOL_KIND_TODO}
    conversation = Conversation(cwd=CWD, prompt="Do it.", mcp_servers=[adapter_pb2.McpServer(name="words")])
    talk = Talk(AcpOptions(tool_kinds=own), conversation).hear(*READY)
    talk.hear(
        tool("tool_call", kind="other", name=name), asks("session/request_permission", toolCall={"toolCallId": "t"})
    )
    assert (talk.of("tool_call")[-1].kind, talk.of("tool_call")[-1].mcp_server) == (kind, server)
    assert talk.asked[0].request.subject.tool_kind == kind


def test_a_tool_of_the_agents_own_is_no_servers() -> None:
    conversation = Conversation(cwd=CWD, prompt="Do it.", mcp_servers=[adapter_pb2.McpServer(name="read")])
    talk = Talk(conversation=conversation).hear(*READY, tool("tool_call", kind="read", name="read_file"))
    assert talk.of("tool_call")[0].kind == pb.TOOL_KIND_READ


def test_a_call_is_followed_to_its_end() -> None:
    talk = Talk.ready(
        tool("tool_call", title="write", kind="edit", status="pending", rawInput={}),
        tool(status="in_progress", rawInput={"path": "a.txt"}, locations=[{"path": "a.txt"}]),
        tool(status="in_progress"),
        tool(status="completed", content=[words("Wrote it.")], rawOutput={"bytes": 3}),
    )
    calls = talk.of("tool_call")
    assert [(call.status, call.input_json) for call in calls] == [
        (pb.TOOL_STATUS_PENDING, ""),
        (pb.TOOL_STATUS_RUNNING, '{"path":"a.txt"}'),
    ], "what does not change is not emitted again"
    assert {(call.kind, call.title) for call in calls} == {(pb.TOOL_KIND_EDIT, "write")}
    (result,) = talk.of("tool_result")
    assert (result.status, result.content, result.output_json) == (
        pb.TOOL_STATUS_COMPLETED,
        "Wrote it.",
        '{"bytes":3}',
    )
    (change,) = talk.of("file_change")
    assert (change.path, change.provenance, change.operation) == (
        f"{CWD}/a.txt",
        pb.PROVENANCE_INFERRED,
        pb.FILE_OPERATION_UNSPECIFIED,
    )


def test_a_diff_is_a_change_that_the_agent_reports() -> None:
    diff = {"type": "diff", "path": f"{CWD}/a.txt", "oldText": "one\ntwo\n", "newText": "one\n2"}
    talk = Talk.ready(tool("tool_call", kind="edit", status="pending", content=[diff]))
    assert talk.of("file_change") == [], "it is not done yet"
    talk.hear(tool(status="completed", content=[diff]))
    (change,) = talk.of("file_change")
    assert (change.operation, change.provenance) == (pb.FILE_OPERATION_MODIFY, pb.PROVENANCE_NATIVE)
    assert change.diff == (
        f"--- {CWD}/a.txt\n+++ {CWD}/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n"
    )


@pytest.mark.parametrize("old", [None, ""])
def test_a_file_without_a_past_is_new(old: str | None) -> None:
    diff = {"type": "diff", "path": "a.txt", "oldText": old, "newText": "x\u2028y\n"}
    (change,) = Talk.ready(tool("tool_call", status="completed", content=[diff])).of("file_change")
    assert (change.path, change.operation) == (f"{CWD}/a.txt", pb.FILE_OPERATION_CREATE)
    assert change.diff == f"--- /dev/null\n+++ {CWD}/a.txt\n@@ -0,0 +1 @@\n+x\u2028y\n"


def test_a_huge_diff_is_not_computed() -> None:
    assert unified_diff("a", "x\n" * 9_999, "y\n" * 2, created=False) == ""


def test_an_adapter_may_know_better_what_was_changed() -> None:
    def changes(call: ToolState) -> list[pb.FileChange]:
        return [pb.FileChange(path=str(call.raw_output["path"]))]

    talk = Talk.ready(
        tool("tool_call", kind="edit", status="completed", rawOutput={"path": "/x"}), file_changes=changes
    )
    assert [change.path for change in talk.of("file_change")] == ["/x"]


def test_a_failed_call_changes_nothing() -> None:
    talk = Talk.ready(tool("tool_call", kind="edit", status="failed", rawOutput={"message": "no room"}))
    (result,) = talk.of("tool_result")
    assert (result.status, result.is_error, result.content) == (pb.TOOL_STATUS_FAILED, True, "no room")
    assert talk.of("file_change") == []
    assert len(talk.of("tool_call")) == 1, "its start was never emitted"


@pytest.mark.parametrize(
    ("output", "code"),
    [({"exitCode": 3}, 3), ({"metadata": {"exit": 0}}, 0), ({"exit_code": "3"}, None), ({"exit": 1e99}, None)],
)
def test_an_exit_code_is_read_from_where_agents_put_it(output: dict[str, Any], code: int | None) -> None:
    (result,) = Talk.ready(tool("tool_call", kind="execute", status="completed", rawOutput=output)).of("tool_result")
    assert (result.exit_code if result.HasField("exit_code") else None) == code


def test_output_that_grows_is_emitted_in_pieces() -> None:
    talk = Talk.ready(
        tool("tool_call", kind="execute", status="in_progress"),
        tool(content=[words("one\n")]),
        tool(content=[words("one\ntwo\n")]),
        tool(content=[words("one\ntwo\n")]),
        tool(status="completed", content=[words("one\ntwo\n")]),
    )
    assert [piece.text for piece in talk.of("tool_output")] == ["one\n", "two\n"]
    assert talk.of("tool_result")[0].content == "one\ntwo\n"


def test_a_second_end_is_not_emitted() -> None:
    talk = Talk.ready(tool("tool_call", status="completed"), tool(status="completed"), tool(status="failed"))
    assert len(talk.of("tool_result")) == 1


def test_a_call_without_an_id_is_nothing() -> None:
    assert Talk.ready(update("tool_call", title="x")).of("tool_call") == []


# Facts.


def test_facts_of_the_session_are_emitted_when_they_change() -> None:
    talk = Talk.ready(
        update("available_commands_update", availableCommands=[{"name": "init"}, {"name": "web"}]),
        update("session_info_update", title="A title"),
        update("session_info_update", updatedAt="2026-01-01T00:00:00Z"),
        update("current_mode_update", currentModeId="plan"),
        update("current_mode_update", modeId="code"),
        update("config_option_update", configOptions=[{"id": "m", "category": "model", "currentValue": "m-2"}]),
    )
    assert len(talk.of("session")) == 6
    last = talk.of("session")[-1]
    assert (list(last.commands), last.title, last.mode, last.model) == (["init", "web"], "A title", "code", "m-2")


@pytest.mark.parametrize("kind", ["plan", "plan_update"])
def test_a_plan_is_emitted_whole(kind: str) -> None:
    plan = {"entries": [{"content": "Do it", "status": "in_progress", "priority": "high"}, {"content": "Rest"}]}
    (emitted,) = Talk.ready(update(kind, **(plan if kind == "plan" else {"plan": {"planId": "p", **plan}}))).of(
        "plan"
    )
    first, second = emitted.entries
    assert (first.content, first.status, first.priority) == ("Do it", pb.PLAN_ENTRY_STATUS_IN_PROGRESS, "high")
    assert (second.content, second.status) == ("Rest", pb.PLAN_ENTRY_STATUS_UNSPECIFIED)


# Usage.


def usage_update(cost: float | None = None, used: int = 100) -> dict[str, Any]:
    return update(
        "usage_update", used=used, size=1000, **({"cost": {"amount": cost, "currency": "USD"}} if cost else {})
    )


def cost_of(talk: Talk) -> str | None:
    usage = talk.parser.report.usage
    return usage.cost.amount if usage is not None and usage.HasField("cost") else None


def test_the_context_and_the_cost_are_the_sessions() -> None:
    talk = Talk.ready(agent_text("x"), usage_update(0.1), usage_update(0.30000000000000004, 250), END)
    last = talk.of("usage")[-1]
    assert (last.scope, last.semantics) == (pb.USAGE_SCOPE_SESSION, pb.USAGE_SEMANTICS_CUMULATIVE)
    assert (last.cost.amount, last.context_used, last.context_size) == ("0.3", 250, 1000)
    assert cost_of(talk) == "0.3"
    assert talk.parser.report.session_params == {"acpSessionCost": "0.3"}


def test_a_cost_alone_is_reported() -> None:
    alone = update("usage_update", cost={"amount": 0.3, "currency": "USD"})
    assert cost_of(Talk.ready(agent_text("x"), alone, END)) == "0.3"


def test_a_cost_with_too_many_digits_to_round_is_reported_as_it_came() -> None:
    assert cost_of(Talk.ready(agent_text("x"), usage_update(5e18), END)) == "5" + "0" * 18


def test_of_a_resumed_session_only_the_difference_is_this_runs() -> None:
    offers = {"id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}}
    resumed = ({"id": 2, "result": {}}, agent_text("x"), usage_update(0.5), END)
    known = Talk(conversation=Conversation(CWD, "go on", session_id="s-1", cost_before="0.2"))
    assert cost_of(known.hear(offers, *resumed)) == "0.3"
    unknown = Talk(conversation=Conversation(CWD, "go on", session_id="s-1"))
    assert cost_of(unknown.hear(offers, *resumed)) is None
    known_in_part = Talk(conversation=Conversation(CWD, "go on", session_id="s-1"))
    assert cost_of(known_in_part.hear(offers, usage_update(0.4), *resumed)) == "0.1"
    assert len(known_in_part.of("usage")) == 1, "what came before is not emitted again"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        # Each token counted once.
        ({"totalTokens": 120, "inputTokens": 90, "outputTokens": 15, "thoughtTokens": 5, "cachedReadTokens": 10},
         {"input": 90, "output": 20, "reasoning": 5, "cache_read": 10}),
        # Input with what was read from a cache, output with reasoning.
        ({"totalTokens": 120, "inputTokens": 100, "outputTokens": 20, "thoughtTokens": 5, "cachedReadTokens": 10},
         {"input": 90, "output": 20, "reasoning": 5, "cache_read": 10}),
        ({"inputTokens": 7, "outputTokens": 2, "thoughtTokens": None}, {"input": 7, "output": 2}),
        ({"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}, {"input": 0, "output": 0}),
    ],
)  # fmt: skip
def test_tokens_are_counted_as_the_protocol_here_does(usage: dict[str, Any], expected: dict[str, int]) -> None:
    assert read_tokens(usage) == pb.TokenCounts(**expected)


@pytest.mark.parametrize("usage", [{}, {"inputTokens": "7"}, {"inputTokens": -1}, {"inputTokens": True}])
def test_no_tokens_are_not_zero(usage: dict[str, Any]) -> None:
    assert read_tokens(usage) is None


def test_tokens_of_other_runs_are_marked_as_such() -> None:
    end = {"id": 3, "result": {"stopReason": "end_turn", "usage": {"inputTokens": 7, "outputTokens": 2}}}
    talk = Talk.ready(agent_text("x"), end, usage="last_call")
    (call,) = talk.of("usage")
    assert (call.scope, call.semantics, call.tokens.input) == (
        pb.USAGE_SCOPE_CALL,
        pb.USAGE_SEMANTICS_DELTA,
        7,
    )
    assert talk.parser.report.usage is None
    assert Talk.ready(agent_text("x"), end, usage="session").of("usage")[0].scope == pb.USAGE_SCOPE_SESSION
    turn = Talk.ready(agent_text("x"), end).parser.report.usage
    assert turn is not None
    assert turn.tokens.input == 7


@pytest.mark.parametrize("status", ["failed", "completed"])
def test_an_interrupted_call_was_stopped_whatever_the_agent_calls_it(status: str) -> None:
    talk = Talk.ready(tool("tool_call", status="in_progress"))
    list(talk.parser.interrupt())
    talk.hear(tool(status=status, content=[words("so far")]), update("tool_call", toolCallId="u", status=status))
    first, second = talk.of("tool_result")
    assert (first.status, first.content) == (pb.TOOL_STATUS_CANCELLED, "so far")
    assert second.status == (pb.TOOL_STATUS_FAILED if status == "failed" else pb.TOOL_STATUS_COMPLETED)


def test_updates_before_the_session_is_known_are_kept() -> None:
    talk = Talk().hear(READY[0], update("available_commands_update", availableCommands=[{"name": "init"}]))
    assert talk.of("session") == []
    talk.hear(READY[1])
    assert list(talk.of("session")[0].commands) == ["init"]
