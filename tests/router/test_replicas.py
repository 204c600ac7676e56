"""Two routers of one run log: whichever is asked, the answer is that of the run."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.protocol.server import Context
from dragoman.router.app import Router
from dragoman.router.cluster.forwarding import HOP
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.postgres import PostgresDatabase
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.router.storage.store import Store
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf import duration_pb2

from tests.router.harness import (
    PATIENCE_S,
    Caller,
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
from tests.router.store.databases import new_postgres
from tests.router.test_processes import program
from tests.router.test_takeover import execute_waiting, waiting


@dataclass
class RouterPair:
    """Two routers; ``mine`` has the adapter's run, ``other`` is asked about it."""

    mine: Caller
    other: Caller
    sidecar: Sidecar


@pytest.fixture(params=["sqlite", "postgres"])
def run_log(request: pytest.FixtureRequest) -> str:
    """Where both keep their runs."""
    return new_postgres(request) if request.param == "postgres" else ""


@pytest.fixture
async def pair(folder: Path, run_log: str) -> AsyncIterator[RouterPair]:
    sidecar = Sidecar(features=(event_pb2.FEATURE_PROMPT, event_pb2.FEATURE_QUEUE, event_pb2.FEATURE_UPDATE_MODEL))
    address = f"unix:{folder}/a.sock"
    common: dict[str, Any] = {"addresses": (address,), "run_log": run_log}
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, address))
        _, mine = await held.enter_async_context(routing(config(folder, **common)))
        there = config(folder, listen=(f"unix:{folder}/o.sock",), **{**common, "addresses": ()})
        _, other = await held.enter_async_context(routing(there))
        await mine.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield RouterPair(mine, other, sidecar)


async def test_a_live_run_is_followed_at_any_router_from_anywhere(pair: RouterPair) -> None:
    stream = pair.mine.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
    await stream.until("text")
    whole, rest = pair.other.attach("r"), pair.other.attach("r", 1)
    await whole.until("replay_done")
    await rest.until("replay_done")
    pair.sidecar.open("g")
    assert kinds(await whole.rest()) == kinds(await rest.rest()) == ["text:b", "result"]
    assert kinds(await stream.rest()) == ["text:b", "result"]


async def test_any_router_replays_a_finished_run(pair: RouterPair) -> None:
    durable_events = await pair.mine.execute("fake", "a", {"end": "SUCCEEDED"}, run_id="r").rest()
    await pair.mine.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
    assert await pair.other.attach("r").rest() == durable_events
    assert (await pair.other.run("r")).run.result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_run_that_is_removed_while_it_is_read_does_not_end_as_if_it_were_whole(
    pair: RouterPair, folder: Path, run_log: str
) -> None:
    await pair.mine.execute("fake", "a", {"end": "SUCCEEDED"}, run_id="r").rest()
    await pair.mine.router.ListRuns(router_pb2.ListRunsRequest())
    database = PostgresDatabase(run_log) if run_log else SqliteDatabase(folder / "s" / "runs.db")
    await database.open()
    await database.execute([("DELETE FROM events WHERE run_id = 'r'", {})])
    await database.close()
    assert (await pair.other.attach("r").error()).reason is Reason.RUN_NOT_FOUND


async def test_the_same_request_joins_its_run_at_another_router(pair: RouterPair) -> None:
    steps = ("a", {"gate": "g"}, {"end": "SUCCEEDED"})
    stream = pair.mine.execute("fake", *steps, run_id="r")
    await stream.until("text")
    joined = pair.other.execute("fake", *steps, run_id="r")
    assert kinds(await joined.until("text")) == ["started", "text:a"]
    assert (await pair.other.execute("fake", "b", run_id="r").error()).reason is Reason.RUN_ID_REUSED
    pair.sidecar.open("g")
    assert kinds(await joined.rest())[-1] == "result"
    assert len(pair.sidecar.requests("Execute")) == 1


