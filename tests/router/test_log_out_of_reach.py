"""A run log that does not answer, or says that it fails: what is in memory is listed, and no call waits for ever."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.store import Store
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, failure, routing
from tests.router.sidecar import Sidecar, serving


async def listed(caller: Caller, **filters: Any) -> list[router_pb2.RunSummary]:
    answer = await caller.router.ListRuns(router_pb2.ListRunsRequest(**filters), timeout=PATIENCE_S)
    return list(answer.runs)


@pytest.mark.parametrize("how", ["hangs", "fails"])
async def test_runs_in_memory_are_listed_while_the_log_does_not_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    repaired = asyncio.Event()

    async def broken(*_args: object, **_more: object) -> None:
        if how == "hangs":
            await repaired.wait()
        raise StoreError("connection refused")

    address = f"unix:{folder}/a.sock"
    async with serving(Sidecar(), address), routing(config(folder, addresses=(address,))) as (_, caller):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        await caller.execute("fake", "a", {"end": "SUCCEEDED"}, run_id="over", labels={"c": "d"}).rest()
        live = caller.execute("fake", "a", {"gate": "never"}, run_id="live", labels={"a": "b"})
        await live.until("text")
        for limit in ("READ_S", "_LISTING_S"):
            monkeypatch.setattr(f"dragoman.router.storage.run_log.{limit}", 0.2)
        for method in ("run", "runs", "write"):
            monkeypatch.setattr(Store, method, broken)

        found = await listed(caller)
        assert [run.run_id for run in found] == ["live", "over"]
        assert all("run log is not responding" in run.remarks[-1] for run in found)
        assert [run.run_id for run in await listed(caller, live_only=True)] == ["live"]
        assert [run.run_id for run in await listed(caller, labels={"c": "d"})] == ["over"]
        assert [run.run_id for run in await listed(caller, labels={"a": "b"})] == ["live"]
        assert [run.run_id for run in await listed(caller, outcome=event_pb2.OUTCOME_SUCCEEDED)] == ["over"]
        assert (await caller.run("live")).run.run_id == "live"

        nothing = await failure(caller.router.ListRuns(router_pb2.ListRunsRequest(labels={"no": "ne"})))
        unknown = await failure(caller.router.GetRun(router_pb2.GetRunRequest(run_id="unknown")))
        assert nothing.reason is unknown.reason is Reason.RUN_LOG_UNAVAILABLE
        assert how == "fails" or "no answer within" in str(unknown)
        monkeypatch.undo()
        repaired.set()
        live.cancel()
