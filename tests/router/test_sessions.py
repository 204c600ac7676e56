"""Stored sessions, through a router and a scripted adapter, on both kinds of log."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.protocol.limits import MIB
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import SessionId
from dragoman.router.runs.sessions import RunSession
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.session_table import SessionTable
from dragoman.router.storage.store import Store
from dragoman.router.system import SystemClock
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Caller, Stream, config, failure, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.store.databases import database, new_postgres, store
from tests.router.test_processes import program

__all__ = ["database", "store"]

REFUSED = event_pb2.SESSION_DISPOSITION_RESUME_REFUSED
END = {"end": "SUCCEEDED"}


@dataclass
class SessionHarness:
    """A router with the adapters fake and other, and one that asks it."""

    folder: Path
    caller: Caller
    sidecars: dict[str, Sidecar]
    configured: dict[str, Any] = field(default_factory=dict)

    async def run(self, *steps: Any, adapter: str = "fake", cwd: str = "/w", **fields: Any) -> pb.ExecuteRequest:
        """Do a run to its end; return what its adapter was asked."""
        fields.setdefault("task_key", "t")
        agent = pb.Agent(id="a", company_id="c")
        stream = self.caller.execute(adapter, *steps, END, agent=agent, workspace=pb.Workspace(cwd=cwd), **fields)
        self.events = await stream.rest()
        assert kinds(self.events)[-1] == "result"
        asked: pb.ExecuteRequest = self.sidecars[adapter].requests("Execute")[-1]
        return asked

    async def delete(self) -> bool:
        """Delete the session of the task."""
        key = pb.SessionKey(company_id="c", agent_id="a", task_key="t")
        request = router_pb2.DeleteSessionRequest(key=key, adapter="fake")
        return bool((await self.caller.router.DeleteSession(request, timeout=PATIENCE_S)).deleted)

    async def sessions(self, **fields: Any) -> list[router_pb2.StoredSession]:
        """List them."""
        request = router_pb2.ListSessionsRequest(**fields)
        return list((await self.caller.router.ListSessions(request, timeout=PATIENCE_S)).sessions)


@pytest.fixture(params=["sqlite", "postgres"])
def run_log(request: pytest.FixtureRequest) -> str:
    return new_postgres(request) if request.param == "postgres" else ""


@contextlib.asynccontextmanager
async def harness_in(folder: Path, *, features: Any = (), **fields: Any) -> AsyncIterator[SessionHarness]:
    sidecars = {name: Sidecar(name, aliases=[f"{name}_local"], features=features) for name in ("fake", "other")}
    addresses = tuple(f"unix:{folder}/{name}.sock" for name in sidecars)
    async with contextlib.AsyncExitStack() as held:
        for sidecar, address in zip(sidecars.values(), addresses, strict=True):
            await held.enter_async_context(serving(sidecar, address))
        configured = {"addresses": addresses, **fields}
        _, caller = await held.enter_async_context(routing(config(folder, **configured)))
        for name in sidecars:
            await caller.until(name, router_pb2.ADAPTER_STATE_READY)
        yield SessionHarness(folder, caller, sidecars, configured)


@pytest.fixture
async def harness(folder: Path, run_log: str) -> AsyncIterator[SessionHarness]:
    async with harness_in(folder, run_log=run_log) as running:
        yield running


async def test_a_woken_agent_goes_on_with_its_task(harness: SessionHarness) -> None:
    assert not (await harness.run({"set": "s1"}, {"says": "half"}, {"used": 7})).HasField("session")
    asked = await harness.run({"set": "s1"}, {"used": 5})
    assert asked.session.handle.native_id == "s1"
    (session,) = await harness.sessions()
    assert (session.key.company_id, session.key.agent_id, session.key.task_key) == ("c", "a", "t")
    assert (session.adapter, session.runs, session.input_tokens, session.last_summary) == ("fake", 2, 12, "half")
    assert session.last_run_id == asked.run_id
    by_alias = await harness.caller.router.GetSession(
        router_pb2.GetSessionRequest(key=session.key, adapter="fake_local"), timeout=PATIENCE_S
    )
    assert by_alias.session == session
    assert (await harness.caller.run(asked.run_id)).run.session_key == session.key


async def test_the_same_by_a_key_of_ones_own(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    key = pb.SessionKey(company_id="c", agent_id="a", task_key="t")
    asked = await harness.run(task_key="", session=pb.SessionSelector(key=key))
    assert asked.session.handle.native_id == "s1"


async def test_another_agent_task_or_adapter_does_not(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    assert not (await harness.run(task_key="t2")).HasField("session")
    assert not (await harness.run(adapter="other")).HasField("session")
    of_another = pb.SessionSelector(key=pb.SessionKey(agent_id="b"))
    assert not (await harness.run(session=of_another)).HasField("session")
    assert not (await harness.run(task_key="")).HasField("session")
    assert (await harness.run()).session.handle.native_id == "s1", "none of them harmed it"


async def test_another_directory_begins_a_new_one_that_takes_its_place(harness: SessionHarness) -> None:
    (harness.folder / "real").mkdir()
    (harness.folder / "link").symlink_to("real")
    await harness.run({"set": "s1"}, cwd=f"{harness.folder}/real")
    assert (await harness.run(cwd=f"{harness.folder}/link")).session.handle.native_id == "s1"
    asked = await harness.run({"set": "s2"}, cwd="/elsewhere")
    assert asked.session.fresh
    assert asked.session.reason == f"the session belongs to {harness.folder}/real"
    assert f"not being resumed ({asked.session.reason})" in asked.session.handover
    assert harness.events[0].started.session_disposition == REFUSED
    assert harness.events[0].started.session_reason == asked.session.reason
    (session,) = await harness.sessions()
    assert (session.handle.native_id, session.runs) == ("s2", 1)


async def test_what_was_stored_by_an_adapter_of_another_name_is_not_gone_on_with(
    harness: SessionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.run({"set": "s1"})
    monkeypatch.setattr(harness.sidecars["fake"], "type", "renamed")
    monkeypatch.setattr(harness.sidecars["fake"], "aliases", ["fake"])
    await harness.run({"set": "s9"}, cwd="/w")
    monkeypatch.setattr(harness.sidecars["fake"], "type", "fake")
    assert (await harness.run()).session.reason == "the session belongs to renamed"


async def test_clear_forgets(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    await harness.run({"clear": True})
    assert await harness.sessions() == []
    assert not (await harness.run()).HasField("session")


async def test_nothing_is_kept_of_a_run_that_says_nothing(harness: SessionHarness) -> None:
    await harness.run()
    assert await harness.sessions() == []
    await harness.run({"set": "s1"})
    await harness.run()
    (session,) = await harness.sessions()
    assert (session.handle.native_id, session.runs) == ("s1", 2)


async def test_a_lost_session_is_replaced_by_that_of_the_next_attempt(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    await harness.run({"lost": True}, {"set": "s2"})
    (session,) = await harness.sessions()
    assert (session.handle.native_id, session.runs) == ("s2", 1)
    await harness.run({"lost": True})
    assert await harness.sessions() == []


async def test_a_session_that_the_adapter_refuses_is_not_gone_on_with(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    harness.sidecars["fake"].refuses_sessions = True
    await harness.run()
    assert [(one.handle.native_id, one.runs) for one in await harness.sessions()] == [("s1", 1)]
    await harness.run({"set": "s2"})
    assert [(one.handle.native_id, one.runs) for one in await harness.sessions()] == [("s2", 1)]


async def test_a_fresh_one_takes_the_place_and_a_handle_is_the_callers_own(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    assert (await harness.run({"set": "s2"}, session=pb.SessionSelector(fresh=True))).session.fresh
    handle = event_pb2.SessionHandle(adapter="fake", native_id="mine")
    await harness.run({"set": "mine"}, session=pb.SessionSelector(handle=handle))
    assert [session.handle.native_id for session in await harness.sessions()] == ["s2"]


async def test_a_copy_leaves_the_original(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"})
    copied = pb.SessionSelector(key=pb.SessionKey(), fork=True)
    asked = await harness.run({"set": "s2"}, session=copied)
    assert (asked.session.handle.native_id, asked.session.fork) == ("s1", True)
    copied.key.task_key = "t"
    await harness.run({"set": "s3"}, task_key="t2", session=copied)
    stored = {session.key.task_key: session.handle.native_id for session in await harness.sessions()}
    assert stored == {"t": "s1", "t2": "s3"}
    copied.key.task_key = "none"
    asked = await harness.run(session=copied)
    assert (asked.session.fresh, asked.session.fork) == (True, False)


async def test_the_session_of_an_earlier_run(harness: SessionHarness) -> None:
    first = await harness.run({"set": "s1"}, task_key="")
    again = pb.SessionSelector(resume_run_id=first.run_id)
    assert (await harness.run(task_key="", session=again)).session.handle.native_id == "s1"
    nothing = await harness.run(task_key="")
    asked = await harness.run(task_key="", session=pb.SessionSelector(resume_run_id=nothing.run_id))
    assert (asked.session.fresh, asked.session.reason) == (
        True,
        f"run {nothing.run_id} left no session to resume",
    )
    asked = await harness.run(adapter="other", session=again)
    assert asked.session.reason == "the session belongs to fake"
    unknown = harness.caller.execute("fake", session=pb.SessionSelector(resume_run_id="absent"))
    assert (await unknown.error()).reason is Reason.RUN_NOT_FOUND
    live = harness.caller.execute("fake", {"gate": "g"}, END, run_id="live")
    await live.until("started")
    early = harness.caller.execute("fake", session=pb.SessionSelector(resume_run_id="live"))
    assert (await early.error()).reason is Reason.SESSION_BUSY
    harness.sidecars["fake"].open("g")
    await live.rest()


async def test_sessions_and_runs_are_remembered_by_the_next_router(folder: Path, run_log: str) -> None:
    async with harness_in(folder, run_log=run_log) as harness:
        first = await harness.run({"set": "s1"})
    async with harness_in(folder, run_log=run_log) as harness:
        assert (await harness.run()).session.handle.native_id == "s1"
        again = pb.SessionSelector(resume_run_id=first.run_id)
        assert (await harness.run(session=again)).session.handle.native_id == "s1"


async def test_a_session_is_stored_though_the_router_is_killed_in_mid_run(folder: Path) -> None:
    named = manifest(folder, "fake")
    agent = pb.Agent(id="a", company_id="c")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        stream = caller.execute("fake", {"gate": "g"}, {"set": "s1"}, END, run_id="r", agent=agent, task_key="t")
        await stream.until("started")
        process.kill()
        await process.wait()
        await stream.rest_or_error()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        follower = caller.attach("r", 1, hold=True)
        await follower.until("replay_done")
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        await follower.rest()
        listed = await caller.router.ListSessions(router_pb2.ListSessionsRequest(), timeout=PATIENCE_S)
        assert [session.handle.native_id for session in listed.sessions] == ["s1"]


async def test_after_enough_a_new_one_is_begun_with_a_handover(folder: Path) -> None:
    async with harness_in(folder) as harness:
        short = {"sessionCompaction": {"maxSessionRuns": 2}, "key": "kept"}
        first = await harness.run({"set": "s1"}, config=short)
        assert dict(first.config) == {"key": "kept"}
        second = await harness.run({"set": "s1"}, {"says": "almost {{done}}"}, config=short)
        assert second.session.handle.native_id == "s1"
        third = await harness.run({"set": "s2"}, config=short)
        assert (third.session.fresh, third.session.reason) == (True, "the session reached 2 runs")
        assert second.run_id in third.session.handover
        assert "> almost {{done}}" in third.session.handover
        (session,) = await harness.sessions()
        assert (session.handle.native_id, session.runs) == ("s2", 1)


@pytest.mark.parametrize("itself", [False, True])
async def test_an_agent_that_cuts_its_own_context_goes_on_without_end(folder: Path, itself: bool) -> None:
    features = [event_pb2.FEATURE_COMPACTION] if itself else []
    async with harness_in(folder, features=features) as harness:
        await harness.run({"set": "s1"}, {"used": 2_000_000})
        asked = await harness.run()
        assert asked.session.HasField("handle") == itself
        assert ("2,000,000 input tokens" in asked.session.reason) == (not itself)


@pytest.mark.parametrize("features", ["", "FEATURE_COMPACTION"])
async def test_it_is_asked_what_it_can_do_before_its_session_is_replaced(folder: Path, features: str) -> None:
    named = manifest(folder, "fake", env={"SIDECAR_FEATURES": features})
    fields: dict[str, Any] = {"agent": pb.Agent(id="a"), "task_key": "t"}
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        await caller.execute("fake", {"set": "s1"}, {"used": 3_000_000}, END, **fields).rest()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        started = (await caller.execute("fake", END, **fields).rest())[0].started
        assert ("3,000,000 input tokens" in started.session_reason) == (not features)


async def test_a_log_that_fails_keeps_no_run_from_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_arguments: Any) -> None:
        raise StoreError("the disk is full")

    async with harness_in(folder) as harness:
        await harness.run({"set": "s1"})
        with monkeypatch.context() as patch:
            patch.setattr(SessionTable, "get", fail)
            asked = await harness.run({"set": "s2"})
        assert (asked.session.fresh, asked.session.reason) == (
            True,
            "stored sessions are not readable: the disk is full",
        )
        remarks = list((await harness.caller.run(asked.run_id)).run.remarks)
        assert len(remarks) == 2
        assert all("the disk is full" in remark for remark in remarks)
        assert "notice" in kinds(harness.events)
        assert [session.handle.native_id for session in await harness.sessions()] == ["s1"]


async def test_a_session_is_stored_for_the_adapter_that_left_it(store: Store) -> None:
    def message(change: event_pb2.SessionChange.ValueType, native_id: str = "") -> event_pb2.AgentEvent:
        handle = event_pb2.SessionHandle(native_id=native_id) if native_id else None
        result = event_pb2.Result(session=event_pb2.SessionUpdate(change=change, handle=handle))
        return event_pb2.AgentEvent(result=result)

    remarks: list[tuple[str, str]] = []
    key = pb.SessionKey(company_id="c", agent_id="a", task_key="t")
    record = RunRecord(run_id="r", adapter="fake", accepted_at=0.0, session_key=key)
    session = RunSession(record, store, SystemClock(), lambda *remark: remarks.append(remark))
    await session.hear(message(event_pb2.SESSION_CHANGE_SET, "s1"))
    record.adapter = "other"  # it fell back
    session.begin_anew()
    await session.hear(message(event_pb2.SESSION_CHANGE_SET, "o1"))
    other = await store.sessions.get(SessionId("c", "a", "other", "t"))
    assert other is not None
    assert (other.handle.native_id, other.adapter) == ("o1", "other")
    await session.hear(message(event_pb2.SESSION_CHANGE_CLEAR))
    assert [one.handle.native_id for one in await store.sessions.page({}, before=None, size=9)] == ["s1"]
    assert remarks == []


async def test_a_run_that_is_tried_again_counts_once(folder: Path) -> None:
    failed = [{"set": "s1"}, {"used": 7}, {"failed": "UPSTREAM_UNAVAILABLE"}]
    worked = [{"set": "s1"}, {"used": 5}, {"says": "done"}, END]
    async with harness_in(folder) as harness:
        agent = pb.Agent(id="a", company_id="c")
        asked = pb.ExecuteRequest(adapter="fake", task_key="t", agent=agent, workspace=pb.Workspace(cwd="/w"))
        asked.prompt = json.dumps({"fake": [failed, worked]})
        events = await Stream(harness.caller.adapter.Execute(asked)).rest()
        assert kinds(events).count("attempt_ended") == 1
        (session,) = await harness.sessions()
        assert (session.handle.native_id, session.runs, session.input_tokens) == ("s1", 1, 5)
        assert session.last_summary == "done"


async def test_a_session_that_a_failed_attempt_forgot_is_forgotten(folder: Path) -> None:
    failed = [{"clear": True}, {"failed": "UPSTREAM_UNAVAILABLE"}]
    async with harness_in(folder) as harness:
        await harness.run({"set": "s1"})
        agent = pb.Agent(id="a", company_id="c")
        asked = pb.ExecuteRequest(adapter="fake", task_key="t", agent=agent, workspace=pb.Workspace(cwd="/w"))
        asked.prompt = json.dumps({"fake": [failed, [END]]})
        await Stream(harness.caller.adapter.Execute(asked)).rest()
        assert await harness.sessions() == []


async def test_the_same_request_again_is_the_same_run(harness: SessionHarness) -> None:
    await harness.run({"set": "s1"}, run_id="r1")
    await harness.run({"set": "s2"}, run_id="r2")
    await harness.run({"set": "s2"}, run_id="r2")
    assert len(harness.sidecars["fake"].requests("Execute")) == 2, "what the router put into it does not count"


async def test_a_page_of_sessions_with_much_to_keep_ends_early(harness: SessionHarness) -> None:
    for number in range(6):
        await harness.run({"set": f"{number}{'x' * 900_000}"}, task_key=f"t{number}")
    request, found = router_pb2.ListSessionsRequest(), list[str]()
    while not found or request.page_token:
        page = await harness.caller.router.ListSessions(request, timeout=PATIENCE_S)
        assert page.ByteSize() < 4 * MIB, "what a gRPC client accepts by default"
        found += [session.handle.native_id[0] for session in page.sessions]
        request.page_token = page.next_page_token
    assert found == list("543210")


async def test_sessions_are_listed_last_used_first_filtered_and_deleted(harness: SessionHarness) -> None:
    for number in range(5):
        await harness.run({"set": f"s{number}"}, task_key=f"t{number}")
    await harness.run({"set": "s9"}, task_key="t0", adapter="other")
    everything = [session.handle.native_id for session in await harness.sessions()]
    assert everything == ["s9", "s4", "s3", "s2", "s1", "s0"]
    request = router_pb2.ListSessionsRequest(page_size=2)
    paged: list[str] = []
    while True:
        page = await harness.caller.router.ListSessions(request, timeout=PATIENCE_S)
        paged += [session.handle.native_id for session in page.sessions]
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert paged == everything
    assert [one.handle.native_id for one in await harness.sessions(task_key="t0", adapter="fake_local")] == ["s0"]
    assert await harness.sessions(company_id="absent") == []
    assert len(await harness.sessions(agent_id="a", company_id="c")) == 6
    wrong = router_pb2.ListSessionsRequest(page_token="bm9uZQ==")
    assert (await failure(harness.caller.router.ListSessions(wrong))).reason is Reason.INVALID_PAGE_TOKEN

    key = pb.SessionKey(company_id="c", agent_id="a", task_key="t0")
    delete = router_pb2.DeleteSessionRequest(key=key, adapter="fake_local")
    assert (await harness.caller.router.DeleteSession(delete, timeout=PATIENCE_S)).deleted
    assert not (await harness.caller.router.DeleteSession(delete, timeout=PATIENCE_S)).deleted
    router = harness.caller.router
    for call in (
        router.GetSession(router_pb2.GetSessionRequest(key=key)),
        router.DeleteSession(router_pb2.DeleteSessionRequest(key=key)),
    ):
        assert (await failure(call)).reason is Reason.ADAPTER_REQUIRED
    gone = router_pb2.GetSessionRequest(key=key, adapter="fake")
    assert (await failure(harness.caller.router.GetSession(gone))).reason is Reason.SESSION_NOT_FOUND
    assert [one.handle.native_id for one in await harness.sessions(task_key="t0")] == ["s9"]
    assert not (await harness.run(task_key="t0")).HasField("session")