async def test_a_run_is_cancelled_at_another_router(pair: RouterPair) -> None:
    stream = pair.mine.execute("fake", "a", run_id="r")
    await stream.until("text")
    answer = await pair.other.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
    assert answer.outcome == event_pb2.OUTCOME_CANCELLED
    assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_CANCELLED


async def test_an_input_goes_to_the_router_that_has_the_run(pair: RouterPair) -> None:
    steps = ("a", {"gate": "g"}, {"took input": "i"}, {"end": "SUCCEEDED"})
    stream = pair.mine.execute("fake", *steps, run_id="r")
    await stream.until("text")
    request = pb.SendRequest(run_id="r", input_id="i", text="more")
    answer = await pair.other.adapter.Send(request, timeout=PATIENCE_S)
    (accepted,) = [event for event in await stream.until("input_accepted") if event.HasField("input_accepted")]
    assert accepted.sequence == answer.sequence
    pair.sidecar.open("g")
    await stream.rest()
    assert (await pair.other.adapter.Send(request, timeout=PATIENCE_S)).sequence == answer.sequence


async def test_a_call_that_a_router_forwarded_is_not_forwarded_again(pair: RouterPair) -> None:
    stream = pair.mine.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
    await stream.until("text")
    forwarded = ((HOP, "1"),)  # as a router does whose entry for the run is old
    cancel = pair.other.adapter.Cancel(pb.CancelRequest(run_id="r"), metadata=forwarded, timeout=PATIENCE_S)
    refused = await failure(cancel)
    assert refused.reason is Reason.ADAPTER_UNAVAILABLE
    assert "is owned by another router" in refused.message
    pair.sidecar.open("g")
    assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_question_is_answered_at_another_router_once(pair: RouterPair) -> None:
    stream = pair.mine.execute("fake", {"ask": "q"}, {"end": "SUCCEEDED"}, run_id="r")
    await stream.until("input_request")
    asked = pb.RespondRequest(run_id="r", request_id="q")
    await pair.other.adapter.Respond(asked, timeout=PATIENCE_S)
    assert kinds(await stream.rest())[-1] == "result"
    await pair.mine.router.ListRuns(router_pb2.ListRunsRequest())
    again = await pair.other.adapter.Respond(asked, timeout=PATIENCE_S)
    assert again.sequence == 3, "the same again is fine"
    asked.answer.text = "another"
    late = await failure(pair.other.adapter.Respond(asked, timeout=PATIENCE_S))
    assert late.reason is Reason.ALREADY_RESOLVED


async def test_what_another_router_has_not_written_yet_is_reported_of_its_run(
    pair: RouterPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_store: Store, *_what: Any) -> list[str]:
        raise StoreError("not now")

    stream = pair.mine.execute("fake", "a", {"gate": "g"}, {"ask": "q"}, {"end": "SUCCEEDED"}, run_id="r")
    await stream.until("text")
    await pair.mine.router.ListRuns(router_pb2.ListRunsRequest())
    monkeypatch.setattr(Store, "write", fails)
    pair.sidecar.open("g")
    await stream.until("input_request")
    assert [asked.id for asked in (await pair.other.run("r")).pending_requests] == ["q"]
    monkeypatch.undo()
    pair.sidecar.open("q")
    await stream.rest()


async def test_each_outage_of_the_log_is_reported(pair: RouterPair, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_store: Store, *_what: Any) -> list[str]:
        raise StoreError("not now")

    async def until_notice(code: str) -> None:
        while (await stream.until("notice"))[-1].notice.code != code:
            pass

    steps = ({"gate": "0"}, "a", {"gate": "1"}, "b", {"gate": "2"})
    stream = pair.mine.execute("fake", *steps, run_id="r")
    await stream.until("started")
    for outage in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", fails)
            pair.sidecar.open(str(outage))
            await until_notice("log_unavailable")
        await until_notice("log_recovered")
    remarks = (await pair.mine.run("r")).run.remarks
    assert len(remarks) == 2, "counted, not listed again"


