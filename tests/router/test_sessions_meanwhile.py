"""Stored sessions of runs that wait for one another, fall back, or continue while a client deletes them."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import SessionId
from dragoman.router.policy.sessions import SessionDecision, SessionRequest, key_of
from dragoman.router.runs.sessions import RunSession
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.session_table import SessionTable
from dragoman.router.storage.store import Store
from dragoman.router.system import SystemClock
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Stream, config, kinds, manifest, routing
from tests.router.store.databases import database, store
from tests.router.test_processes import program
from tests.router.test_sessions import END, REFUSED, SessionHarness, harness, harness_in, run_log

__all__ = ["database", "harness", "run_log", "store"]

TASK: dict[str, Any] = {
    "task_key": "t",
    "agent": pb.Agent(id="a", company_id="c"),
    "workspace": pb.Workspace(cwd="/w"),
}


async def waiting(harness: SessionHarness, run_id: str, *steps: Any, **fields: Any) -> Stream:
    """Start a run that waits until the one before it is over."""
    asked = pb.ExecuteRequest(adapter="fake", run_id=run_id, prompt=json.dumps([*steps, END]), **TASK, **fields)
    asked.admission.longest_wait.FromSeconds(60)
    stream = Stream(harness.caller.adapter.Execute(asked))
    while (await stream.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
        pass
    return stream


@contextlib.asynccontextmanager
async def busy(folder: Path, *steps: Any, **fields: Any) -> AsyncIterator[tuple[SessionHarness, Stream]]:
    """A router that lets one run at once, and a run of the task that goes on until its gate g is open."""
    async with harness_in(folder, max_runs={"fake": 1}, **fields) as harness:
        await harness.run({"set": "s1"})
        first = harness.caller.execute("fake", {"gate": "g"}, *steps, END, **TASK)
        await first.until("started")
        yield harness, first


async def test_runs_that_wait_for_one_another_go_on_with_what_the_one_before_left(folder: Path, run_log: str) -> None:
    async with busy(folder, {"set": "s2"}, {"says": "first"}, run_log=run_log) as (harness, first):
        second = await waiting(harness, "second", {"set": "s3"})
        third = await waiting(harness, "third", config={"sessionCompaction": {"maxSessionRuns": 3}})
        assert (await harness.caller.run("third")).run.session_key.task_key == "t"
        harness.sidecars["fake"].open("g")
        for stream in (first, second, third):
            assert kinds(await stream.rest())[-1] == "result"
        _, goes_on, goes_on_again, begins = harness.sidecars["fake"].requests("Execute")
        assert goes_on.session.handle.native_id == "s1"
        assert (goes_on_again.run_id, goes_on_again.session.handle.native_id) == ("second", "s2")
        assert (begins.session.reason, len(begins.config)) == ("the session reached 3 runs", 0)
        assert "> first" in begins.session.handover


async def test_a_run_that_waits_goes_on_with_nothing_that_was_forgotten_meanwhile(folder: Path) -> None:
    async with busy(folder, {"clear": True}) as (harness, first):
        second = await waiting(harness, "second")
        harness.sidecars["fake"].open("g")
        await first.rest()
        await second.rest()
        assert not harness.sidecars["fake"].requests("Execute")[-1].HasField("session")


async def test_the_log_is_asked_once_for_a_runs_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SessionId] = []
    ask = SessionTable.get

    async def count(sessions: SessionTable, key: SessionId) -> router_pb2.StoredSession | None:
        asked.append(key)
        return await ask(sessions, key)

    async with busy(folder) as (harness, first):
        monkeypatch.setattr(SessionTable, "get", count)
        failed, worked = [{"failed": "UPSTREAM_UNAVAILABLE"}], [{"gate": "h"}, END]
        second = await waiting(harness, "second")
        assert asked == []
        refused = harness.caller.execute("fake", **TASK, session=pb.SessionSelector(resume_run_id="absent"))
        assert (await refused.error()).reason is Reason.RUN_NOT_FOUND, (
            "a caller without a wait gets the refusal at once"
        )
        harness.sidecars["fake"].open("g")
        await first.rest()
        await second.rest()
        asked.clear()
        tried = pb.ExecuteRequest(adapter="fake", prompt=json.dumps({"fake": [failed, worked]}), **TASK)
        stream = Stream(harness.caller.adapter.Execute(tried))
        await stream.until("attempt_ended")
        await stream.until("started")
        assert len(asked) == 1
        again = harness.sidecars["fake"].requests("Execute")[-2:]
        assert [one.session.handle.native_id for one in again] == ["s1", "s1"]
        harness.sidecars["fake"].open("h")
        await stream.rest()


async def test_a_log_that_fails_while_a_run_waits_does_not_lose_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: Any) -> None:
        raise StoreError("the disk is full")

    async with busy(folder) as (harness, first):
        second = await waiting(harness, "second")
        monkeypatch.setattr(SessionTable, "get", fail)
        harness.sidecars["fake"].open("g")
        await first.rest()
        assert kinds(await second.rest())[-1] == "result"
        asked = harness.sidecars["fake"].requests("Execute")[-1]
        assert (asked.session.fresh, asked.session.handle.native_id) == (True, "")
        assert "the disk is full" in asked.session.reason
        assert "starts a new session" in (await harness.caller.run("second")).run.remarks[0]


async def test_a_run_that_waited_at_a_router_that_was_killed_finds_its_session(folder: Path) -> None:
    named = manifest(folder, "fake")
    asked = pb.ExecuteRequest(adapter="fake", run_id="waits", prompt=json.dumps([END]), **TASK)
    asked.admission.longest_wait.FromSeconds(60)
    async with program(folder, manifests=[str(named)], max_runs={"fake": 1}) as (process, caller):
        first = caller.execute("fake", {"gate": "g"}, {"set": "s1"}, END, run_id="first", **TASK)
        await first.until("started")
        stream = Stream(caller.adapter.Execute(asked))
        while (await stream.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
            pass
        await caller.router.ListRuns(router_pb2.ListRunsRequest())  # it is written by then
        process.kill()
        await process.wait()
        await first.rest_or_error()
    async with routing(config(folder, manifests=(named,), max_runs={"fake": 1})) as (_router, caller):
        follower = caller.attach("first", hold=True)
        await follower.until("replay_done")
        again = Stream(caller.adapter.Execute(asked))
        while (await again.next()).state.phase != event_pb2.RUN_PHASE_QUEUED:
            pass
        await caller.adapter.Respond(pb.RespondRequest(run_id="first", request_id="g"), timeout=PATIENCE_S)
        await follower.rest()
        (started,) = [event.started for event in await again.rest() if event.HasField("started")]
        assert started.session_disposition == event_pb2.SESSION_DISPOSITION_RESUME


@pytest.mark.parametrize(
    ("says", "left"),
    [
        ([{"set": "s1"}], []),
        ([{"set": "s2"}], []),  # some agents give a session a new id with each run
        ([{"clear": True}], []),
        ([], []),
        ([{"lost": True}, {"set": "s2"}], ["s2"]),  # it has nothing to do with the one that was deleted
    ],
)
async def test_what_is_deleted_while_a_run_is_in_it_does_not_come_back(
    harness: SessionHarness, says: list[Any], left: list[str]
) -> None:
    await harness.run({"set": "s1"})
    stream = harness.caller.execute("fake", {"gate": "g"}, *says, END, **TASK)
    await stream.until("started")
    assert await harness.delete()
    harness.sidecars["fake"].open("g")
    await stream.rest()
    assert [session.handle.native_id for session in await harness.sessions()] == left


async def test_nor_in_place_of_one_that_was_begun_after_that(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    stream = harness.caller.execute("fake", {"gate": "g"}, {"set": "s1"}, END, **TASK)
    await stream.until("started")
    assert await harness.delete()
    assert not (await harness.run({"set": "s9"})).HasField("session")
    harness.sidecars["fake"].open("g")
    await stream.rest()
    assert [session.handle.native_id for session in await harness.sessions()] == ["s9"]


async def test_a_run_that_begins_anew_after_that_is_kept_though_its_session_has_the_same_id(folder: Path) -> None:
    async with busy(folder, {"set": "s1"}) as (harness, first):
        second = await waiting(harness, "second", {"gate": "h"}, {"set": "s1"})
        assert await harness.delete()
        harness.sidecars["fake"].open("g")
        await first.rest()
        assert await harness.sessions() == []
        harness.sidecars["fake"].open("h")
        started = (await second.rest())[0].started
        assert started.session_disposition == event_pb2.SESSION_DISPOSITION_NEW
        assert [session.handle.native_id for session in await harness.sessions()] == ["s1"]


async def test_what_one_of_two_runs_forgets_the_other_does_not_bring_back(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    stream = harness.caller.execute("fake", {"gate": "g"}, {"set": "s1"}, END, **TASK)
    await stream.until("started")
    assert (await harness.run({"clear": True})).session.handle.native_id == "s1"
    assert await harness.sessions() == []
    harness.sidecars["fake"].open("g")
    await stream.rest()
    assert await harness.sessions() == []


async def test_a_stand_in_says_why_it_begins_anew_and_keeps_its_own_conversation(harness: SessionHarness) -> None:
    own = [{"set": "o1"}, {"says": "own"}]
    await harness.run(*own, adapter="other")
    await harness.run(*own, adapter="other")
    fails, works = [{"failed": "AUTH_REQUIRED"}], [{"set": "o9"}, END]
    for was_asked in (True, False):  # the second time it is kept from runs
        asked = pb.ExecuteRequest(adapter="fake", prompt=json.dumps({"fake": [fails], "other": [works]}), **TASK)
        asked.fallback.adapters.append("other")
        asked.fallback.on.append(event_pb2.FAILURE_KIND_AUTH_REQUIRED)
        events = await Stream(harness.caller.adapter.Execute(asked)).rest()
        assert ("attempt_ended" in kinds(events)) == was_asked
        started = [event.started for event in events if event.HasField("started")][-1]
        assert (started.adapter, started.session_disposition) == ("other", REFUSED)
        assert "the run fell back from 'fake'" in started.session_reason
    assert (await harness.run(adapter="other")).session.handle.native_id == "o1"


async def test_what_is_deleted_at_another_router_does_not_come_back_either(store: Store) -> None:
    key = SessionId("c", "a", "fake", "t")
    handle = event_pb2.SessionHandle(native_id="s1")
    await store.sessions.put(key, router_pb2.StoredSession(adapter="fake", handle=handle), 1.0)
    record = RunRecord(run_id="r", adapter="fake", accepted_at=0.0, session_key=key_of(key))
    session = RunSession(record, store, SystemClock(), lambda *_remark: None)
    session.go_on_with(SessionRequest(stored_key=key, store_under=key, choice=SessionDecision(handle)))
    started = event_pb2.Started(session_disposition=event_pb2.SESSION_DISPOSITION_RESUME)
    await session.hear(event_pb2.AgentEvent(started=started))
    await store.sessions.delete(key)
    for native_id in ("s1", "s2"):
        left = event_pb2.SessionUpdate(
            change=event_pb2.SESSION_CHANGE_SET, handle=event_pb2.SessionHandle(native_id=native_id)
        )
        await session.hear(event_pb2.AgentEvent(result=event_pb2.Result(session=left)))
        assert await store.sessions.get(key) is None
