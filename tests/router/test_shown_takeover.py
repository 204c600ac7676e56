"""GetRun for a run whose router is gone: it is recovered, where the log can be written and the caller may see it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.api.authorization import RunFacts
from dragoman.router.cluster.failover import Failover
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.lease_table import LeaseTable

from tests.router.harness import Caller, failure
from tests.router.test_takeover import beside, killed, succeeds


@pytest.fixture
async def caller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Caller]:
    """At a router beside one that is killed with its run ``r``, which is for who asks to find."""

    async def nothing(_failover: Failover) -> None:
        pass

    monkeypatch.setattr(Failover, "_try_to_look", nothing)
    async with beside(folder) as (_router, caller):
        await killed(folder, "r")
        yield caller
        await succeeds(caller)


async def test_a_stored_run_is_shown_while_it_cannot_be_taken_over(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_what: Any) -> list[StoredRun]:
        raise StoreError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(LeaseTable, "claim", fails)
        shown = await caller.run("r")
    assert (shown.run.adapter, shown.run.HasField("result")) == ("fake", False)


async def test_a_run_is_not_taken_over_for_one_who_may_not_see_it(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_for(*_what: Any, **_more: Any) -> StoredRun | None:
        raise AssertionError("taken")

    def forbid(facts: RunFacts) -> None:
        raise DragomanError(Reason.NOT_PERMITTED, f"run {facts.run_id} is another's")

    with monkeypatch.context() as patch:
        patch.setattr(Failover, "take", not_for)
        patch.setattr("dragoman.router.api.router_service.allow_read", forbid)
        assert (await failure(caller.run("r"))).reason is Reason.NOT_PERMITTED
