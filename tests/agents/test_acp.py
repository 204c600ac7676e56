"""The adapter for any ACP agent, with real agents that speak the protocol."""

from typing import Any, ClassVar, Final

import pytest
from dragoman.adapters.acp import adapter
from dragoman.testkit.profiles.agent_profile import AgentProfile
from dragoman.testkit.profiles.copilot import COPILOT
from dragoman.testkit.profiles.gemini import GEMINI
from dragoman.testkit.profiles.opencode import OPENCODE
from dragoman.testkit.profiles.qwen import QWEN
from dragoman.v1 import event_pb2 as pb
from msgspec.structs import replace

from tests.agents.conforming import ConformanceTests
from tests.agents.filing import FilingTests
from tests.agents.harness import BIN, TEST_S, Harness, Recipe, answering
from tests.agents.queueing import QueueTests
from tests.agents.sleepers import SleeperTests
from tests.agents.suite import ASKED, AgentSuite

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

CHOSEN: Final = frozenset(
    {
        *("test_text", "test_thinking", "test_failing_command", "test_a_session_goes_on"),
        *(
            "test_a_lost_session_is_begun_anew",
            "test_cancel_while_it_speaks",
        ),
        *("test_cancel_while_it_waits_for_an_answer", "test_no_secret_reaches_an_event_in_pieces"),
        *("test_instructions_and_system_prompt_reach_the_model", "test_a_prompt_of_300_kb"),
        "test_the_model_sees_images",
    }
)
"""The shared tests that say something about the protocol; what an agent is otherwise is its own adapter's matter."""
COMPILED: Final = str(BIN.parent / "compiled")


class AcpSuite(AgentSuite):
    """What the generic adapter must stand with a real agent."""

    async def test_it_writes_with_permission_and_not_without(self, harness: Harness) -> None:
        allow_once = answering("allow_once")
        seen = await harness.run(
            "MOCK_WRITE path=notes.txt", permissions=ASKED, react=allow_once, leaves=["notes.txt"]
        )
        (asked,) = seen.of("input_request")
        assert str(harness.workspace / "notes.txt") in asked.subject.paths
        assert seen.statuses(asked.subject.tool_call_id)[-2:] == [pb.TOOL_STATUS_RUNNING, pb.TOOL_STATUS_COMPLETED]
        (change,) = seen.of("file_change")
        assert change.path == str(harness.workspace / "notes.txt")
        refused = answering("reject_once")
        seen = await harness.run("MOCK_WRITE path=b.txt", permissions=ASKED, react=refused, leaves=["notes.txt"])
        assert len(seen.of("input_request")) == 1
        assert [result.status for result in seen.of("tool_result")] == [pb.TOOL_STATUS_DENIED]

    async def test_an_unattended_write_is_a_refusal(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_WRITE path=notes.txt")
        assert "permission_denied" in seen.notices
        assert seen.of("input_request") == []

    async def test_it_says_what_it_offers(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT")
        (notice,) = [notice for notice in seen.of("notice") if notice.code == "acp_agent_offers"]
        assert "session/load" in notice.message
        assert seen.of("session")[-1].agent_version

    async def test_a_refused_key_is_reported(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_401")
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert seen.result.failure.kind == self.refused_key

    refused_key: ClassVar[pb.FailureKind.ValueType] = pb.FAILURE_KIND_AUTH_REQUIRED


for _name in [name for name in dir(AgentSuite) if name.startswith("test_") and name not in CHOSEN]:
    setattr(AcpSuite, _name, None)


def recipe(family: AgentProfile, *args: str, **fields: Any) -> Recipe:
    """Return how an agent is run by nothing but its command."""
    config = {"command": family.executable, "args": list(args), **fields.pop("config", {})}
    usual: dict[str, Any] = {"failures": {}, "billing": pb.BILLING_TYPE_UNSPECIFIED}
    return Recipe(make=adapter, family=family, executable=family.executable, config=config, **{**usual, **fields})


class TestOpencode(AcpSuite):
    recipe = recipe(
        # By itself it asks for nothing within its directory.
        replace(OPENCODE, environment={**OPENCODE.environment, "OPENCODE_PERMISSION": '{{"edit": "ask"}}'}),
        "acp",
        config={"promptUsage": "lastCall"},
        unknown_session="ses_0000000000000000000000000",
        own_files=[".local/share/opencode", ".local/state/opencode", ".cache/opencode"],
        lacks=["refusal_message", "usage_when_cancelled", "usage"],
    )


class TestCopilot(AcpSuite):
    # With the agent that starts fastest: what these examine is the adapter.
    test_cancel_in_a_tool_leaves_no_survivor_that_hides = (
        SleeperTests.test_cancel_in_a_tool_leaves_no_survivor_that_hides
    )
    test_kill_in_a_tool_leaves_no_survivor_that_hides = SleeperTests.test_kill_in_a_tool_leaves_no_survivor_that_hides
    test_a_daemon_that_hides_is_gone_too = SleeperTests.test_a_daemon_that_hides_is_gone_too
    test_the_model_sees_the_names_of_attachments = FilingTests.test_the_model_sees_the_names_of_attachments
    test_a_tool_reads_an_attachment = FilingTests.test_a_tool_reads_an_attachment
    test_what_a_tool_leaves_is_an_artifact = FilingTests.test_what_a_tool_leaves_is_an_artifact
    test_what_a_tool_writes_is_a_change = FilingTests.test_what_a_tool_writes_is_a_change
    test_a_queued_input_is_another_turn_of_the_run = QueueTests.test_a_queued_input_is_another_turn_of_the_run

    recipe = recipe(
        COPILOT,
        *("--acp", "--no-auto-update", "--disable-builtin-mcps"),
        unknown_session="00000000-0000-4000-8000-000000000000",
        lacks=["refusal_message", "usage_when_cancelled"],
        cannot={
            "test_a_prompt_of_300_kb": "it puts the time before every prompt",
            "test_a_refused_key_is_reported": "it sends errors as its answer",
        },
    )


class TestGemini(AcpSuite):
    recipe = recipe(
        GEMINI,
        "--acp",
        unknown_session="00000000-0000-4000-8000-000000000000",
        cannot={
            "test_thinking": "it breaks its reasoning with marks that only its own adapter takes out",
            "test_failing_command": "it reports neither the exit code of a command nor that it failed",
            "test_a_session_goes_on": "it writes over a session that is younger than a minute",
        },
        lacks=["refusal_message", "usage_when_cancelled", "usage"],
    )


class TestQwen(AcpSuite):
    # As Copilot does not: it reports a failure of its model as one, and takes MCP servers by the protocol.
    test_the_kit_examines_it = ConformanceTests.test_the_kit_examines_it

    recipe = recipe(
        # As its own adapter starts it; by itself it starts a second process, as Gemini CLI does here.
        replace(
            QWEN, environment={**QWEN.environment, "QWEN_CODE_NO_RELAUNCH": "true", "NODE_COMPILE_CACHE": COMPILED}
        ),
        "--acp",
        # By itself a model of its own decides what need not be asked for.
        config={"mode": "default"},
        cannot={"test_the_model_sees_images": "it goes by the names of models, and those that see are not offered"},
        unknown_session="00000000-0000-4000-8000-000000000000",
        lacks=["refusal_message", "usage_when_cancelled", "usage"],
    )
