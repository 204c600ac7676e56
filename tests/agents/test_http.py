"""An agent behind HTTP: what all agents must stand, with a small served agent in front of the scripted model.

The ways to answer, and what a service may do wrong, are in ``tests/adapters/http``.
"""

from collections.abc import AsyncIterator

import pytest
from dragoman.adapters.http import adapter
from dragoman.testkit.family import AgentFamily
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Bench, Failing, Recipe, when
from tests.agents.http_agent import HttpAgent, serving
from tests.agents.suite import AgentSuite

pytestmark = [pytest.mark.agents, pytest.mark.timeout(180)]

NOT_REPEATED = "a POST may have worked, and is not repeated; the failure says when to try again"

HTTP = Recipe(
    make=adapter,
    family=AgentFamily(executable="", config=".config"),
    executable="",
    unknown_session="no-such-session",
    lacks=("program", "tools", "shell", "denial", "usage_when_cancelled"),
    auth=api.AUTH_STATE_NOT_NEEDED,
    tested=api.TEST_STATUS_PASS,
    cannot={
        "test_a_failure_that_passes": NOT_REPEATED,
        "test_a_cut_that_passes_leaves_one_answer": NOT_REPEATED,
    },
    failures={
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "http_401", 401),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "http_429", 429),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "http_503", 503),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "http_500", 500),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "connection_failed"),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "http_400", 400),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "http_429", 429),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "http_404", 404),
    },
)


class TestHttp(AgentSuite):
    """Everything that all agents must stand."""

    recipe = HTTP

    @pytest.fixture(autouse=True)
    async def agent(self, bench: Bench) -> AsyncIterator[HttpAgent]:
        async with serving(bench.model.url) as (agent, url):
            bench.config = {"url": f"{url}/run", "mode": "stream", "allowedNetworks": ["127.0.0.0/8"]}
            yield agent

    async def test_an_agent_that_is_stopped_is_told(self, bench: Bench, agent: HttpAgent) -> None:
        react = when(lambda event: bool(event.text.delta), lambda stream: stream.cancel(grace_s=5))
        seen = await bench.run("MOCK_STALL_MID", react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
        assert agent.stopped == [seen.result.session.handle.native_id]
