"""How a router keeps its runs: its lease, what it forgets meanwhile, and when it may take those of others."""

import asyncio
from collections.abc import AsyncIterator, Container
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.api.active_agents import ActiveAgents
from dragoman.router.model.run_record import RunRecord
from dragoman.router.model.stored import StoredRun, TaskId
from dragoman.router.runs.exclusion import TaskExclusion
from dragoman.router.storage.agent_table import TOUCH_S
from dragoman.router.storage.database import Database, StoreError
from dragoman.router.storage.lease_table import LeaseTable
from dragoman.router.storage.leases import LEASE_S, StoreHealth
from dragoman.router.storage.logged import RowState
from dragoman.router.storage.retention import RetentionPolicy, RetentionTask
from dragoman.router.storage.run_log import RunLog
from dragoman.router.storage.store import Store
from dragoman.router.system import SystemClock
from dragoman.v1 import router_pb2
from msgspec.structs import replace

from tests.router.harness import PATIENCE_S
from tests.router.store.test_store import KEY, a_run, ended
from tests.router.store.writer_harness import has_begun, written_by
from tests.router.test_sessions import harness_in

KEPT = RetentionPolicy(seconds=100.0, most_bytes=1000)


class SetClock(SystemClock):
    """A clock that a test sets."""

    now = 1000.0

    def time(self) -> float:
        return self.now


class Slow(Store):
    """A store that takes long to delete, fails on demand, and records its calls."""

    fails = False

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.gate = asyncio.Event()
        self.forgetting = asyncio.Event()
        self.renewed: asyncio.Queue[float] = asyncio.Queue()
        self.leases = FailingLeases(database, self)

    async def write(self, events: Any, runs: Any, new: Container[str] = ()) -> list[str]:
        if self.fails:
            raise StoreError("it is not there")
        return await super().write(events, runs, new)

    async def delete_old(self, *, before: float, most_bytes: int) -> int:
        self.forgetting.set()
        await self.gate.wait()
        return await super().delete_old(before=before, most_bytes=most_bytes)

    async def at_task(self, company_id: str, agent_id: str, task_key: str) -> list[object]:  # type: ignore[override]  # never returns
        raise StoreError("it is not there")


class FailingLeases(LeaseTable):
    def __init__(self, database: Database, store: Slow) -> None:
        super().__init__(database)
        self.store = store

    async def renew(self, owner: str, lease_until: float) -> None:
        if self.store.fails:
            raise StoreError("it is not there")
        await super().renew(owner, lease_until)
        self.store.renewed.put_nowait(lease_until)


@pytest.fixture
async def slow(database: Database) -> AsyncIterator[Slow]:
    store = Slow(database)
    await store.open()
    yield store
    await store.close()


async def test_a_lease_is_renewed_however_long_forgetting_takes(slow: Slow) -> None:
    await slow.begin(ended("old", 1.0))
    keeping = RunLog(slow, SystemClock(), "one", kept=KEPT, lease_s=0.03)
    alive = asyncio.ensure_future(keeping.keep_alive())
    async with asyncio.timeout(PATIENCE_S):
        await slow.forgetting.wait()
        leases = [await slow.renewed.get() for _ in range(4)]
    assert leases == sorted(leases)
    assert await slow.run("old") is not None
    slow.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        while await slow.run("old") is not None:
            await slow.renewed.get()
    alive.cancel()
    await asyncio.gather(alive, return_exceptions=True)


async def test_all_that_is_old_is_forgotten_some_at_once(store: Store) -> None:
    clock = SetClock()
    await asyncio.gather(*(store.begin(ended(f"r{number}", number / 10)) for number in range(450)))
    for run in (ended("new", 950.0), a_run("live")):
        await store.begin(run)
    assert await store.delete_old(before=10.0, most_bytes=1000) == 100
    await RetentionTask(store, clock, KEPT).forget()
    assert await store.run("r449") is None
    assert await store.run("new") is not None
    assert await store.run("live") is not None
    assert await store.delete_old(before=900.0, most_bytes=1000) == 0


async def test_sessions_that_no_run_uses_are_forgotten(store: Store) -> None:
    clock = SetClock()
    other = replace(KEY, task_key="other")
    await store.sessions.put(KEY, router_pb2.StoredSession(runs=1), 100.0)
    await store.sessions.put(other, router_pb2.StoredSession(runs=2), 900.0)
    await RetentionTask(store, clock, KEPT).forget()
    assert await store.sessions.get(KEY) is not None, "for ever"
    await RetentionTask(store, clock, replace(KEPT, sessions_s=800.0)).forget()
    assert await store.sessions.get(KEY) is None
    assert await store.sessions.get(other) is not None


