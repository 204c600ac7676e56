"""An agent behind HTTP: what all agents must stand, with a small served agent in front of the scripted model.

The ways to answer, and what a service may do wrong, are in ``tests/adapters/http``.
"""

from collections.abc import AsyncIterator

import pytest
from dragoman.adapters.http import adapter
from dragoman.testkit.profiles.agent_profile import AgentProfile
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import PATIENCE_S, TEST_S, Failing, Harness, Recipe, when
from tests.agents.http_agent import HttpAgent, serving
from tests.agents.suite import AgentSuite

pytestmark = [pytest.mark.agents, pytest.mark.timeout(TEST_S)]

NO_MODEL_OF_ITS_OWN = "what is behind an address says so in its own way, or not"
NOT_REPEATED = "a POST may have worked, and is not repeated; the failure says when to try again"

HTTP = Recipe(
    make=adapter,
    billing=pb.BILLING_TYPE_UNSPECIFIED,
    family=AgentProfile(executable="", config=".config"),
    executable="",
    unknown_session="no-such-session",
    lacks=("program", "tools", "shell", "denial", "usage_when_cancelled"),
    auth=api.AUTH_STATE_NOT_NEEDED,
    tested=api.TEST_STATUS_PASS,
    cannot={
        "test_a_failure_that_passes": NOT_REPEATED,
        "test_a_cut_that_passes_leaves_one_answer": NOT_REPEATED,
        "test_a_stream_without_a_finish_reason_is_no_success": NO_MODEL_OF_ITS_OWN,
        "test_an_answer_cut_by_the_output_limit": NO_MODEL_OF_ITS_OWN,
    },
    failures={
        "400": Failing(pb.FAILURE_KIND_INVALID_CONFIG, "http_400", 400),
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
    test_the_kit_examines_it = None  # type: ignore[assignment]  # tests/conformance has it examined

    @pytest.fixture(autouse=True)
    async def agent(self, harness: Harness) -> AsyncIterator[HttpAgent]:
        async with serving(harness.model.url) as (agent, url):
            harness.config = {"url": f"{url}/run", "mode": "stream", "allowedNetworks": ["127.0.0.0/8"]}
            yield agent

    async def test_the_cancel_url_is_called_when_a_run_is_cancelled(self, harness: Harness, agent: HttpAgent) -> None:
        react = when(lambda event: bool(event.text.delta), lambda stream: stream.cancel(grace_s=PATIENCE_S))
        seen = await harness.run("MOCK_STALL_MID", react=react)
        assert seen.result.outcome == pb.OUTCOME_CANCELLED
        assert agent.stopped == [seen.result.session.handle.native_id]
