"""The real Codex through its adapter: what all agents must stand, and what only it does."""

import pytest
from dragoman.adapters.codex import adapter
from dragoman.adapters.codex.adapter import INHERITED
from dragoman.testkit.families.codex import CODEX
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Failing, Recipe
from tests.agents.suite import AgentSuite

pytestmark = pytest.mark.agents

RECIPE = Recipe(
    make=adapter,
    family=CODEX,
    executable="codex",
    unknown_session="01a201c2-76cd-7353-a002-92a69ef09150",
    lacks=["usage_when_cancelled"],
    tested=api.TEST_STATUS_PASS,
    unset=INHERITED,
    failures={
        "401": Failing(pb.FAILURE_KIND_AUTH_REQUIRED, "codex_http_connection_failed", 401, retries=True),
        "429": Failing(pb.FAILURE_KIND_RATE_LIMITED, "codex_response_too_many_failed_attempts", 429, retries=True),
        "529": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "codex_server_overloaded"),
        "500": Failing(pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, "codex_internal_server_error", retries=True),
        "CUT": Failing(pb.FAILURE_KIND_NETWORK, "codex_other", retries=True),
        "OVERFLOW": Failing(pb.FAILURE_KIND_CONTEXT_OVERFLOW, "codex_context_window_exceeded"),
        "NO_CREDIT": Failing(pb.FAILURE_KIND_QUOTA_EXCEEDED, "codex_usage_limit_exceeded"),
        "NO_MODEL": Failing(pb.FAILURE_KIND_MODEL_NOT_FOUND, "codex_model_not_found"),
    },
)


class TestCodex(AgentSuite):
    """Everything that all agents must stand."""

    recipe = RECIPE