async def test_a_task_in_use_keeps_its_agent_though_its_use_is_written_once_a_day(store: Store) -> None:
    clock, task = SetClock(), TaskId("c", "t")
    active = ActiveAgents(RunLog(store, clock, "one", kept=KEPT), clock)
    await store.agents.insert(router_pb2.StoredAgent(name="reviewer", version=1))
    assert await active.set(task, "reviewer")
    retention = RetentionTask(store, clock, replace(KEPT, sessions_s=60.0))
    for _ in range(5):
        clock.now += 0.9 * TOUCH_S
        await retention.forget()
        assert await active.use(task) == "reviewer"
    clock.now += 2 * TOUCH_S + 1.0
    await retention.forget()
    assert await active.use(task) == ""


async def test_a_task_keeps_its_agent_as_long_as_its_sessions(store: Store) -> None:
    clock, task = SetClock(), TaskId("c", "t")
    await store.agents.insert(router_pb2.StoredAgent(name="reviewer", version=1))
    await store.active.put(task, "reviewer", clock.time())
    retention = RetentionTask(store, clock, replace(KEPT, sessions_s=10 * TOUCH_S))
    clock.now += 9 * TOUCH_S
    await retention.forget()
    assert await store.active.get(task) is not None
    clock.now += 2 * TOUCH_S
    await retention.forget()
    assert await store.active.get(task) is None


async def test_sessions_are_forgotten_as_it_was_configured(folder: Path) -> None:
    async with harness_in(folder, log_retain_s=0.0, log_retain_sessions_s=0.01) as harness:
        await harness.run({"set": "s1"})
        async with asyncio.timeout(PATIENCE_S):
            while await harness.sessions():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.05)


async def test_who_comes_back_after_an_outage_lets_others_renew_first(slow: Slow) -> None:
    clock = SetClock()
    keeping = RunLog(slow, clock, "one", kept=KEPT)
    assert not keeping.ownership.health.is_stable(), "it was not there before"

    async def renew(at: float, *, fails: bool = False) -> bool:
        clock.now, slow.fails = at, fails
        assert await keeping.ownership.renew() is not fails
        return keeping.ownership.health.is_stable()

    for at in (985.0, 990.0, 995.0):
        assert not await renew(at), "it is unknown how long the log has been there"
    assert await renew(1000.0)
    assert await renew(1005.0)
    assert not await renew(1010.0, fails=True)
    assert not await renew(1030.0), "the leases of others may have run out meanwhile"
    for at in (1035.0, 1040.0, 1044.0):
        assert not await renew(at)
    assert await renew(1045.0), "by now they are renewed, or theirs is the fault"
    keeping.ownership.health.record_failure()
    assert not keeping.ownership.health.is_stable(), "who looks for runs has seen it fail"


class Unheard(LeaseTable):
    """Leases whose first claim is done, and answered by a broken connection."""

    is_heard = False

    async def claim(self, owner: str, now: float, lease_until: float, of: str = "%") -> list[StoredRun]:
        taken = await super().claim(owner, now, lease_until, of)
        if self.is_heard:
            return taken
        self.is_heard = True
        raise StoreError("the connection broke")


async def test_a_claim_whose_answer_was_lost_is_found_by_the_next(database: Database) -> None:
    store, clock = Store(database), SetClock()
    store.leases = Unheard(database)
    await store.open()
    for run in (a_run("theirs", owner="two"), a_run("mine", owner="one"), ended("over", 1.0)):
        await store.begin(run)
    await store.leases.release("two")
    keeping = RunLog(store, clock, "one", kept=KEPT)
    with pytest.raises(StoreError):
        await keeping.ownership.claim()
    ((taken, former),) = await keeping.ownership.claim()
    assert (taken.run_id, taken.owner, former) == ("theirs", "one", "two")
    assert await keeping.ownership.claim() == []
    await store.close()


