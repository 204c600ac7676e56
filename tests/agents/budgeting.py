"""A budget at work on the real agent: it is stopped at a cap, and its session goes on."""

import pytest
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

from tests.agents.harness import Harness

_NEEDS = (pb.FEATURE_TOOL_START, pb.FEATURE_RESUME)


class BudgetTests:
    """The tests of budgets that all adapters share."""

    @pytest.mark.proves("budget of tool calls", features=_NEEDS, uses=("shell",))
    async def test_an_exceeded_budget_stops_the_agent_and_its_session_goes_on(self, harness: Harness) -> None:
        allowed = pb.Permissions(auto_approve=True)
        capped = pb.Limits(budget=pb.Budget(tool_calls=2))
        capped.grace.seconds = 8
        seen = await harness.run("MOCK_LOOP", permissions=allowed, limits=capped)
        assert seen.result.outcome == pb.OUTCOME_FAILED
        assert seen.result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED
        assert seen.result.counters.tool_calls >= 3
        assert "budget_warning" in seen.notices
        assert seen.result.tree_confirmed_dead
        assert seen.result.session.change == pb.SESSION_CHANGE_SET
        handle = seen.result.session.handle
        again = await harness.run("MOCK_TEXT", session=api.SessionSelector(handle=handle))
        assert again.result.outcome == pb.OUTCOME_SUCCEEDED
        assert again.of("started")[0].session_disposition == pb.SESSION_DISPOSITION_RESUME
