"""Routers that are killed: their runs continue in the next one, or end as lost; no event comes twice."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.pool import AdapterPool
from dragoman.router.adapters.supervisor import ProcessSupervisor
from dragoman.router.cluster.failover import COMMAND, Failover
from dragoman.router.model.assignment import Dispatched
from dragoman.router.model.stored import AHEAD, StoredRun
from dragoman.router.runs.actor import Run
from dragoman.router.runs.registry import RunRegistry
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.lease_table import LeaseTable
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.router.system import SystemProcesses
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import (
    PATIENCE_S,
    Caller,
    Proxy,
    Stream,
    config,
    failure,
    gone,
    is_alive,
    kinds,
    manifest,
    routing,
)
from tests.router.sidecar import Sidecar, serving
from tests.router.test_processes import program

LEASE_S = 1.0
"""A lease of one that takes nothing from others before it has seen the log for as long as that."""


async def attached(caller: Caller, run_id: str, after: int, **fields: Any) -> list[event_pb2.AgentEvent]:
    """Attach as soon as there is a router that has the run, and return the rest."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await caller.attach(run_id, after, hold=True, **fields).rest()
            except DragomanError as error:
                if error.reason is not Reason.ADAPTER_UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)  # a router that restarts is asked again, as its clients do


async def succeeds(caller: Caller) -> None:
    """Bring the run ``r`` of a killed router to its end, which waits for an answer."""
    following = asyncio.ensure_future(attached(caller, "r", 0))
    await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
    await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
    assert (await following)[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


def without_replay_done(events: list[event_pb2.AgentEvent]) -> list[str]:
    return [kind for kind in kinds(events) if kind != "replay_done"]


async def test_a_run_goes_on_where_its_router_was_killed(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
        before = await stream.until("text")
        entry = await caller.entry("fake")
        process.kill()
        await process.wait()
        await stream.rest_or_error()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        following = asyncio.ensure_future(attached(caller, "r", before[-1].sequence))
        assert (await caller.until("fake", router_pb2.ADAPTER_STATE_READY)).pid == entry.pid
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        rest = await following
        assert without_replay_done(rest) == ["text:b", "result"]
        assert [event.sequence for event in rest if event.sequence] == [3, 4]
        run = (await caller.run("r")).run
        assert (run.result.outcome, run.started_by) == (event_pb2.OUTCOME_SUCCEEDED, f"uid {os.geteuid()}")
        whole = await caller.attach("r").rest()
        assert without_replay_done(whole) == ["started", "text:a", "text:b", "result"]
    await gone(entry.pid)


async def test_a_run_whose_adapter_is_gone_too_is_lost_behind_a_gap(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, run_id="r")
        await stream.until("text")
        entry = await caller.entry("fake")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        process.kill()
        await process.wait()
        os.kill(entry.pid, signal.SIGKILL)
        await gone(entry.guard_pid)
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        rest = await attached(caller, "r", 2)
        (gap, result) = [event for event in rest if event.HasField("gap") or event.HasField("result")]
        assert (gap.gap.from_sequence, gap.gap.to_sequence) == (3, AHEAD + 2)
        assert gap.gap.reason == event_pb2.GAP_REASON_NOT_DURABLE
        assert result.sequence == AHEAD + 3
        assert result.result.outcome == event_pb2.OUTCOME_LOST
        assert result.result.failure.kind == event_pb2.FAILURE_KIND_ADAPTER_LOST


async def test_a_run_of_an_adapter_that_no_router_has_any_more_is_lost(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", {"gate": "g"}, run_id="r").until("started")
        entry = await caller.entry("fake")
        process.kill()
        await process.wait()
    async with routing(config(folder)) as (_router, caller):
        rest = await attached(caller, "r", 1)
        assert rest[-1].result.outcome == event_pb2.OUTCOME_LOST
        assert (await caller.run("r")).run.started_by == f"uid {os.geteuid()}"
        assert "'fake' is not known to this router" in rest[-1].result.failure.message
    os.kill(entry.pid, signal.SIGKILL)
    await gone(entry.guard_pid)


async def test_a_finished_run_is_replayed_after_a_restart_by_the_same_request_or_its_id(folder: Path) -> None:
    named = manifest(folder, "fake")
    steps = ("a", {"flood": [300, 2000]}, {"end": "SUCCEEDED"})
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        first = await caller.execute("fake", *steps, run_id="r").rest()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        again = await caller.execute("fake", *steps, run_id="r").rest()
        assert [event.sequence for event in again] == [event.sequence for event in first]
        assert again == first
        assert (await caller.attach("r", 300).rest())[0].sequence == 301
        assert (await caller.attach("r", 9999).error()).reason is Reason.SEQUENCE_AHEAD
        assert (await caller.execute("fake", "other", run_id="r").error()).reason is Reason.RUN_ID_REUSED
        listed = await caller.router.ListRuns(router_pb2.ListRunsRequest(), timeout=PATIENCE_S)
        assert [run.run_id for run in listed.runs] == ["r"]
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_SUCCEEDED
        respond = pb.RespondRequest(run_id="r", request_id="g")
        assert (await failure(caller.adapter.Respond(respond, timeout=PATIENCE_S))).reason is Reason.REQUEST_NOT_FOUND
        assert (await caller.entry("fake")).state == router_pb2.ADAPTER_STATE_IDLE, "nothing was started for that"


async def test_a_run_that_was_refused_leaves_no_trace(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        stream = caller.execute("fake", {"refuse": "SESSION_BUSY"}, run_id="r")
        await stream.error()
        async with asyncio.timeout(PATIENCE_S):
            while (await caller.router.ListRuns(router_pb2.ListRunsRequest(), timeout=PATIENCE_S)).runs:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.02)
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}, run_id="r").rest())[-1] == "result"


