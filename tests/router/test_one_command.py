"""Routers that are part of one command: their runs end with them, and they recover none of another router."""

import asyncio
from pathlib import Path

import pytest
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, failure, gone, is_alive, kinds
from tests.router.test_takeover import attached, beside, killed, without_replay_done


@pytest.mark.parametrize("embedded", [True, False], ids=["command", "serve"])
async def test_a_run_of_a_killed_command_is_lost_and_its_adapter_ends_by_itself(folder: Path, embedded: bool) -> None:
    entry = await killed(folder, "r", embedded=True)
    async with beside(folder, embedded=embedded) as (_router, caller):
        result = (await caller.run("r")).run.result
        assert result.outcome == event_pb2.OUTCOME_LOST
        assert "ended with the command" in result.failure.message
        assert without_replay_done(await caller.attach("r", 2).rest()) == ["gap", "result"]
        assert (await caller.entry("fake")).pid != entry.pid, "it gets no new run"
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
    await gone(entry.pid)
    await gone(entry.guard_pid)


async def test_a_run_of_a_command_that_is_killed_meanwhile_is_lost_for_who_attaches(folder: Path) -> None:
    async with beside(folder, embedded=True) as (_router, caller):
        await killed(folder, "r", embedded=True)
        assert (await attached(caller, "r", 2))[-1].result.outcome == event_pb2.OUTCOME_LOST


async def test_a_command_leaves_a_run_to_the_router_that_recovers_it(folder: Path) -> None:
    entry = await killed(folder, "r")
    async with beside(folder, embedded=True) as (_router, caller):
        assert not (await caller.run("r")).run.HasField("result")
        error = await caller.attach("r", 2).error()
        assert error.reason is Reason.ADAPTER_UNAVAILABLE
        assert "'dragoman serve' recovers the run" in error.message
        failed = await failure(caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S))
        assert failed.reason is Reason.ADAPTER_UNAVAILABLE
    assert is_alive(entry.pid)
    async with beside(folder) as (_router, caller):
        following = asyncio.ensure_future(attached(caller, "r", 2))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert (await following)[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