async def test_a_router_that_is_killed_moves_nothing_twice(folder: Path, run_log: str) -> None:
    named = manifest(folder, "fake")
    async with contextlib.AsyncExitStack() as held:
        # Seen to be dead, it is not waited for; with a short lease it could be taken for dead while it lives.
        process, mine = await held.enter_async_context(program(folder, manifests=[str(named)], run_log=run_log))
        there = config(folder, listen=(f"unix:{folder}/o.sock",), manifests=(named,), run_log=run_log)
        _, other = await held.enter_async_context(routing(there))
        stream = mine.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
        before = await stream.until("text")
        entry = await mine.entry("fake")
        process.kill()
        await process.wait()
        async with asyncio.timeout(PATIENCE_S):
            while (await other.entry("fake")).pid != entry.pid:  # noqa: ASYNC110 - it looks every few seconds
                await asyncio.sleep(0.05)
        follower = other.attach("r", before[-1].sequence, hold=True)
        await follower.until("replay_done")
        await other.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await follower.rest()) == ["text:b", "result"]
        assert kinds(await other.attach("r").rest()) == ["started", "text:a", "text:b", "result"]


async def test_a_run_that_another_router_claimed_continues_there(
    pair: RouterPair, folder: Path, run_log: str
) -> None:
    stream = pair.mine.execute("fake", "a", {"gate": "g"}, "b", {"gate": "h"}, run_id="r")
    await stream.until("text")
    await pair.mine.router.ListRuns(router_pb2.ListRunsRequest())
    database = PostgresDatabase(run_log) if run_log else SqliteDatabase(folder / "s" / "runs.db")
    await database.open()
    await database.execute([("UPDATE runs SET owner = 'thief', lease_until = 9e12 WHERE run_id = 'r'", {})])
    await database.close()
    await pair.mine.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
    await stream.rest_or_error()
    async with asyncio.timeout(PATIENCE_S):
        # There is no event for it: this router no longer owns the run, and sends callers to its owner.
        while (await pair.mine.attach("r").rest_or_error()) is not Reason.ADAPTER_UNAVAILABLE:  # noqa: ASYNC110 - as said
            await asyncio.sleep(0.05)


PATIENT = pb.Admission(longest_wait=duration_pb2.Duration(seconds=60))
TASK: dict[str, Any] = {"task_key": "t", "agent": pb.Agent(id="a", company_id="c")}


@contextlib.asynccontextmanager
async def crowded(folder: Path, run_log: str, *sidecars: Sidecar) -> AsyncIterator[tuple[Caller, Caller]]:
    """Two routers that reach the same adapters, each of which has one place at the first."""
    addresses = tuple(f"unix:{folder}/{sidecar.type}.sock" for sidecar in sidecars)
    async with contextlib.AsyncExitStack() as held:
        for sidecar, address in zip(sidecars, addresses, strict=True):
            await held.enter_async_context(serving(sidecar, address))
        common: dict[str, Any] = {"addresses": addresses, "run_log": run_log}
        places = {sidecar.type: 1 for sidecar in sidecars}
        _, mine = await held.enter_async_context(routing(config(folder, max_runs=places, **common)))
        there = config(folder, listen=(f"unix:{folder}/o.sock",), **common)
        _, other = await held.enter_async_context(routing(there))
        for sidecar in sidecars:
            await mine.until(sidecar.type, router_pb2.ADAPTER_STATE_READY)
            await other.until(sidecar.type, router_pb2.ADAPTER_STATE_READY)
        yield mine, other


@contextlib.asynccontextmanager
async def beside_its_owner(folder: Path, sidecar: Sidecar) -> AsyncIterator[tuple[Caller, Router, Caller]]:
    """Yield a caller at the router that alone has the sidecar, and another router with a caller there."""
    address = f"unix:{folder}/a.sock"
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, address))
        _, mine = await held.enter_async_context(routing(config(folder, addresses=(address,))))
        there = config(folder, listen=(f"unix:{folder}/o.sock",))
        router, other = await held.enter_async_context(routing(there))
        await mine.until("fake", router_pb2.ADAPTER_STATE_READY)
        yield mine, router, other