async def test_an_adapter_with_many_runs_is_taken_over_once(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        for number in range(8):
            await caller.execute("fake", "a", {"gate": "g"}, run_id=f"r-{number}").until("text")
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        taken = await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        os.kill(taken.pid, signal.SIGKILL)
        for number in range(8):
            assert (await attached(caller, f"r-{number}", 2))[-1].result.outcome == event_pb2.OUTCOME_LOST
        # One death counts once: eight would be waited for.
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_an_answer_waits_for_a_run_that_is_just_being_taken_over(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        stream = caller.execute("fake", "a", {"ask": "q"}, {"end": "SUCCEEDED"}, run_id="r")
        before = await stream.until("input_request")
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="q"), timeout=PATIENCE_S)
        assert without_replay_done(await attached(caller, "r", before[-1].sequence))[-1] == "result"


async def waiting(caller: Caller, *steps: Any) -> None:
    """Have one run at the adapter, and another that waits for its place."""
    await caller.execute("fake", {"gate": "g"}, run_id="first").until("started")
    assert (await execute_waiting(caller, *steps).next()).state.phase == event_pb2.RUN_PHASE_QUEUED


def execute_waiting(caller: Caller, *steps: Any) -> Stream:
    wait = pb.Admission(longest_wait=duration_pb2.Duration(seconds=60))
    return caller.execute("fake", *steps, run_id="r", admission=wait)


async def test_a_run_that_no_adapter_had_is_lost_and_its_id_may_be_used_again(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)], max_runs={"fake": 1}) as (process, caller):
        await waiting(caller, "a", {"end": "SUCCEEDED"})
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        (gap, result) = [event for event in await attached(caller, "r", 0) if not event.HasField("replay_done")]
        assert gap.gap.reason == event_pb2.GAP_REASON_NOT_DURABLE
        assert (result.result.outcome, result.result.failure.code) == (event_pb2.OUTCOME_LOST, "not_started")
        assert result.result.failure.retryable
        assert result.result.failure.HasField("work_begun")
        assert not result.result.failure.work_begun
        assert (await caller.run("r")).run.result == result.result
        again = await caller.execute("fake", "b", {"end": "SUCCEEDED"}, run_id="r").rest()
        assert kinds(again) == ["started", "text:b", "result"]
        assert [event.sequence for event in again] == [1, 2, 3]
        assert without_replay_done(await caller.attach("r").rest()) == kinds(again)
        assert (await caller.execute("fake", "c", run_id="r").error()).reason is Reason.RUN_ID_REUSED
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        assert without_replay_done(await caller.attach("r").rest()) == kinds(again)


@pytest.mark.parametrize("thief", ["thief", SystemProcesses().own_name() + COMMAND], ids=["router", "living command"])
async def test_a_run_that_its_own_router_takes_back_is_followed_once(folder: Path, thief: str) -> None:
    """Also from a command that lives and did not renew its lease: one that was suspended."""
    sidecar = Sidecar()
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, f"unix:{folder}/a.sock"))
        configured = config(folder, addresses=(f"unix:{folder}/a.sock",), log_lease_s=LEASE_S)
        _, caller = await held.enter_async_context(routing(configured))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        stream = caller.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        database = SqliteDatabase(folder / "s" / "runs.db")
        await database.open()
        await database.execute([("UPDATE runs SET owner = :of, lease_until = 1 WHERE run_id = 'r'", {"of": thief})])
        await stream.rest_or_error()  # this router finds the run without a lease, and begins anew with it
        follower = caller.attach("r", hold=True)
        await follower.until("replay_done")
        assert (await caller.entry("fake")).live_runs == 1
        sidecar.open("g")
        assert kinds(await follower.rest()) == ["text:b", "result"]
        assert without_replay_done(await caller.attach("r").rest()) == ["started", "text:a", "text:b", "result"]
        await database.close()


