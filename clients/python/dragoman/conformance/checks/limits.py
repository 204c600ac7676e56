"""Limits of a run."""

import asyncio
import time

from dragoman.conformance.check import Violation, check, expect
from dragoman.conformance.kit import Kit, expect_reason, is_duty_refused, need, need_duty, run_in_time, seconds
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_LIMIT_S = 0.5
_PATIENCE_S = 6.0
_KEPT_GRACE_S = 1.0
_COST = "limits.budget.cost"


async def _timed_out(kit: Kit, limit: str, request: api.ExecuteRequest, kind: pb.FailureKind.ValueType) -> None:
    getattr(request.limits, limit).CopyFrom(seconds(_LIMIT_S))
    if await is_duty_refused(kit, api.DUTY_LIMITS, request, f"limits.{limit}"):
        return
    stream = await run_in_time(kit, request, _PATIENCE_S, f"a limit of {_LIMIT_S:g} s did not end the run")
    result = stream.result
    found = pb.FailureKind.Name(result.failure.kind)
    expect(result.outcome == pb.OUTCOME_TIMED_OUT, f"{pb.Outcome.Name(result.outcome)} instead of TIMED_OUT")
    expect(result.failure.kind == kind, f"{found} instead of {pb.FailureKind.Name(kind)}")


@check("limits.wall")
async def wall(kit: Kit) -> None:
    """Let a run exceed its wall limit."""
    request = kit.request("say=ready", "hang", model="MOCK_STALL")
    await _timed_out(kit, "wall", request, pb.FAILURE_KIND_WALL_TIMEOUT)


@check("limits.idle")
async def idle(kit: Kit) -> None:
    """Let an agent be silent after its first words."""
    request = kit.request("say=ready", "hang", model="MOCK_STALL_MID")
    await _timed_out(kit, "idle", request, pb.FAILURE_KIND_IDLE_TIMEOUT)


@check("limits.start-up")
async def start_up(kit: Kit) -> None:
    """Let an agent be silent from its start."""
    request = kit.request("hang")
    await _timed_out(kit, "start_up", request, pb.FAILURE_KIND_START_TIMEOUT)


@check("limits.tool-call")
async def tool_call(kit: Kit) -> None:
    """Let a tool call last too long."""
    if kit.does(api.DUTY_LIMITS):
        need(kit, pb.FEATURE_TOOL_START)
    request = kit.request("call=conformance", "hang")
    await _timed_out(kit, "tool_call", request, pb.FAILURE_KIND_TOOL_TIMEOUT)


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
        async with asyncio.timeout(_PATIENCE_S * kit.setup.slowness):
            await kit.cancel(request.run_id)
    except TimeoutError:
        await kit.cancel(request.run_id, grace_s=0)
        raise Violation(f"an agent that does not stop lives on after a grace of {_KEPT_GRACE_S:g} s") from None
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
    result = stream.result
    found = pb.FailureKind.Name(result.failure.kind)
    expect(result.outcome == pb.OUTCOME_FAILED, f"{pb.Outcome.Name(result.outcome)} instead of FAILED")
    expect(result.failure.kind == pb.FAILURE_KIND_BUDGET_EXCEEDED, f"{found} instead of BUDGET_EXCEEDED")
    expect(not result.failure.retryable, "failure.retryable is set, although the next attempt has no more to use")


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
