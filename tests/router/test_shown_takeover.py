"""Calls for a run whose router is gone: it is recovered, where the log can be written and the caller may have it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.protocol.tokens import create_token, tokens_path
from dragoman.router.cluster.failover import Failover
from dragoman.router.model.stored import StoredRun
from dragoman.router.storage.database import StoreError
from dragoman.router.storage.lease_table import LeaseTable
from dragoman.v1 import adapter_pb2 as pb

from tests.router.harness import Caller, failure
from tests.router.test_scopes import Holder, user_of_its_own
from tests.router.test_takeover import STEPS, beside, killed, succeeds

__all__ = ["user_of_its_own"]


async def nothing(_failover: Failover) -> None:
    """Look for no runs to recover."""


@pytest.fixture
async def caller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Caller]:
    """At a router beside one that is killed with its run ``r``, which is for who asks to find."""
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


OF_RUNS: dict[str, Callable[[Caller], Awaitable[object]]] = {
    "Attach": lambda at: at.attach("r").call.read(),
    "Cancel": lambda at: at.adapter.Cancel(pb.CancelRequest(run_id="r")),
    "Execute": lambda at: at.execute("fake", *STEPS, run_id="r").call.read(),
    "GetChanges": lambda at: at.adapter.GetChanges(pb.GetChangesRequest(run_id="r")),
    "GetRun": lambda at: at.run("r"),
    "ReadArtifact": lambda at: at.adapter.ReadArtifact(pb.ReadArtifactRequest(run_id="r", name="a")).read(),
    "Respond": lambda at: at.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g")),
    "Send": lambda at: at.adapter.Send(pb.SendRequest(run_id="r", input_id="i", text="t")),
    "UpdateRun": lambda at: at.adapter.UpdateRun(pb.UpdateRunRequest(run_id="r", model="m")),
}


@pytest.mark.usefixtures("user_of_its_own")
async def test_a_run_is_not_taken_over_for_one_who_may_not_have_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    async def take(_failover: Failover, stored: StoredRun) -> StoredRun:
        taken.append(stored.run_id)
        return stored

    monkeypatch.setattr(Failover, "_try_to_look", nothing)
    token = create_token(tokens_path(), "another", ["run"], ["*"], None)
    async with beside(folder, listen=("127.0.0.1:0", f"unix:{folder}/b.sock")) as (router, _local):
        await killed(folder, "r")
        another = Holder(router.addresses[0], token)
        with monkeypatch.context() as patch:
            patch.setattr(Failover, "take", take)
            reasons = {name: (await failure(call(another))).reason for name, call in OF_RUNS.items()}
        await another.close()
        unix = Caller(router.addresses[1])
        await succeeds(unix)
        await unix.close()
    assert not taken
    assert reasons == {**dict.fromkeys(OF_RUNS, Reason.NOT_PERMITTED), "Execute": Reason.RUN_ID_REUSED}