async def test_who_holds_a_run_through_a_router_that_ends_is_waited_for(folder: Path) -> None:
    sidecar = Sidecar()
    async with beside_its_owner(folder, sidecar) as (mine, router, other):
        first = mine.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await first.until("text")
        await mine.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        only = other.attach("r", hold=True)
        await only.until("replay_done")
        first.cancel()
        await router.stop(0.0)
        ended = await only.error()
        assert (ended.reason, ended.metadata["last_sequence"]) == (Reason.DRAINING, "2")
        follower = mine.attach("r", 2, hold=True)
        await follower.until("replay_done")
        sidecar.open("g")
        assert (await follower.rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


@contextlib.asynccontextmanager
async def draining_owner(folder: Path, run_log: str) -> AsyncIterator[tuple[RouterPair, Stream]]:
    """A router that drains while it has a run ``r``, and another one."""
    sidecar, address = Sidecar(), f"unix:{folder}/a.sock"
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(sidecar, address))
        there = config(folder, listen=(f"unix:{folder}/o.sock",), run_log=run_log)
        _, other = await held.enter_async_context(routing(there))
        configured = config(folder, addresses=(address,), run_log=run_log)
        router, mine = await held.enter_async_context(routing(configured))
        await mine.until("fake", router_pb2.ADAPTER_STATE_READY)
        first = mine.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
        await first.until("text")
        # For as long as it has this one, the router does not end the streams of the other.
        lasting = mine.execute("fake", "a", {"gate": "last"}, {"end": "SUCCEEDED"})
        await lasting.until("text")
        await mine.router.ListRuns(router_pb2.ListRunsRequest())  # they are written by then
        stopping = asyncio.ensure_future(router.stop(4 * PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while await mine.execute("fake", "x", {"end": "SUCCEEDED"}).rest_or_error() is not Reason.DRAINING:
                pass
        yield RouterPair(mine, other, sidecar), first
        sidecar.open("g")
        sidecar.open("last")
        await stopping


async def test_a_run_whose_router_drains_is_followed_at_another_one(folder: Path, run_log: str) -> None:
    async with draining_owner(folder, run_log) as (pair, first):
        assert (await pair.mine.attach("r").error()).reason is Reason.DRAINING, "there is a better place to ask"
        follower = pair.other.attach("r", hold=True)
        assert "text:a" in kinds(await follower.until("replay_done"))
        pair.sidecar.open("g")
        assert kinds(await follower.rest()) == ["text:b", "result"]
        assert kinds(await first.rest()) == ["text:b", "result"]


async def test_who_asks_for_a_run_whose_router_refuses_as_it_drains_is_asked_to_repeat_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As does a router that ends its streams already, or one of an earlier version."""
    monkeypatch.setattr("dragoman.router.api.adapter_service.came_from_a_router", lambda _context: False)
    async with draining_owner(folder, "") as (pair, _first):
        error = await pair.other.attach("r").error()
        assert error.reason is Reason.ADAPTER_UNAVAILABLE
        assert error.metadata["run_id"] == "r"
        assert error.retry_after_s


async def test_a_process_whose_runs_another_router_took_is_left_to_it(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with routing(config(folder, manifests=(named,), idle_after_s=0.2)) as (_router, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, "b", run_id="r")
        await stream.until("text")
        before = await caller.entry("fake")
        await caller.router.ListRuns(router_pb2.ListRunsRequest())
        database = SqliteDatabase(folder / "s" / "runs.db")
        await database.open()
        await database.execute([("UPDATE runs SET owner = 'thief', lease_until = 9e12 WHERE run_id = 'r'", {})])
        await database.close()
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        await stream.rest_or_error()
        following = caller.execute("fake", "c", {"gate": "g"}, run_id="s")
        await following.until("text")
        after = await caller.entry("fake")
        assert after.pid not in {0, before.pid}
        await caller.adapter.Cancel(pb.CancelRequest(run_id="s"), timeout=PATIENCE_S)
        await caller.until("fake", router_pb2.ADAPTER_STATE_IDLE)
        await gone(after.pid)
        assert is_alive(before.pid), "another router works with it"
    assert is_alive(before.pid)
    assert is_alive(before.guard_pid)
    os.kill(before.pid, signal.SIGTERM)  # what that router would do
    await gone(before.pid)


async def test_a_run_that_waits_for_a_place_is_known_at_any_router(folder: Path, run_log: str) -> None:
    sidecar = Sidecar()
    async with crowded(folder, run_log, sidecar) as (mine, other):
        await mine.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="first").until("started")
        steps = ("a", {"end": "SUCCEEDED"})
        waits = mine.execute("fake", *steps, run_id="r", admission=PATIENT)
        assert (await waits.next()).state.phase == event_pb2.RUN_PHASE_QUEUED
        for router in (mine, other):
            listed = await router.router.ListRuns(router_pb2.ListRunsRequest(live_only=True), timeout=PATIENCE_S)
            assert [run.run_id for run in listed.runs] == ["r", "first"]
            assert (await router.run("r")).run.phase == event_pb2.RUN_PHASE_QUEUED
        joined = other.execute("fake", *steps, run_id="r", admission=PATIENT)
        assert await joined.run_id() == "r"
        refused = await other.execute("fake", "else", run_id="r").error()
        assert refused.reason is Reason.RUN_ID_REUSED
        sidecar.open("g")
        assert kinds(await joined.rest())[-3:] == ["started", "text:a", "result"]
        assert kinds(await waits.rest())[-1] == "result"
        assert len(sidecar.requests("Execute")) == 2


async def test_a_zero_byte_is_refused_or_names_no_run(pair: RouterPair) -> None:
    missing = await failure(pair.mine.run("r\0"))
    assert missing.reason is Reason.RUN_NOT_FOUND
    filters = router_pb2.ListRunsRequest(task_key="t\0")
    assert (await failure(pair.mine.router.ListRuns(filters))).reason is Reason.INVALID_REQUEST
    key = pb.SessionKey(agent_id="a\0")
    asked = router_pb2.GetSessionRequest(key=key, adapter="fake")
    assert (await failure(pair.mine.router.GetSession(asked))).reason is Reason.INVALID_REQUEST
    refused = await pair.mine.execute("fake", session=pb.SessionSelector(key=key)).error()
    assert [violation.path for violation in refused.violations] == ["session.key.agent_id"]


async def test_a_run_that_waits_is_cancelled_at_another_router(folder: Path, run_log: str) -> None:
    sidecar = Sidecar()
    async with crowded(folder, run_log, sidecar) as (mine, other):
        await mine.execute("fake", {"gate": "g"}, run_id="first").until("started")
        waits = mine.execute("fake", "a", run_id="r", admission=PATIENT)
        await waits.next()
        answer = await other.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert answer.outcome == event_pb2.OUTCOME_CANCELLED
        assert (await waits.rest())[-1].result.subtype == "not_started"
        assert len(sidecar.requests("Execute")) == 1


async def test_the_same_request_at_two_routers_at_once_is_one_run(folder: Path, run_log: str) -> None:
    sidecar = Sidecar()
    async with crowded(folder, run_log, sidecar) as callers:
        steps = ("a", {"end": "SUCCEEDED"})
        for number in range(10):
            streams = [caller.execute("fake", *steps, run_id=f"r-{number}") for caller in callers]
            for events in await asyncio.gather(*(stream.rest() for stream in streams)):
                durable_events = [event for event in events if event.sequence]
                assert kinds(durable_events) == ["started", "text:a", "result"]
        assert len(sidecar.requests("Execute")) == 10


@contextlib.asynccontextmanager
async def _after_one_that_was_killed(folder: Path, named: Path, run_log: str) -> AsyncIterator[tuple[Caller, Caller]]:
    """Two routers with addresses of their own: one recovers the runs of a killed one."""
    async with contextlib.AsyncExitStack() as held:
        here = config(folder, listen=(f"unix:{folder}/n.sock",), manifests=(named,), run_log=run_log)
        _, taking = await held.enter_async_context(routing(here))
        there = config(folder, listen=(f"unix:{folder}/o.sock",), manifests=(named,), run_log=run_log)
        _, other = await held.enter_async_context(routing(there))
        await taking.router.ListRuns(router_pb2.ListRunsRequest())  # what it knows by now is written then
        yield taking, other


async def test_a_run_that_says_nothing_is_found_where_it_was_taken_over(folder: Path, run_log: str) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)], run_log=run_log) as (process, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
        last = (await stream.until("text"))[-1].sequence
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        process.kill()
        await process.wait()
    async with _after_one_that_was_killed(folder, named, run_log) as (taking, other):
        follower = taking.attach("r", last, hold=True)
        await follower.until("replay_done")
        await taking.router.ListRuns(router_pb2.ListRunsRequest())
        await other.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await follower.rest()) == ["text:b", "result"]


async def test_a_run_that_no_adapter_had_begins_when_its_request_comes_to_another_router(
    folder: Path, run_log: str
) -> None:
    named, steps = manifest(folder, "fake"), ("a", {"end": "SUCCEEDED"})
    first = {"manifests": [str(named)], "run_log": run_log, "max_runs": {"fake": 1}}
    async with program(folder, **first) as (process, caller):
        await waiting(caller, *steps)
        process.kill()
        await process.wait()
    async with contextlib.AsyncExitStack() as held:
        taking, other = await held.enter_async_context(_after_one_that_was_killed(folder, named, run_log))
        assert (await taking.attach("r").rest())[-1].result.failure.code == "not_started"
        durable_events = [event for event in await execute_waiting(other, *steps).rest() if event.sequence]
        assert kinds(durable_events) == ["started", "text:a", "result"]
        assert (await taking.attach("r").rest())[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_a_run_that_no_adapter_had_begins_when_its_request_is_what_takes_it_over(
    folder: Path, run_log: str
) -> None:
    named, steps = manifest(folder, "fake"), ("a", {"end": "SUCCEEDED"})
    async with contextlib.AsyncExitStack() as held:
        first = {"manifests": [str(named)], "run_log": run_log, "max_runs": {"fake": 1}}
        process, caller = await held.enter_async_context(program(folder, **first))
        there = config(folder, listen=(f"unix:{folder}/o.sock",), manifests=(named,), run_log=run_log)
        _, other = await held.enter_async_context(routing(there))
        await waiting(caller, *steps)
        process.kill()
        await process.wait()
        durable_events = [event for event in await execute_waiting(other, *steps).rest() if event.sequence]
        assert kinds(durable_events) == ["started", "text:a", "result"]


async def test_who_attaches_where_the_run_is_only_just_being_begun_is_sent_to_the_router_that_has_it(
    folder: Path, run_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, begins, gate = Store.write, asyncio.Event(), asyncio.Event()

    async def late(store: Store, events: Any, runs: Any, new: Any) -> list[str]:
        if any(run.router.endswith("o.sock") for run in runs if run.run_id in new):
            begins.set()
            await gate.wait()
        return await write(store, events, runs, new)

    monkeypatch.setattr(Store, "write", late)
    sidecar = Sidecar()
    async with crowded(folder, run_log, sidecar) as (mine, other):
        steps = ("a", {"gate": "g"}, {"end": "SUCCEEDED"})
        second = other.execute("fake", *steps, run_id="r")
        await asyncio.wait_for(begins.wait(), PATIENCE_S)
        last = (await mine.execute("fake", *steps, run_id="r").until("text"))[-1].sequence
        follower = other.attach("r", last, hold=True)
        following = asyncio.ensure_future(follower.until("replay_done"))
        await asyncio.wait([following], timeout=0.3)  # not answered before that router knows whose the run is
        gate.set()
        await following
        sidecar.open("g")
        assert kinds(await follower.rest()) == ["result"]
        assert [event.sequence for event in await second.rest() if event.sequence] == [1, 2, 3]
        assert len(sidecar.requests("Execute")) == 1


async def test_two_adapters_do_not_work_at_one_task_through_two_routers(folder: Path, run_log: str) -> None:
    one, two_ = Sidecar("one"), Sidecar("two")
    async with crowded(folder, run_log, one, two_) as (mine, other):
        first = mine.execute("one", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r", **TASK)
        await first.until("started")
        refused = await other.execute("two", {"end": "SUCCEEDED"}, run_id="s", **TASK).error()
        assert (refused.reason, refused.metadata["run_id"]) == (Reason.SESSION_BUSY, "r")
        assert not two_.requests("Execute")
        assert (await failure(other.run("s"))).reason is Reason.RUN_NOT_FOUND
        one.open("g")
        assert kinds(await first.rest())[-1] == "result"
        # Its end was published just now, perhaps before it was written.
        assert kinds(await other.execute("two", {"end": "SUCCEEDED"}, run_id="s", **TASK).rest())[-1] == "result"


async def test_nor_does_a_run_fall_back_to_another_meanwhile(folder: Path, run_log: str) -> None:
    one, two_ = Sidecar("one"), Sidecar("two")
    async with crowded(folder, run_log, one, two_) as (mine, other):
        first = mine.execute("one", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r", **TASK)
        await first.until("started")
        await mine.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        chain = pb.Fallback(adapters=["two"], on=[event_pb2.FAILURE_KIND_NETWORK], after_side_effects=True)
        failing = other.execute("one", {"failed": "NETWORK"}, run_id="s", fallback=chain, **TASK)
        result = (await failing.rest())[-1].result
        assert "'r' of adapter 'one' is already working on this task" in result.failure.errors[0]
        assert not two_.requests("Execute")


async def test_who_comes_while_the_same_request_is_only_being_written_joins_its_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looked, all_looked = Store.run, [0], asyncio.Event()

    async def slow(store: Store, run_id: str) -> StoredRun | None:
        found = await look(store, run_id)
        looked[0] += 1
        if looked[0] == 3:
            all_looked.set()
        await all_looked.wait()
        return found

    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(serving(Sidecar(), f"unix:{folder}/a.sock"))
        _, caller = await held.enter_async_context(routing(config(folder, addresses=(f"unix:{folder}/a.sock",))))
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        monkeypatch.setattr(Store, "run", slow)
        for stream in [caller.execute("fake", "a", {"end": "SUCCEEDED"}, run_id="r") for _ in range(3)]:
            seen = [kind for kind in kinds(await stream.rest()) if kind != "replay_done"]
            assert seen == ["started", "text:a", "result"]


class Slow(Sidecar):
    """Gets a call for an artifact, and sends no piece of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def ReadArtifact(self, _request: pb.ReadArtifactRequest, _context: Context) -> None:  # noqa: N802
        self.asked.set()
        await asyncio.Event().wait()


async def test_a_forwarded_artifact_ends_with_the_drain_of_the_router_that_was_asked(folder: Path) -> None:
    sidecar = Slow()
    async with beside_its_owner(folder, sidecar) as (mine, router, other):
        stream = mine.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        await mine.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        call = other.adapter.ReadArtifact(pb.ReadArtifactRequest(run_id="r", name="a"), timeout=PATIENCE_S)
        reading = asyncio.ensure_future(failure(call.read()))
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.asked.wait()
        await router.stop(0.0)
        assert (await reading).reason is Reason.DRAINING
        sidecar.open("g")
        await stream.rest()