async def test_an_adapter_whose_run_its_own_router_takes_back_stays_its_own(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        before = await caller.entry("fake")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        database = SqliteDatabase(folder / "s" / "runs.db")
        await database.open()
        await database.execute([("UPDATE runs SET owner = 'thief', lease_until = 0 WHERE run_id = 'r'", {})])
        await database.close()
        await stream.rest_or_error()
        follower = caller.attach("r", 2, hold=True)
        await follower.until("replay_done")
        assert (await caller.entry("fake")).pid == before.pid
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await follower.rest()) == ["result"]
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        assert (await caller.entry("fake")).pid == before.pid
    await gone(before.pid)


async def test_a_run_that_its_own_router_reclaims_after_its_end_ends_as_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar, write, fails = Sidecar(), Store.write, asyncio.Event()

    async def failing(store: Store, *what: Any) -> list[str]:
        if fails.is_set():
            raise StoreError("not now")
        return await write(store, *what)

    monkeypatch.setattr(Store, "write", failing)
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, f"unix:{folder}/a.sock"))
        configured = config(folder, addresses=(f"unix:{folder}/a.sock",), log_lease_s=LEASE_S)
        _, caller = await held.enter_async_context(routing(configured))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        fails.set()
        sidecar.open("g")
        assert kinds(await stream.rest())[-1] == "result"
        sidecar.runs.clear()  # it forgets what is over
        database = SqliteDatabase(folder / "s" / "runs.db")
        await database.open()
        await database.execute([("UPDATE runs SET owner = 'thief', lease_until = 1 WHERE run_id = 'r'", {})])
        async with asyncio.timeout(PATIENCE_S):
            owner = "SELECT owner FROM runs WHERE run_id = 'r'"
            while (await database.fetch(owner, {}))[0][0] == "thief":  # noqa: ASYNC110 - it looks every few seconds
                await asyncio.sleep(0.05)
        fails.clear()
        finished = "SELECT finished_at FROM runs WHERE run_id = 'r'"
        async with asyncio.timeout(PATIENCE_S):
            while (await database.fetch(finished, {}))[0][0] is None:  # noqa: ASYNC110 - it tries again in seconds
                await asyncio.sleep(0.05)
        await database.close()
        assert kinds(await caller.attach("r").rest()) == ["started", "text:a", "result"]
        assert (await caller.run("r")).run.result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_run_that_waits_is_started_by_the_next_router_when_its_own_is_stopped(folder: Path) -> None:
    named, steps = manifest(folder, "fake"), ("a", {"end": "SUCCEEDED"})
    async with program(folder, manifests=[str(named)], max_runs={"fake": 1}, drain_grace_s=0.1) as (process, caller):
        await caller.execute("fake", {"gate": "g"}, run_id="first").until("started")
        stream = execute_waiting(caller, *steps)
        await stream.next()
        process.terminate()
        assert (await stream.error()).reason is Reason.DRAINING
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        assert without_replay_done(await execute_waiting(caller, *steps).rest()) == ["started", "text:a", "result"]
        assert (await caller.run("first")).run.result.outcome == event_pb2.OUTCOME_CANCELLED


async def test_a_run_that_is_lost_after_it_was_found_again_leaves_no_sequence_out(folder: Path) -> None:
    named, steps = manifest(folder, "fake"), ("a", {"gate": "h"})
    async with program(folder, manifests=[str(named)], max_runs={"fake": 1}) as (process, caller):
        await waiting(caller, *steps)
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        stream, first = execute_waiting(caller, *steps), caller.attach("first", 1)
        await stream.until("text")
        await first.until("replay_done")
        os.kill((await caller.entry("fake")).pid, signal.SIGKILL)
        (result,) = [event for event in await stream.rest() if event.sequence]
        assert (result.sequence, result.result.outcome) == (3, event_pb2.OUTCOME_LOST)
        # Nor does one that was found again: its adapter was there to repeat all that was published before.
        (result,) = [event for event in await first.rest() if event.sequence]
        assert (result.sequence, result.result.outcome) == (2, event_pb2.OUTCOME_LOST)


