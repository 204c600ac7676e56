"""Changes of a run at a router: forwarded to the adapter that has it, as far as policy and stored agents allow."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, failure
from tests.router.sidecar import Sidecar
from tests.router.test_replicas import RouterPair, pair, run_log
from tests.router.test_sending import beside

__all__ = ["pair", "run_log"]

BOTH = (pb.FEATURE_PROMPT, pb.FEATURE_UPDATE_MODEL, pb.FEATURE_UPDATE_PERMISSION_MODE)
STEPS = ("a", {"gate": "g"}, {"end": "SUCCEEDED"})


def update(caller: Caller, **change: str) -> Any:
    request = api.UpdateRunRequest(run_id="r", **change)
    return caller.adapter.UpdateRun(request, timeout=PATIENCE_S)


async def test_a_change_is_forwarded_and_recorded(folder: Path) -> None:
    sidecar = Sidecar(features=BOTH)
    async with beside(folder, sidecar) as caller:
        stream = caller.execute("fake", *STEPS, run_id="r")
        await stream.until("text")
        answer = await update(caller, model="large")
        (forwarded,) = sidecar.requests("UpdateRun")
        assert forwarded.sender.startswith("uid ")
        assert (await failure(update(caller, model="bad"))).reason is Reason.UPDATE_REFUSED
        sidecar.open("g")
        events = await stream.rest()
        changes = [(event.sequence, event.run_updated.model) for event in events if event.HasField("run_updated")]
        assert changes == [(answer.sequence, "large")]
        assert (await failure(update(caller, model="large"))).reason is Reason.RUN_FINISHED


@pytest.mark.parametrize(
    ("change", "reason", "path"),
    [
        ({}, Reason.INVALID_REQUEST, "change"),
        ({"permission_mode": "plan"}, Reason.NOT_SUPPORTED, "permission_mode"),
    ],
)
async def test_what_the_adapter_would_refuse_does_not_reach_it(
    folder: Path, change: dict[str, str], reason: Reason, path: str
) -> None:
    sidecar = Sidecar(features=BOTH[:2])
    async with beside(folder, sidecar) as caller:
        stream = caller.execute("fake", *STEPS, run_id="r")
        await stream.until("text")
        error = await failure(update(caller, **change))
        assert (error.reason, [violation.path for violation in error.violations]) == (reason, [path])
        assert sidecar.requests("UpdateRun") == []
        sidecar.open("g")
        await stream.rest()


async def test_an_unknown_run_is_not_changed(folder: Path) -> None:
    async with beside(folder, Sidecar(features=BOTH)) as caller:
        assert (await failure(update(caller, model="m"))).reason is Reason.RUN_NOT_FOUND


async def test_a_change_asks_for_no_more_than_the_policy_allows(folder: Path) -> None:
    policy = folder / "policy.toml"
    policy.write_text("[models]\n'*' = ['small', 'tiny*']\n[permissions]\nnative_modes = ['plan']")
    sidecar = Sidecar(features=(*BOTH, pb.FEATURE_MODEL_CHOICE))
    async with beside(folder, sidecar, policy=policy) as caller:
        stream = caller.execute("fake", *STEPS, run_id="r")
        await stream.until("text")
        for change in ({"model": "large"}, {"permission_mode": "yolo"}):
            error = await failure(update(caller, **change))
            assert error.reason is Reason.POLICY_DENIED
            assert [violation.path for violation in error.violations] == [*change]
        assert sidecar.requests("UpdateRun") == []
        await update(caller, model="tiny-2")
        await update(caller, permission_mode="plan")
        sidecar.open("g")
        await stream.rest()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_the_mode_of_a_stored_agent_with_permissions_stays(folder: Path, is_deleted: bool) -> None:
    sidecar = Sidecar(features=(*BOTH, pb.FEATURE_PERMISSION_REQUESTS))
    async with beside(folder, sidecar) as caller:
        agent = router_pb2.StoredAgent(name="reviewer", adapter="fake")
        agent.permissions.native_mode = "plan"
        await caller.router.CreateAgent(router_pb2.CreateAgentRequest(agent=agent), timeout=PATIENCE_S)
        stream = caller.execute("", *STEPS, run_id="r", agent_name="reviewer")
        await stream.until("text")
        if is_deleted:
            await caller.router.DeleteAgent(router_pb2.DeleteAgentRequest(name="reviewer"), timeout=PATIENCE_S)
        else:
            await update(caller, permission_mode="plan")
        error = await failure(update(caller, permission_mode="yolo"))
        assert error.reason is Reason.INVALID_REQUEST
        assert [violation.path for violation in error.violations] == ["permission_mode"]
        await update(caller, model="large")
        sidecar.open("g")
        await stream.rest()
    modes = [request.permission_mode for request in sidecar.requests("UpdateRun")]
    assert modes == ([""] if is_deleted else ["plan", ""])


async def test_a_change_goes_to_the_router_that_has_the_run(pair: RouterPair) -> None:
    stream = pair.mine.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
    await stream.until("text")
    request = api.UpdateRunRequest(run_id="r", model="large")
    answer = await pair.other.adapter.UpdateRun(request, timeout=PATIENCE_S)
    (updated,) = [event for event in await stream.until("run_updated") if event.HasField("run_updated")]
    assert (updated.sequence, updated.run_updated.model) == (answer.sequence, "large")
    pair.sidecar.open("g")
    await stream.rest()
    over = await failure(pair.other.adapter.UpdateRun(request, timeout=PATIENCE_S))
    assert over.reason is Reason.RUN_FINISHED
