"""The real Qwen Code through its adapter: what all agents must stand, and what only it does."""

import json
from typing import ClassVar

import pytest
from dragoman.adapters.qwen import adapter
from dragoman.testkit.profiles.qwen import QWEN
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import TEST_S, Failing, Harness, Recipe
from tests.agents.suite import AgentSuite
from tests.agents.updating import TWO_FILES, decides_about_the_next_action

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]


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
        other_model="scripted-2",
        other_mode="auto-edit",
        seeing_model="qwen3-vl-plus",
        unset=adapter().spec.inherit,
    )

    scenarios = (TWO_FILES,)

    @pytest.mark.proves("another model in mid-run", features=(pb.FEATURE_UPDATE_MODEL,), uses=("shell",))
    async def test_the_next_call_of_the_model_names_another_one(self, harness: Harness) -> None:
        settings = harness.isolation.home / ".qwen/settings.json"
        provider = {"envKey": "OPENAI_API_KEY", "baseUrl": f"{harness.model.url}/v1"}
        models = [{"id": name, "name": name, **provider} for name in ("scripted-1", "scripted-2")]
        text = json.dumps({**json.loads(settings.read_text()), "modelProviders": {"openai": models}})
        settings.write_text(text)
        await super().test_the_next_call_of_the_model_names_another_one(harness)
        left = json.loads(settings.read_text())
        left.pop("$version", None)  # which it writes when it starts
        assert left == json.loads(text), "its user's own choice stays"

    async def test_another_mode_decides_about_the_next_action(self, harness: Harness) -> None:
        await decides_about_the_next_action(harness, "yolo")

    async def test_the_model_is_asked_for(self, harness: Harness) -> None:
        seen = await harness.run("MOCK_TEXT", model="scripted-2")
        assert harness.conversation().model == seen.result.model == "scripted-2"
        assert len(harness.model_requests) == 1, "its side calls are off"