async def test_a_run_that_cannot_be_taken_over_keeps_no_other_from_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        for run_id in ("r-0", "r-1"):
            await caller.execute("fake", "a", {"gate": "g"}, run_id=run_id).until("text")
        process.kill()
        await process.wait()
    take_over = RunRegistry.take_over
    failed: list[str] = []

    def fail_once(runs: RunRegistry, stored: StoredRun, at: Dispatched, host: AdapterBackend) -> Run:
        if not failed:
            failed.append(stored.run_id)
            raise ValueError("what was written of it makes no sense")
        return take_over(runs, stored, at, host)

    monkeypatch.setattr(RunRegistry, "take_over", fail_once)
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        (other,) = {"r-0", "r-1"} - set(failed)
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id=other), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_CANCELLED


async def test_a_run_whose_adapter_cannot_even_be_looked_for_has_an_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: object) -> None:
        raise ValueError("as the test wants")

    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", "a", {"gate": "g"}, run_id="r").until("text")
        process.kill()
        await process.wait()
    monkeypatch.setattr(ProcessSupervisor, "adopt", fail)
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        result = (await attached(caller, "r", 2))[-1].result
        assert (result.outcome, result.failure.code) == (event_pb2.OUTCOME_LOST, "router_failed")


async def test_an_adapter_that_was_taken_over_is_kept_as_long_as_it_has_a_run_and_no_longer(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r").until("text")
        entry = await caller.entry("fake")
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,), idle_after_s=0.2)) as (_router, caller):
        follower = caller.attach("r", 2, hold=True)
        await follower.until("replay_done")
        await caller.adapter.Describe(pb.DescribeRequest(adapter="fake"), timeout=PATIENCE_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gone(entry.pid), 0.6)
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert (await follower.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        await caller.until("fake", router_pb2.ADAPTER_STATE_IDLE)
        assert is_alive(entry.pid), "for what is known here another router may have a run at it"
    os.kill(entry.pid, signal.SIGTERM)  # what its guard does, to which no router is connected any more
    await gone(entry.pid)


async def test_a_run_is_cancelled_though_its_adapter_is_only_being_looked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, adopt, gate = manifest(folder, "fake"), ProcessSupervisor.adopt, asyncio.Event()

    async def late(host: ProcessSupervisor, address: str) -> AdapterInstance | None:
        await gate.wait()
        return await adopt(host, address)

    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", "a", {"gate": "g"}, run_id="r").until("text")
        process.kill()
        await process.wait()
    monkeypatch.setattr(ProcessSupervisor, "adopt", late)
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        cancel = caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        answered, _ = await asyncio.wait([asyncio.ensure_future(cancel.code())], timeout=0.3)
        assert not answered, "it cannot have ended yet"
        gate.set()
        answer = await cancel
        result = (await attached(caller, "r", 0))[-1]
        # The agent's own end, not one that was made up here.
        assert (answer.outcome, answer.result_sequence) == (event_pb2.OUTCOME_CANCELLED, 3)
        assert (result.origin, result.result.subtype) == (event_pb2.EVENT_ORIGIN_AGENT, "")


async def test_a_process_that_is_adopted_late_is_not_listed_as_the_one_that_gets_the_calls(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, adopt, gate = manifest(folder, "fake"), ProcessSupervisor.adopt, asyncio.Event()

    async def late(host: ProcessSupervisor, *where: Any) -> AdapterInstance | None:
        await gate.wait()
        return await adopt(host, *where)

    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", "a", {"gate": "g"}, run_id="r").until("text")
        old = await caller.entry("fake")
        process.kill()
        await process.wait()
    monkeypatch.setattr(ProcessSupervisor, "adopt", late)
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        await caller.execute("fake", {"end": "SUCCEEDED"}).rest()
        present = await caller.entry("fake")
        assert present.pid != old.pid
        gate.set()
        follower = caller.attach("r", hold=True)
        await follower.until("replay_done")
        now = await caller.entry("fake")
        assert (now.pid, now.description) == (present.pid, present.description)
        os.kill(old.pid, signal.SIGKILL)
        assert (await follower.rest())[-1].result.outcome == event_pb2.OUTCOME_LOST
        await gone(old.guard_pid)
        now = await caller.entry("fake")
        assert (now.pid, now.state) == (present.pid, router_pb2.ADAPTER_STATE_READY)


async def test_a_run_goes_on_at_an_address_that_answers_late(folder: Path) -> None:
    sidecar, near = Sidecar(), folder / "near.sock"
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, f"unix:{folder}/far.sock"))
        proxy = Proxy(near, folder / "far.sock")
        await proxy.restore()
        async with program(folder, addresses=[f"unix:{near}"]) as (process, caller):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            await caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r").until("text")
            process.kill()
            await process.wait()
        await proxy.cut()
        async with routing(config(folder, addresses=(f"unix:{near}",))) as (_router, caller):
            assert (await caller.run("r")).run.adapter == "fake"
            await proxy.restore()
            sidecar.open("g")
            assert without_replay_done(await attached(caller, "r", 2)) == ["result"]
            assert (await caller.run("r")).run.result.outcome == event_pb2.OUTCOME_SUCCEEDED
        await proxy.cut()