@pytest.mark.parametrize("is_new", [True, False])
async def test_just_after_an_outage_or_a_start_only_released_runs_are_claimed(
    database: Database, *, is_new: bool
) -> None:
    store, clock = Store(database), SetClock()
    keeping = RunLog(store, clock, "one", kept=KEPT)
    await keeping.open()
    for run in (a_run("alive", owner="two"), a_run("given-up", owner="three")):
        await store.begin(run)
    await store.leases.release("three")
    if not is_new:
        for _ in range(4):
            await keeping.ownership.renew()
            clock.now += 5.0
        keeping.ownership.health.record_failure()
    assert [run.run_id for run, _former in await keeping.ownership.claim()] == ["given-up"]
    for _ in range(5):
        await keeping.ownership.renew()
        clock.now += 5.0
    assert [run.run_id for run, _former in await keeping.ownership.claim()] == ["alive"], "by now it would be renewed"
    await keeping.close()


@pytest.mark.parametrize("is_written_meanwhile", [False, True])
async def test_a_run_that_is_not_written_yet_and_was_forgotten_is_not_taken_for_a_new_one(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, *, is_written_meanwhile: bool
) -> None:
    keeping = RunLog(slow, SystemClock(), "one", kept=KEPT)
    await keeping.open()
    state = router_pb2.GetRunResponse(run=router_pb2.RunSummary(run_id="r"))
    slow.fails = True
    logged = written_by(keeping.writer, a_run(), snapshot=lambda: replace(a_run(), state=state))
    assert await has_begun(logged)

    async def looked_for(store: Store, run_id: str) -> StoredRun | None:
        found = await Store.run(store, run_id)
        if is_written_meanwhile:
            slow.fails = False
            assert await logged.flushed(PATIENCE_S)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Slow, "run", looked_for)
        with pytest.raises(DragomanError) as caught:
            await keeping.find("r")
    assert caught.value.reason is Reason.RUN_LOG_UNAVAILABLE
    slow.fails = False
    assert await logged.flushed(PATIENCE_S)
    assert await keeping.find("r") is not None
    await keeping.close()


class Contact:
    """A log that is reached, or looked at, at times."""

    def __init__(self) -> None:
        self._clock = SetClock()
        self._health = StoreHealth(self._clock, LEASE_S)

    def record_success(self, at: float) -> None:
        self._clock.now = at
        self._health.record_success()

    def is_stable(self, at: float) -> bool:
        self._clock.now = at
        return self._health.is_stable()


def test_what_was_not_seen_for_long_was_away() -> None:
    contact = Contact()
    for at in (985.0, 990.0, 995.0):
        assert not contact.is_stable(at), "it has just been opened"
        contact.record_success(at)
        assert not contact.is_stable(at)
    contact.record_success(1000.0)
    assert contact.is_stable(1010.0)
    assert not contact.is_stable(1011.0), "a renewal hangs"
    contact.record_success(1012.0)
    assert not contact.is_stable(1012.0)
    for at in (1017.0, 1022.0, 1026.0):
        contact.record_success(at)
        assert not contact.is_stable(at)
    contact.record_success(1027.0)
    assert contact.is_stable(1027.0)


def test_a_clock_that_was_set_back_holds_nothing_up_for_long() -> None:
    contact = Contact()
    contact.record_success(5000.0)
    contact.record_success(1000.0)
    assert not contact.is_stable(1000.0)
    for at in (1005.0, 1010.0, 1015.0):
        contact.record_success(at)
    assert contact.is_stable(1015.0)


async def test_a_log_that_cannot_be_read_keeps_no_run_of_a_task_from_starting(slow: Slow) -> None:
    log = RunLog(slow, SystemClock(), "one", kept=KEPT)
    await TaskExclusion(list, log).refuse_elsewhere(RunRecord("r", "fake", 0.0, task_key="t"), "fake")


async def test_a_run_that_was_refused_is_found_no_more_while_it_is_still_kept(store: Store) -> None:
    keeping = RunLog(store, SystemClock(), "one", kept=KEPT)
    refused = [a_run(), a_run("theirs")]
    await store.begin(refused[0])
    await store.begin(a_run("theirs", owner="two"))
    followed = [written_by(keeping.writer, run, state=RowState.STORED) for run in refused]
    for run in followed:
        run.remove()
    assert await keeping.find("r") is None
    assert await keeping.find("theirs") is not None
    work = asyncio.ensure_future(keeping.writer.run())
    for run in followed:
        assert await run.flushed(PATIENCE_S)
    assert await store.run("r") is None
    assert await store.run("theirs") is not None
    await keeping.writer.close()
    await work


def _nothing(*_of: str) -> None:
    """Do nothing."""
