"""The real Qwen Code through its adapter: what all agents must stand, and what only it does."""

from typing import ClassVar

import pytest
from dragoman.adapters.qwen import adapter
from dragoman.testkit.families.qwen import QWEN
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Failing, Recipe
from tests.agents.suite import AgentSuite

pytestmark = [pytest.mark.agents, pytest.mark.timeout(120)]


class TestQwen(AgentSuite):
    """Everything that all agents must stand."""

    recipe: ClassVar[Recipe] = Recipe(
        make=adapter,
        family=QWEN,
        executable="qwen",
        unknown_session="00000000-0000-4000-8000-000000000000",
        failures={
            "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "acp_error_-32603", 401),
            "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "acp_error_429", 429),
            "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "acp_error_-32603", 500),
            "CUT": Failing(pb.FAILURE_KIND_NETWORK, "acp_error_-32603"),
        },
        lacks=["usage_when_cancelled", "refusal_message"],
        cannot={
            "test_a_cut_that_passes_leaves_one_answer": "it goes on in the same message, and does not tell",
        },
        idle_s=10,
        wall_s=8,
        grace_s=15,
        unset=adapter().inherit,
    )
