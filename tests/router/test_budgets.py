"""Budgets at a router: kept for adapters that do not, and for all attempts of a run together."""

import json
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.duties import ALL_DUTIES
from dragoman.protocol.errors import Reason
from dragoman.router.policy.spending import bounded
from dragoman.testkit.streams import check_stream
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import config, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_duties import bare, codes, execute

FEATURES = [event_pb2.FEATURE_TOOL_START, event_pb2.FEATURE_COST, event_pb2.FEATURE_PER_CALL_USAGE]
KEPT_ELSEWHERE = [duty for duty in ALL_DUTIES if duty != pb.DUTY_BUDGETS]


def limits(**budget: Any) -> event_pb2.Limits:
    """Return limits with a budget."""
    return event_pb2.Limits(budget=event_pb2.Budget(**budget))


def steps(*what: Any) -> str:
    """Return a prompt for the sidecar."""
    return json.dumps(list(what))


async def test_a_run_that_exceeds_its_budget_is_cancelled_at_an_adapter_that_keeps_none(folder: Path) -> None:
    async with bare(folder, features=FEATURES, duties=KEPT_ELSEWHERE) as (caller, sidecar):
        prompt = steps({"set": "s"}, {"tool": "1"}, {"tool": "2"}, {"gate": "never"})
        events = await execute(caller, prompt=prompt, limits=limits(tool_calls=1, ask=True)).rest()
        check_stream(events)
        result = events[-1].result
        assert result.outcome == event_pb2.OUTCOME_FAILED
        assert result.failure.kind == event_pb2.FAILURE_KIND_BUDGET_EXCEEDED
        assert result.session.handle.native_id == "s"
        assert codes(events) == ["budget_warning"]
        (got,), (cancelled,) = sidecar.requests("Execute"), sidecar.requests("Cancel")
        assert not got.HasField("limits")
        assert "limits.budget.tool_calls" in cancelled.reason
        sidecar.open("never")


async def test_an_adapter_that_keeps_budgets_gets_it(folder: Path) -> None:
    async with bare(folder, features=FEATURES, duties=ALL_DUTIES) as (caller, sidecar):
        prompt = steps({"tool": "1"}, {"tool": "2"}, {"end": "SUCCEEDED"})
        events = await execute(caller, prompt=prompt, limits=limits(tool_calls=1)).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        (got,) = sidecar.requests("Execute")
        assert got.limits == limits(tool_calls=1)


async def test_a_run_without_a_budget_is_not_watched(folder: Path) -> None:
    async with bare(folder, duties=KEPT_ELSEWHERE) as (caller, sidecar):
        await execute(caller).rest()
        (got,) = sidecar.requests("Execute")
        assert not got.HasField("limits")


async def test_what_the_end_of_a_run_says_alone_is_reported(folder: Path) -> None:
    async with bare(folder, features=FEATURES, duties=KEPT_ELSEWHERE) as (caller, _sidecar):
        prompt = steps({"used": 9}, {"end": "SUCCEEDED"})
        events = await execute(caller, prompt=prompt, limits=limits(input_tokens=5, cost="1")).rest()
        assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert codes(events) == ["budget_at_end", "budget_exceeded", "budget_unknown"]


@pytest.mark.parametrize(
    ("budget", "reason", "path"),
    [
        ({"cost": "1.2.3"}, Reason.INVALID_REQUEST, "limits.budget.cost"),
        ({"ask": True}, Reason.INVALID_REQUEST, "limits.budget"),
        ({"cost": "1"}, Reason.NOT_SUPPORTED, "limits.budget.cost"),
    ],
)
async def test_what_is_wrong_is_refused_before_an_adapter_gets_it(
    folder: Path, budget: dict[str, Any], reason: Reason, path: str
) -> None:
    async with bare(folder, features=[event_pb2.FEATURE_TOOL_START], duties=KEPT_ELSEWHERE) as (caller, sidecar):
        error = await execute(caller, limits=limits(**budget)).error()
        assert error.reason is reason
        assert [one.path for one in error.violations] == [path]
        assert sidecar.requests("Execute") == []


@pytest.mark.parametrize(("cost", "left"), [("2", "0.5"), ("1.5", "")])
async def test_a_later_attempt_gets_what_is_left_and_none_begins_without(folder: Path, cost: str, left: str) -> None:
    first, second = Sidecar("one", features=FEATURES), Sidecar("two", features=FEATURES)
    addresses = (f"unix:{folder}/1.sock", f"unix:{folder}/2.sock")
    async with (
        serving(first, addresses[0]),
        serving(second, addresses[1]),
        routing(config(folder, addresses=addresses)) as (_router, caller),
    ):
        for name in ("one", "two"):
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        fallback = pb.Fallback(adapters=["two"], on=[event_pb2.FAILURE_KIND_AUTH_REQUIRED])
        prompt = steps({"spent": "1"}, {"spent": "0.5"}, {"failed": "AUTH_REQUIRED"})
        fields = {"adapter": "one", "prompt": prompt, "fallback": fallback, "limits": limits(cost=cost, tool_calls=3)}
        events = await execute(caller, **fields).rest()
        check_stream(events)
        assert events[-1].result.failure.kind == event_pb2.FAILURE_KIND_AUTH_REQUIRED
        budgets = [request.limits.budget for request in second.requests("Execute")]
        assert budgets == ([event_pb2.Budget(cost=left, tool_calls=3)] if left else [])


def test_caps_on_cost_in_another_currency_leave_the_others_in_force() -> None:
    own, most = event_pb2.Budget(cost="5", currency="EUR", turns=9), event_pb2.Budget(cost="2", turns=3, tool_calls=7)
    budget, why = bounded(own, [most], None)
    assert budget == event_pb2.Budget(cost="5", currency="EUR", turns=3, tool_calls=7)
    assert "in USD does not lower" in why
