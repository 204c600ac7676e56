"""Routers that are there for one command only: they go on with the run of a dead router that they are asked for."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.cluster.failover import Failover
from dragoman.router.model.stored import AHEAD, StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.lease_table import LeaseTable
from dragoman.router.storage.run_log import RunLog
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, failure, gone, is_alive, kinds, manifest, routing
from tests.router.test_processes import program
from tests.router.test_takeover import attached

STEPS: tuple[Any, ...] = ("a", {"gate": "g"}, "b", {"end": "SUCCEEDED"})


def passing(folder: Path, *, name: str = "later", **fields: Any) -> Any:
    """Run a router that is there for one command, with the log of the others."""
    named = manifest(folder, "fake")
    fields = {"manifests": (named,), "takes_over": False, "listen": (f"unix:{folder}/{name}.sock",), **fields}
    return routing(config(folder, **fields))


async def killed(folder: Path, *run_ids: str, **fields: Any) -> router_pb2.AdapterEntry:
    """Begin runs in a router that is killed then; return its adapter."""
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)], takes_over=False, **fields) as (process, caller):
        streams = [caller.execute("fake", *STEPS, run_id=run_id) for run_id in run_ids]
        for stream in streams:
            await stream.until("text")
        entry = await caller.entry("fake")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # they are written by then
        process.kill()
        await process.wait()
        for stream in streams:
            await stream.rest_or_error()
    return entry


async def answer(caller: Caller, run_id: str) -> None:
    await caller.adapter.Respond(pb.RespondRequest(run_id=run_id, request_id="g"), timeout=PATIENCE_S)


async def test_who_attaches_goes_on_with_it(folder: Path) -> None:
    entry = await killed(folder, "r")
    async with passing(folder) as (_router, caller):
        summary = (await caller.run("r")).run
        assert not summary.HasField("result")
        (remark,) = summary.remarks
        assert "Attach recovers it" in remark
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest(live_only=True), timeout=PATIENCE_S)
        assert [list(run.remarks) for run in listed.runs] == [[remark]]
        assert is_alive(entry.pid), "to look changes nothing"

        stream = caller.attach("r", 2, hold=True)
        await answer(caller, "r")
        rest = await stream.rest()
        assert [kind for kind in kinds(rest) if kind not in {"replay_done", "heartbeat"}][-2:] == ["text:b", "result"]
        assert rest[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert not (await caller.run("r")).run.remarks


async def test_the_same_request_goes_on_with_it(folder: Path) -> None:
    await killed(folder, "r")
    async with passing(folder) as (_router, caller):
        stream = caller.execute("fake", *STEPS, run_id="r")
        assert kinds(await stream.until("text")) == ["started", "text:a"]
        await answer(caller, "r")
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert (await caller.execute("fake", "other", run_id="r").error()).reason is Reason.RUN_ID_REUSED


async def test_it_is_cancelled_and_others_of_its_process_are_not(folder: Path) -> None:
    entry = await killed(folder, "r", "other")
    async with passing(folder) as (_router, caller):
        answered = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answered.outcome == event_pb2.OUTCOME_CANCELLED
        assert (await caller.run("r")).run.result.outcome == event_pb2.OUTCOME_CANCELLED
    assert is_alive(entry.pid), "it has another run"
    async with passing(folder, takes_over=True) as (_router, caller):
        stream = caller.attach("other", 2, hold=True)
        await answer(caller, "other")
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_where_its_adapter_is_gone_too_it_is_lost_and_no_other_run_is_touched(folder: Path) -> None:
    entry = await killed(folder, "r", "other")
    os.kill(entry.pid, signal.SIGKILL)
    await gone(entry.guard_pid)
    async with passing(folder) as (_router, caller):
        gap, result = [event for event in await caller.attach("r", 2).rest() if not event.HasField("replay_done")]
        assert (gap.gap.from_sequence, gap.gap.to_sequence) == (3, AHEAD + 2)
        assert result.result.outcome == event_pb2.OUTCOME_LOST
        assert (await caller.run("r")).run.result.outcome == event_pb2.OUTCOME_LOST
        assert not (await caller.run("other")).run.HasField("result")


async def test_who_leaves_it_leaves_it_to_the_next(folder: Path) -> None:
    entry = await killed(folder, "r")
    for name in ("first", "second"):
        async with passing(folder, name=name) as (_router, caller):
            stream = caller.attach("r", 0)
            assert kinds(await stream.until("text"))[-1] == "text:a"
            stream.cancel()
        assert is_alive(entry.pid)
    async with passing(folder, takes_over=True) as (_router, caller):
        stream = caller.attach("r", 2, hold=True)
        await answer(caller, "r")
        rest = await stream.rest()
        assert [event.sequence for event in rest if event.sequence] == [3, 4]
        assert rest[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
    await gone(entry.pid)


async def test_who_has_done_with_a_process_leaves_it_to_who_has_a_run_there(folder: Path) -> None:
    entry = await killed(folder, "r", "other")
    async with passing(folder) as (_router, caller):
        stream = caller.attach("r", hold=True)
        await stream.until("text")
        async with passing(folder, name="stays", takes_over=True, idle_after_s=0.2) as (_other_router, stays):
            answered = await stays.adapter.Cancel(pb.CancelRequest(run_id="other"), timeout=PATIENCE_S)
            assert answered.outcome == event_pb2.OUTCOME_CANCELLED
            await stays.until("fake", router_pb2.ADAPTER_STATE_IDLE)
        assert is_alive(entry.pid)
        await answer(caller, "r")
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


@pytest.mark.parametrize("address", ["127.0.0.1:9", "unix:/nowhere/a.sock", ""])
async def test_what_it_cannot_see_it_declares_not_lost(folder: Path, address: str) -> None:
    """Runs at addresses, and of adapters that only the dead router was given, are for a router that stays."""
    await killed(folder, "r")
    if address:
        await _put_at(address, folder)
    manifests = (manifest(folder, "fake"),) if address else ()
    async with passing(folder, manifests=manifests) as (_router, caller):
        assert (await caller.attach("r", 2).error()).reason is Reason.ADAPTER_UNAVAILABLE
        failed = await failure(caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S))
        assert failed.reason is Reason.ADAPTER_UNAVAILABLE
        assert not (await caller.run("r")).run.HasField("result")


async def _put_at(address: str, folder: Path) -> None:
    """Have the run as if its process were at a configured address."""
    with contextlib.closing(sqlite3.connect(folder / "s" / "runs.db")) as connection, connection:
        place = json.dumps({"address": address, "instance_id": "i"})
        assert connection.execute("UPDATE runs SET place = ? WHERE run_id = 'r'", (place,)).rowcount == 1


async def test_a_run_whose_claim_got_no_answer_is_followed_nevertheless(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log had it done, and the connection broke; and another process requested the run meanwhile."""
    take, find, both, finds = LeaseTable.take, RunLog.find, asyncio.Event(), itertools.count(1)

    async def counted(keeping: RunLog, run_id: str) -> StoredRun | None:
        found = await find(keeping, run_id)
        if next(finds) == 2:
            both.set()
        return found

    async def unanswered(leases: LeaseTable, *what: Any, **more: Any) -> StoredRun | None:
        await both.wait()
        taken = await take(leases, *what, **more)
        if taken is not None:
            raise StoreError("the connection broke")
        return taken

    async with passing(folder, name="stays", takes_over=True) as (_router, caller):
        with monkeypatch.context() as patch:
            patch.setattr(Failover, "_look", _nothing)  # it is for who asks to find the run
            await killed(folder, "r")
            patch.setattr(LeaseTable, "take", unanswered)
            patch.setattr(RunLog, "find", counted)
            first, second = caller.attach("r"), caller.attach("r")
            reasons = {(await first.error()).reason, (await second.error()).reason}
        assert reasons == {Reason.RUN_LOG_UNAVAILABLE, Reason.ADAPTER_UNAVAILABLE}
        following = asyncio.ensure_future(attached(caller, "r", 0))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await answer(caller, "r")
        assert (await following)[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_run_is_seen_to_though_who_asked_for_it_went_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def tried(_pool: AdapterPool) -> None:
        asked.set()
        await asyncio.sleep(0.2)  # as where an address is not reached yet

    async with passing(folder, name="stays", takes_over=True, manifests=()) as (_router, caller):
        monkeypatch.setattr(Failover, "_look", _nothing)  # as above
        await killed(folder, "r")
        monkeypatch.setattr(AdapterPool, "tried", tried)
        stream = caller.attach("r")
        await asked.wait()
        stream.cancel()
        assert (await attached(caller, "r", 0))[-1].result.outcome == event_pb2.OUTCOME_LOST


async def _nothing(_takeover: Failover) -> None:
    """Look for no run."""