async def test_a_run_that_yet_another_router_claims_blocks_no_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, adopt, gate = manifest(folder, "fake"), ProcessSupervisor.adopt, asyncio.Event()
    take_over = RunRegistry.take_over
    taken: list[Run] = []

    async def late(host: ProcessSupervisor, address: str) -> AdapterInstance | None:
        await gate.wait()
        return await adopt(host, address)

    def noted(runs: RunRegistry, stored: StoredRun, at: Dispatched, host: AdapterBackend) -> Run:
        taken.append(take_over(runs, stored, at, host))
        return taken[-1]

    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", "a", {"gate": "g"}, run_id="r").until("text")
        entry = await caller.entry("fake")
        process.kill()
        await process.wait()
    monkeypatch.setattr(ProcessSupervisor, "adopt", late)
    monkeypatch.setattr(RunRegistry, "take_over", noted)
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        waits = asyncio.ensure_future(caller.attach("r").rest_or_error())
        cancels = asyncio.ensure_future(failure(caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=99)))
        await asyncio.wait([waits, cancels], timeout=0.3)
        database = SqliteDatabase(folder / "s" / "runs.db")
        await database.open()
        await database.execute([("UPDATE runs SET owner = 'thief', lease_until = 9e12 WHERE run_id = 'r'", {})])
        await database.close()
        taken[0].ledger.changed()  # something about it is to be written
        assert await asyncio.wait_for(waits, PATIENCE_S) is Reason.ADAPTER_UNAVAILABLE
        assert (await asyncio.wait_for(cancels, PATIENCE_S)).reason is Reason.ADAPTER_UNAVAILABLE
        gate.set()
        assert (await caller.attach("r").rest_or_error()) is Reason.ADAPTER_UNAVAILABLE
    os.kill(entry.pid, signal.SIGKILL)  # it waits for the router that has the run now
    await gone(entry.guard_pid)


STEPS: tuple[Any, ...] = ("a", {"gate": "g"}, "b", {"end": "SUCCEEDED"})


async def killed(folder: Path, run_id: str, **fields: Any) -> router_pb2.AdapterEntry:
    """Begin a run in a router that is killed then; return its adapter."""
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)], **fields) as (process, caller):
        stream = caller.execute("fake", *STEPS, run_id=run_id)
        await stream.until("text")
        entry = await caller.entry("fake")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        process.kill()
        await process.wait()
        await stream.rest_or_error()
    return entry


def beside(folder: Path, **fields: Any) -> Any:
    """Run a router with the log of the killed one."""
    fields = {"manifests": (manifest(folder, "fake"),), "listen": (f"unix:{folder}/beside.sock",), **fields}
    return routing(config(folder, **fields))


async def test_a_run_whose_claim_got_no_answer_is_followed_nevertheless(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log had it done, and the connection broke."""
    claim = LeaseTable.claim

    async def unanswered(leases: LeaseTable, *what: Any) -> list[StoredRun]:
        assert await claim(leases, *what) != []
        raise StoreError("the connection broke")

    async with beside(folder) as (_router, caller):
        with monkeypatch.context() as patch:
            patch.setattr(Failover, "_try_to_look", _nothing)  # it is for who asks to find the run
            await killed(folder, "r")
            patch.setattr(LeaseTable, "claim", unanswered)
            assert (await caller.attach("r").error()).reason is Reason.RUN_LOG_UNAVAILABLE
        await succeeds(caller)


async def test_a_run_is_seen_to_though_who_asked_for_it_went_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def tried(_pool: AdapterPool) -> None:
        asked.set()
        await asyncio.sleep(0.2)  # as where an address is not reached yet

    async with beside(folder, manifests=()) as (_router, caller):
        monkeypatch.setattr(Failover, "_try_to_look", _nothing)  # as above
        await killed(folder, "r")
        monkeypatch.setattr(AdapterPool, "tried", tried)
        stream = caller.attach("r")
        await asked.wait()
        stream.cancel()
        assert (await attached(caller, "r", 0))[-1].result.outcome == event_pb2.OUTCOME_LOST


async def _nothing(_takeover: Failover) -> None:
    """Look for no run."""
