"""What several agents must stand, though not all: subclass and say where the agents differ."""

from typing import ClassVar

from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import PATIENCE_S, SECRET, Harness, answering, broken_server, when, words_server
from tests.agents.suite import ASKED, AgentSuite, resuming


class QuietSuite(AgentSuite):
    """For an agent whose plainest run gives no cause for a notice or a log."""

    async def test_the_installed_version_is_the_tested_one(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT")
        assert seen.of("session")[0].agent_version == self.recipe.tested_version
        assert seen.of("started")[0].agent_version == self.recipe.tested_version
        assert seen.notices == []
        assert seen.of("log") == []


class FullSuite(QuietSuite):
    """For an agent that also has nested agents, tool servers, questions about each, and a way to be interrupted."""

    nested_prompt: ClassVar[str]
    """The body that carries a nested agent's first output or its task."""
    interrupted: ClassVar[tuple[int, str]]
    """Exit code and subtype of a run that was interrupted while it spoke."""

    async def test_a_nested_agent(self, harness: Harness) -> None:
        seen = await harness.run(
            'MOCK_SUBAGENT task="MOCK_WRITE path=b.txt"',
            permissions=ASKED,
            react=answering("allow_once"),
            leaves=["b.txt"],
        )
        started, *_, ended = seen.of("subagent")
        assert (started.status, ended.status) == (pb.SUBAGENT_STATUS_STARTED, pb.SUBAGENT_STATUS_COMPLETED)
        nested = {
            event.WhichOneof("body")
            for event in seen.events
            if event.lineage.subagent_id == started.id and event.lineage.parent_tool_call_id == started.tool_call_id
        }
        assert {self.nested_prompt, "tool_call", "input_request", "tool_result", "file_change"} <= nested
        # Its tokens are the run's too.
        assert seen.result.usage.tokens.input == 4 * 400

    async def test_a_tool_server_is_really_used(self, harness: Harness) -> None:
        seen = await harness.run(
            "MOCK_COUNT", mcp_servers=[words_server()], permissions=ASKED, react=answering("allow_once")
        )
        (asked,) = seen.of("input_request")
        assert asked.subject.tool_kind == pb.TOOL_KIND_MCP
        assert {call.mcp_server for call in seen.of("tool_call") if call.mcp_server} == {"words"}
        assert f"The first word has {len(SECRET)} letters." in seen.text

    async def test_a_broken_tool_server_is_reported_and_ends_nothing(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", mcp_servers=[broken_server()])
        (server,) = seen.of("session")[-1].mcp_servers
        assert (server.name, server.status) == ("broken", "failed")
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    async def test_instructions_of_now_hold_in_a_resumed_session(self, harness: Harness) -> None:
        first = await harness.run("MOCK_TEXT", instructions=api.Instructions(text="Old words."))
        await harness.run(
            "MOCK_TEXT",
            instructions=api.Instructions(text="New words."),
            session=resuming(first.result.session.handle),
        )
        system = harness.conversation(-1).system
        assert "New words." in system
        assert "Old words." not in system

    async def test_it_is_interrupted_in_its_own_way_first(self, harness: Harness) -> None:
        """By a signal it might lose its final message, and would exit with another code."""
        react = when(lambda event: bool(event.text.delta), lambda stream: stream.cancel(grace_s=PATIENCE_S))
        seen = await harness.run("MOCK_STALL_MID", react=react)
        assert (seen.result.exit_code, seen.result.subtype) == self.interrupted
