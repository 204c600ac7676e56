"""Cancel: it stops the agent, answers with the result, and can be repeated."""

import asyncio

from dragoman.conformance.check import check, expect
from dragoman.conformance.kit import Kit, expect_reason, has_stopped, refusal, until_ready, within
from dragoman.conformance.streams import Stream, last
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

_PATIENCE_S = 5.0


async def _hanging(kit: Kit, *steps: str) -> tuple[api.ExecuteRequest, Stream]:
    # A real agent cannot be had to ignore signals.
    request = kit.request(*steps, "say=ready", "hang", model="" if "deaf" in steps else "MOCK_STALL_MID")
    stream = kit.execute(request)
    await until_ready(kit, stream, request)
    return request, stream


@check("cancel.stops")
async def stops(kit: Kit) -> None:
    """Cancel an agent that holds a lock, and look whether the lock is free once Cancel answers."""
    lock = kit.path("lock")
    request, stream = await _hanging(kit, f"hold={lock}")
    await kit.cancel(request.run_id)
    is_stopped = await has_stopped(kit, request, lock, 0.5 * kit.setup.slowness)
    expect(is_stopped, "the agent still runs after Cancel has answered")
    await stream.rest()


@check("cancel.outcome")
async def outcome(kit: Kit) -> None:
    """Compare the answer with the result."""
    request, stream = await _hanging(kit)
    answer = await kit.cancel(request.run_id)
    await stream.rest()
    expect(stream.result.outcome == pb.OUTCOME_CANCELLED, "the result of a cancelled run is not CANCELLED")
    expect(answer.outcome == stream.result.outcome, "Cancel answers another outcome than the result has")
    due = last(stream).sequence
    expect(answer.result_sequence == due, f"result_sequence is {answer.result_sequence}, not {due}")


@check("cancel.confirmed")
async def confirmed(kit: Kit) -> None:
    """Look whether the end of all processes is confirmed."""
    request, stream = await _hanging(kit)
    answer = await kit.cancel(request.run_id)
    await stream.rest()
    has_process = any(state.HasField("pid") for state in stream.of("state"))
    is_set = answer.HasField("tree_confirmed_dead")
    expect(is_set == stream.result.HasField("tree_confirmed_dead"), "answer and result differ in tree_confirmed_dead")
    expect(answer.tree_confirmed_dead or not (has_process or is_set), "the end of the processes is not confirmed")


@check("cancel.idempotent")
async def idempotent(kit: Kit) -> None:
    """Cancel twice."""
    request, stream = await _hanging(kit)
    first = await kit.cancel(request.run_id)
    second = await kit.cancel(request.run_id)
    await stream.rest()
    expect(first == second, "a second Cancel answers differently")


@check("cancel.finished")
async def finished(kit: Kit) -> None:
    """Cancel a run that has ended."""
    request = kit.request("say=hello", model="MOCK_TEXT")
    stream = await kit.run(request)
    answer = await kit.cancel(request.run_id)
    expect(answer.outcome == stream.result.outcome, "Cancel of a finished run does not answer its actual outcome")


@check("cancel.unknown")
async def unknown(kit: Kit) -> None:
    """Cancel a run that never was."""
    expect_reason(await refusal(kit.cancel("conformance-no-such-run")), Reason.RUN_NOT_FOUND)


@check("cancel.grace-zero")
async def grace_zero(kit: Kit) -> None:
    """Cancel an agent that ignores signals, without grace."""
    request, stream = await _hanging(kit, "deaf")
    async with within(kit, _PATIENCE_S, "Cancel with a grace of zero does not answer in time"):
        await kit.cancel(request.run_id, grace_s=0)
    await stream.rest()


@check("cancel.shorter-grace")
async def shorter_grace(kit: Kit) -> None:
    """Cancel an agent that ignores signals with a long grace, and then without."""
    request, stream = await _hanging(kit, "deaf")
    patient = asyncio.create_task(kit.cancel(request.run_id, grace_s=60))
    try:
        async with within(kit, _PATIENCE_S, "a later Cancel with a grace of zero does not shorten the grace"):
            await stream.until(lambda event: event.state.phase == pb.RUN_PHASE_CANCELLING or event.HasField("result"))
            await kit.cancel(request.run_id, grace_s=0)
            await patient
    finally:
        patient.cancel()
    await stream.rest()
