"""RestartAdapter: a new process, while the old one brings its runs to their end."""

import asyncio
from pathlib import Path
from typing import Any

from dragoman.protocol.errors import Reason
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2
from google.protobuf.duration_pb2 import Duration

from tests.router.harness import PATIENCE_S, Caller, config, failure, gone, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_watch import GATED, open_gate

READY = router_pb2.ADAPTER_STATE_READY
REFUSED = router_pb2.ADAPTER_STATE_REFUSED


async def restarted(caller: Caller, adapter: str, grace: Duration | None = None) -> router_pb2.RestartAdapterResponse:
    request = router_pb2.RestartAdapterRequest(adapter=adapter, grace=grace)
    return await caller.router.RestartAdapter(request, timeout=PATIENCE_S)


async def test_new_runs_go_to_the_new_process_and_live_ones_end_in_the_old(folder: Path) -> None:
    named = manifest(folder, "fake", aliases=["other"])
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("input_request")
        before = await caller.until("fake", READY)
        response = await restarted(caller, "other")
        assert response.draining_runs == 1
        after = response.adapter
        assert (after.state, after.adapter) == (READY, "fake")
        assert after.pid != before.pid
        assert after.since.ToNanoseconds() > before.since.ToNanoseconds()
        assert after.restarts == 0, "that counts what it did not want"
        instance = (await caller.execute("fake", {"end": "SUCCEEDED"}).rest())[0].started.instance_id
        assert instance == after.description.instance_id
        listed = await caller.entry("fake")
        expected = f"Process {before.pid} was replaced and ends after its last call or run."
        assert list(listed.remarks) == [expected]
        await open_gate(caller, "r")
        assert kinds(await stream.rest()) == ["input_resolved", "text:b", "result"]
        await gone(before.pid)
        await caller.until_listed(lambda entries: not entries[0].remarks)
        assert (await caller.entry("fake")).pid == after.pid


async def test_the_old_process_says_what_its_live_run_changed_and_left(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_, caller):
        stream = caller.execute("fake", *GATED, run_id="r")
        (started, *_) = await stream.until("input_request")
        instance = started.started.instance_id
        assert (await restarted(caller, "fake")).adapter.description.instance_id != instance
        changes = await caller.adapter.GetChanges(pb.GetChangesRequest(run_id="r"), timeout=PATIENCE_S)
        assert changes.root == f"/of/{instance}"
        call: Any = caller.adapter.ReadArtifact(pb.ReadArtifactRequest(run_id="r"), timeout=PATIENCE_S)
        assert (await call.read()).data == instance.encode()
        await open_gate(caller, "r")
        await stream.rest()


async def test_what_a_run_may_take_is_limited_by_the_grace(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        for grace in (Duration(), Duration(nanos=100_000_000)):
            stream = caller.execute("fake", *GATED)
            await stream.until("input_request")
            before = await caller.until("fake", READY)
            response = await restarted(caller, "fake", grace)
            (*_, last) = await stream.rest()
            assert last.result.outcome == event_pb2.OUTCOME_CANCELLED
            await gone(before.pid)
            assert response.adapter.pid == (await caller.entry("fake")).pid


async def test_one_that_does_not_run_is_started_and_one_that_starts_is_started_anew(folder: Path) -> None:
    slow = folder / "slow"
    slow.write_text("")
    named = manifest(folder, "fake", env={"SIDECAR_DEAF_WHILE": str(slow)})
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        waiting = asyncio.ensure_future(caller.execute("fake", {"end": "SUCCEEDED"}).rest())
        await caller.until("fake", router_pb2.ADAPTER_STATE_STARTING)
        slow.unlink()
        response = await restarted(caller, "fake")
        assert response.adapter.state == READY
        assert kinds(await waiting) == ["started", "result"], "it waits for the new process"


async def test_a_rejected_description_is_examined_again(folder: Path) -> None:
    revision = folder / "revision"
    revision.write_text("0")
    named = manifest(folder, "fake", env={"SIDECAR_REVISION_FILE": str(revision)})
    async with routing(config(folder, manifests=(named,))) as (_, caller):
        assert (await caller.execute("fake").error()).reason is Reason.ADAPTER_REFUSED
        error = await failure(caller.router.RestartAdapter(router_pb2.RestartAdapterRequest(adapter="fake")))
        assert error.reason is Reason.ADAPTER_REFUSED
        assert (await caller.entry("fake")).state == REFUSED
        revision.write_text("1")
        assert (await restarted(caller, "fake")).adapter.state == READY


async def test_what_the_router_does_not_launch_is_not_restarted(folder: Path) -> None:
    second, address = manifest(folder, "fake", file="2"), f"unix:{folder}/a.sock"
    both = config(folder, manifests=(manifest(folder, "fake", file="1"), second), addresses=(address,))
    async with serving(Sidecar("remote"), address), routing(both) as (_, caller):
        await caller.until("remote", READY)

        async def refused(adapter: str) -> tuple[Reason | None, str]:
            error = await failure(caller.router.RestartAdapter(router_pb2.RestartAdapterRequest(adapter=adapter)))
            return error.reason, error.message

        reason, message = await refused("remote")
        assert reason is Reason.ADAPTER_NOT_LAUNCHED
        assert f"runs at {address} and was not started by this router; restart it where it was started" in message
        assert (await refused("nothing"))[0] is Reason.ADAPTER_NOT_FOUND
        assert (await refused(""))[0] is Reason.ADAPTER_REQUIRED
