"""Routers that are killed just as a run goes to its adapter: it runs once, whether it came there or not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.supervisor import ProcessSupervisor
from dragoman.router.storage.sqlite import SqliteDatabase
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Caller, Stream, config, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_processes import program
from tests.router.test_takeover import attached, execute_waiting, waiting, without_replay_done

STEPS = ("a", {"end": "SUCCEEDED"})


@contextlib.asynccontextmanager
async def on_its_way(folder: Path, age_s: float = 0.0, **fields: Any) -> AsyncIterator[Caller]:
    """Have a router after one that wrote down where run "r" goes, and died before it went there."""
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)], max_runs={"fake": 1}) as (process, caller):
        await waiting(caller, *STEPS)
        process.kill()
        await process.wait()
    database = SqliteDatabase(folder / "s" / "runs.db")
    await database.open()
    place = "(SELECT place FROM runs WHERE run_id = 'first')"
    changed = f"UPDATE runs SET place = {place}, accepted_at = accepted_at - :age WHERE run_id = 'r'"
    await database.execute([(changed, {"age": age_s})])
    await database.close()
    async with routing(config(folder, manifests=(named,), **fields)) as (_router, caller):
        yield caller


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Say when an adapter that a dead router launched may be found again."""
    adopt, found = ProcessSupervisor.adopt, asyncio.Event()

    async def late(host: ProcessSupervisor, address: str) -> AdapterInstance | None:
        await found.wait()
        return await adopt(host, address)

    monkeypatch.setattr(ProcessSupervisor, "adopt", late)
    return found


async def test_a_run_that_never_came_to_its_adapter_begins_when_its_request_comes_again(folder: Path) -> None:
    async with on_its_way(folder) as caller:
        assert (await attached(caller, "r", 0))[-1].result.failure.code == "not_started"
        again = [event for event in await execute_waiting(caller, *STEPS).rest() if event.sequence]
        assert kinds(again) == ["started", "text:a", "result"]
        assert [event.sequence for event in again] == [1, 2, 3]


async def test_a_request_that_comes_before_it_is_known_whether_the_run_came_begins_it(
    folder: Path, adopting: asyncio.Event
) -> None:
    async with on_its_way(folder) as caller:
        again = execute_waiting(caller, *STEPS)
        first = asyncio.ensure_future(again.next())
        early, _ = await asyncio.wait([first], timeout=0.3)
        assert not early, "it is unknown yet whether the adapter has it"
        adopting.set()
        events = [await first, *await again.rest()]
        assert kinds([event for event in events if event.sequence]) == ["started", "text:a", "result"]


async def is_followed(stream: Stream) -> bool:
    with contextlib.suppress(DragomanError):
        return (await stream.next()).HasField("replay_done")
    return False


async def until_it_has(adapter: router_pb2.AdapterEntry, run_id: str) -> None:
    """Wait until an adapter's process has a run; no event shows when a silent one arrives."""
    direct = Caller(adapter.address)
    async with asyncio.timeout(PATIENCE_S):
        while not await is_followed(direct.attach(run_id)):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)
    await direct.close()


async def test_a_run_that_came_to_its_adapter_is_not_begun_again(folder: Path, adopting: asyncio.Event) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)]) as (process, caller):
        await caller.execute("fake", "(silent)", run_id="r").run_id()
        await until_it_has(await caller.until("fake", router_pb2.ADAPTER_STATE_READY), "r")
        process.kill()
        await process.wait()
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        again = caller.execute("fake", "(silent)", run_id="r")
        adopting.set()
        await again.run_id()
        assert (await caller.until("fake", router_pb2.ADAPTER_STATE_READY)).live_runs == 1
        answer = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        assert (answer.outcome, answer.result_sequence) == (event_pb2.OUTCOME_CANCELLED, 2)
        assert without_replay_done(await attached(caller, "r", 0)) == ["started", "result"]


async def test_a_run_that_its_adapter_may_have_had_and_forgotten_is_not_begun_again(folder: Path) -> None:
    async with on_its_way(folder, age_s=120.0) as caller:
        assert "no longer knows the run" in (await attached(caller, "r", 0))[-1].result.failure.message
        assert (await execute_waiting(caller, *STEPS).rest())[-1].result.outcome == event_pb2.OUTCOME_LOST


async def test_a_run_that_never_came_to_its_adapter_is_cancelled(folder: Path, adopting: asyncio.Event) -> None:
    async with on_its_way(folder) as caller:
        cancel = caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        answered, _ = await asyncio.wait([asyncio.ensure_future(cancel.code())], timeout=0.3)
        assert not answered, "its adapter may have it"
        adopting.set()
        assert (await cancel).outcome == event_pb2.OUTCOME_LOST
        result = (await attached(caller, "r", 0))[-1].result
        assert result.failure.code == "not_started", "its ID may be used again"


async def test_a_run_of_which_something_is_known_is_not_begun_again(folder: Path) -> None:
    sidecar, address = Sidecar(), f"unix:{folder}/a.sock"
    async with serving(sidecar, address):
        async with program(folder, addresses=[address]) as (process, caller):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            await caller.execute("fake", *STEPS[:1], {"gate": "g"}, run_id="r").until("text")
            await caller.router.ListRuns(router_pb2.ListRunsRequest(), timeout=PATIENCE_S)  # it is written by then
            process.kill()
            await process.wait()
        sidecar.runs.clear()
        async with routing(config(folder, addresses=(address,))) as (_router, caller):
            result = (await caller.execute("fake", *STEPS[:1], {"gate": "g"}, run_id="r").rest())[-1].result
            assert result.outcome == event_pb2.OUTCOME_LOST
            assert len(sidecar.requests("Execute")) == 1
