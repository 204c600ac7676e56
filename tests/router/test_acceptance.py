"""Execute announces a run only once it is accepted, and never for a call that is rejected."""

from pathlib import Path
from typing import Any

import pytest
from dragoman.client import Client, DragomanError
from dragoman.protocol.errors import Reason
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, config, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving


async def metadata(call: object) -> list[str]:
    return [key for key, _value in await call.initial_metadata() or ()]  # type: ignore[attr-defined] # a grpc call


async def test_a_rejected_call_never_announces_a_run(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    async with (
        serving(Sidecar(), address),
        routing(config(folder, addresses=(address,))) as (_, caller),
    ):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        for steps in ([{"refuse": "INVALID_REQUEST"}], [{"refuse": "CAPABILITY_MISSING"}]):
            stream = caller.execute("fake", *steps, run_id="r")
            assert RUN_ID_METADATA_KEY not in await metadata(stream.call)
            assert (await stream.error()).reason is Reason[steps[0]["refuse"]]
        unknown = caller.execute("fakee")
        assert RUN_ID_METADATA_KEY not in await metadata(unknown.call)
        stream = caller.execute("fake", "(silent)", run_id="r")
        assert await stream.run_id() == "r", "accepted, before its first event"
        stream.cancel()


async def test_a_wrong_call_raises_where_it_is_entered_and_a_right_one_may_be_left(folder: Path) -> None:
    sidecar, address = Sidecar(), f"unix:{folder}/a.sock"
    async with (
        serving(sidecar, address),
        routing(config(folder, addresses=(address,))) as (router, _caller),
        Client(router.addresses[0]) as client,
    ):
        wrong = pb.ExecuteRequest(adapter="fake", prompt='[{"refuse": "INVALID_REQUEST"}]')
        with pytest.raises(DragomanError) as refused:
            async with client.execute(wrong):
                pass
        assert refused.value.reason is Reason.INVALID_REQUEST

        right = pb.ExecuteRequest(adapter="fake", prompt='[{"gate": "g"}, {"end": "SUCCEEDED"}]', run_id="left")
        async with client.execute(right) as run:
            pass
        assert run.is_accepted
        sidecar.open("g")
        async with client.attach("left") as again:
            assert (await again.wait()).outcome == event_pb2.OUTCOME_SUCCEEDED


async def test_an_adapter_that_never_starts_accepts_nothing(folder: Path) -> None:
    deaf = manifest(folder, "fake", env={"SIDECAR_DEAF": "1"})
    async with routing(config(folder, manifests=(deaf,), start_timeout_s=0.3)) as (_, caller):
        stream = caller.execute("fake", run_id="r")
        assert RUN_ID_METADATA_KEY not in await metadata(stream.call)
        assert (await stream.error()).reason is Reason.ADAPTER_UNAVAILABLE


async def test_a_run_that_waits_for_a_place_is_accepted(folder: Path) -> None:
    sidecar, address = Sidecar(), f"unix:{folder}/a.sock"
    async with (
        serving(sidecar, address),
        routing(config(folder, addresses=(address,), max_runs={"fake": 1})) as (_, caller),
    ):
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        first = caller.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="one")
        await first.until("started")
        waiting = pb.ExecuteRequest(adapter="fake", run_id="two", prompt='[{"end": "SUCCEEDED"}]')
        waiting.admission.longest_wait.FromSeconds(60)
        call = caller.adapter.Execute(waiting)
        assert RUN_ID_METADATA_KEY in await metadata(call)
        first_event = await call.read()
        assert isinstance(first_event, event_pb2.AgentEvent)
        assert first_event.state.phase == event_pb2.RUN_PHASE_QUEUED
        sidecar.open("g")
        assert kinds(await first.rest()) == ["result"]
        call.cancel()


async def test_a_run_that_is_cancelled_before_its_adapter_was_there_ends_with_a_result(folder: Path) -> None:
    deaf = manifest(folder, "fake", env={"SIDECAR_DEAF": "1"})
    async with routing(config(folder, manifests=(deaf,))) as (_, caller):
        stream = caller.execute("fake", run_id="r")
        await caller.until_known("r")
        joined = caller.execute("fake", run_id="r")
        await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
        for one in (stream, joined):
            assert await one.run_id() == "r"
            assert kinds(await one.rest())[-1] == "result"


KEPT: dict[str, dict[str, Any]] = {
    "task_key": {"task_key": "a\0b"},
    "agent.id": {"agent": pb.Agent(id="a\0b")},
    "agent.company_id": {"agent": pb.Agent(company_id="a\0b")},
    "session.key.task_key": {"session": pb.SessionSelector(key=pb.SessionKey(task_key="a\0b"))},
    "session.key.agent_id": {"session": pb.SessionSelector(key=pb.SessionKey(agent_id="a\0b"))},
    "session.key.company_id": {"session": pb.SessionSelector(key=pb.SessionKey(company_id="a\0b"))},
    "labels.a": {"labels": {"a": "\0"}},
}


async def test_a_zero_byte_is_refused_where_it_would_be_kept(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    async with serving(Sidecar(), address), routing(config(folder, addresses=(address,))) as (_, caller):
        for path, fields in KEPT.items():
            error = await caller.execute("fake", **fields).error()
            assert (error.reason, error.violations[0].path) == (Reason.INVALID_REQUEST, path)
