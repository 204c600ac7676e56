"""Limits of a run."""

import time

from dragoman.conformance.check import check, expect
from dragoman.conformance.kit import (
    Kit,
    Late,
    expect_failure,
    expect_outcome,
    expect_reason,
    is_duty_refused,
    need,
    need_duty,
    run_in_time,
    seconds,
    within,
)
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_LIMIT_S = 0.5
_PATIENCE_S = 6.0
_KEPT_GRACE_S = 1.0
_COST = "limits.budget.cost"


def _timed_out(limit: str, kind: pb.FailureKind.ValueType, *steps: str, model: str = "") -> None:
    """Register the check that a limit ends an agent that hangs after some steps."""

    @check(f"limits.{limit.replace('_', '-')}")
    async def examine(kit: Kit) -> None:
        if limit == "tool_call" and kit.does(api.DUTY_LIMITS):
            need(kit, pb.FEATURE_TOOL_START)
        request = kit.request(*steps, "hang", model=model)
        getattr(request.limits, limit).CopyFrom(seconds(_LIMIT_S))
        if await is_duty_refused(kit, api.DUTY_LIMITS, request, f"limits.{limit}"):
            return
        stream = await run_in_time(kit, request, _PATIENCE_S, f"a limit of {_LIMIT_S:g} s did not end the run")
        expect_outcome(stream.result, pb.OUTCOME_TIMED_OUT)
        expect_failure(stream.result, kind)


_timed_out("wall", pb.FAILURE_KIND_WALL_TIMEOUT, "say=ready", model="MOCK_STALL")
_timed_out("idle", pb.FAILURE_KIND_IDLE_TIMEOUT, "say=ready", model="MOCK_STALL_MID")
_timed_out("start_up", pb.FAILURE_KIND_START_TIMEOUT)
_timed_out("tool_call", pb.FAILURE_KIND_TOOL_TIMEOUT, "call=conformance")


@check("limits.grace")
async def grace(kit: Kit) -> None:
    """Cancel an agent that ignores signals: it is killed when the grace of its run is over, and not before."""
    request = kit.request("deaf", "say=ready", "hang")
    request.limits.grace.CopyFrom(seconds(_KEPT_GRACE_S))
    if await is_duty_refused(kit, api.DUTY_LIMITS, request, "limits.grace"):
        return
    stream = kit.execute(request)
    await stream.until_text("ready")
    began = time.monotonic()
    try:
        async with within(
            kit, _PATIENCE_S, f"an agent lives on that does not stop in a grace of {_KEPT_GRACE_S:g} s"
        ):
            await kit.cancel(request.run_id)
    except Late:
        await kit.cancel(request.run_id, grace_s=0)
        raise
    passed_s = time.monotonic() - began
    await stream.rest()
    expect(passed_s >= _KEPT_GRACE_S, f"the agent was killed {passed_s:.1f} s into a grace of {_KEPT_GRACE_S:g} s")


@check("limits.output")
async def output(kit: Kit) -> None:
    """Let an agent print more than its limit."""
    request = kit.request("flood=200")
    request.limits.output_bytes = 2000
    if await is_duty_refused(kit, api.DUTY_LIMITS, request, "limits.output_bytes"):
        return
    stream = await kit.run(request)
    size = len(stream.text)
    expect(size <= 4000, f"{size} characters of output at a limit of 2,000 bytes")
    notices = [notice.code for notice in stream.of("notice")]
    expect(notices, "nothing reports that output was discarded")


@check("limits.budget")
async def budget(kit: Kit) -> None:
    """Let an agent call a tool where its budget has none."""
    if kit.does(api.DUTY_BUDGETS):
        need(kit, pb.FEATURE_TOOL_START)
    request = kit.request("call=conformance", "hang", model="MOCK_LOOP")
    request.limits.budget.tool_calls = 0
    if await is_duty_refused(kit, api.DUTY_BUDGETS, request, "limits.budget"):
        return
    stream = await run_in_time(kit, request, _PATIENCE_S, "a budget of no tool calls did not end the run")
    expect_outcome(stream.result, pb.OUTCOME_FAILED)
    expect_failure(stream.result, pb.FAILURE_KIND_BUDGET_EXCEEDED)
    is_retryable = stream.result.failure.retryable
    expect(not is_retryable, "failure.retryable is set, although the next attempt has no more to use")


@check("limits.budget-wrong")
async def budget_wrong(kit: Kit) -> None:
    """Give a cost that is no number, and a cap on cost that is never reported."""
    need_duty(kit, api.DUTY_BUDGETS)
    request = kit.request()
    request.limits.budget.cost = "much"
    expect_reason(await kit.rejected(request), Reason.INVALID_REQUEST, Reason.NOT_SUPPORTED, field_path=_COST)
    if not kit.has(pb.FEATURE_COST):
        request = kit.request()
        request.limits.budget.cost = "1"
        expect_reason(await kit.rejected(request), Reason.NOT_SUPPORTED, field_path=_COST)


@check("limits.shown")
async def shown(kit: Kit) -> None:
    """Look for the limits in effect in `started`."""
    need_duty(kit, api.DUTY_LIMITS)
    request = kit.request("say=hello", model="MOCK_TEXT")
    request.limits.wall.seconds = 60
    stream = await kit.run(request)
    found = stream.of("started")[0].limits.wall.seconds
    expect(0 < found <= 60, f"started.limits.wall is {found} s where 60 s are in effect")
