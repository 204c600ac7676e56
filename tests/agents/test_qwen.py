"""The real Qwen Code through its adapter: what all agents must stand, and what only it does."""

from typing import ClassVar

import pytest
from dragoman.adapters.qwen import adapter
from dragoman.testkit.profiles.qwen import QWEN
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Failing, Harness, Recipe, when
from tests.agents.suite import ALLOWED, AgentSuite, resuming

pytestmark = [pytest.mark.agents, pytest.mark.timeout(240)]

LINES = {"transport": "stream-json"}


class TestQwen(AgentSuite):
    """Everything that all agents must stand."""

    recipe: ClassVar[Recipe] = Recipe(
        make=adapter,
        family=QWEN,
        executable="qwen",
        unknown_session="00000000-0000-4000-8000-000000000000",
        failures={
            "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "acp_error_-32603", 400),
            "CUT_END": Failing(pb.FAILURE_KIND_NETWORK, "acp_error_-32603"),
            "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "acp_error_-32603", 401),
            "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "acp_error_429", 429),
            "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "acp_error_-32603", 500),
            "CUT": Failing(pb.FAILURE_KIND_NETWORK, "acp_error_-32603"),
        },
        lacks=["usage_when_cancelled", "refusal_message"],
        cannot={
            "test_an_answer_cut_by_the_output_limit": "it continues, and does not report why its model stopped",
            "test_a_cut_that_passes_leaves_one_answer": "it continues in the same message, and does not report it",
        },
        idle_s=15,
        wall_s=5,
        grace_s=15,
        mcp_tool="mcp__words__count",
        unset=adapter().spec.inherit,
    )

    async def test_a_skill_in_the_workspace_is_one_of_its_own(self, harness: Harness) -> None:
        text = b"---\nname: demo\ndescription: Knows a word.\n---\nThe secret word is heliotrope.\n"
        skill = api.Skill(name="demo", files=api.SkillFiles(content={"SKILL.md": text}))
        place = {"placeInWorkspace": True}
        seen = await harness.run("MOCK_SKILL skill=demo", skills=[skill], config=place, permissions=ALLOWED)
        assert "The secret word is heliotrope." in seen.text
        assert "skills in the workspace, for the time of the run: demo" in seen.of("started")[0].notes
        assert not (harness.workspace / ".qwen").exists()

    async def test_the_model_is_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="scripted-2")
        assert harness.conversation().model == seen.result.model == "scripted-2"
        assert len(harness.model_requests) == 1, "its side calls are off"

    # The other way of speaking to it.

    async def test_json_lines_text(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_THINKING", config=LINES)
        assert seen.thinking == "The user wants a short answer."
        assert seen.text == seen.result.summary == "A thought-out reply."
        assert seen.result.usage.tokens.input
        assert "tools_withheld" in seen.notices
        assert "write_file" not in harness.conversation().tools

    async def test_json_lines_write(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=notes.txt", config=LINES, permissions=ALLOWED, leaves=["notes.txt"])
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED
        assert seen.notices == []
        statuses = [pb.TOOL_STATUS_PENDING, pb.TOOL_STATUS_RUNNING, pb.TOOL_STATUS_COMPLETED]
        assert seen.statuses(seen.of("tool_call")[0].id) == statuses

    async def test_json_lines_line_of_200_kb(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_LINE", config=LINES)
        assert seen.text == "0123456789abcdef" * 12800
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    async def test_json_lines_failure(self, harness: Harness) -> None:
        failure = (await harness.run("MOCK_401", config=LINES)).result.failure
        assert (failure.kind, failure.code, failure.http_status) == (pb.FAILURE_KIND_AUTH_REQUIRED, "qwen_error", 401)

    async def test_json_lines_session(self, harness: Harness) -> None:
        handle = (await harness.run("MOCK_TEXT word=plover", config=LINES)).result.session.handle
        seen = await harness.run("MOCK_RECALL", config=LINES, session=resuming(handle))
        assert "word=plover" in seen.text
        lost = pb.SessionHandle(adapter="qwen", native_id=self.recipe.unknown_session)
        seen = await harness.run("MOCK_RECALL", config=LINES, session=resuming(lost))
        assert seen.of("attempt_ended")[0].failure.kind == pb.FAILURE_KIND_SESSION_LOST
        assert seen.result.outcome == pb.OUTCOME_SUCCEEDED

    async def test_json_lines_cancel(self, harness: Harness) -> None:
        react = when(lambda event: bool(event.text.delta), lambda stream: stream.cancel(grace_s=10))
        seen = await harness.run("MOCK_STALL_MID", config=LINES, react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
