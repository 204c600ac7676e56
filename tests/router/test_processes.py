"""The router as a program: signals, and what is left when it is killed."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.errors import Reason
from dragoman.router.runtime_dirs import open_runtime_dirs, remove_stale
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, PROGRAM, Caller, config, gone, is_alive, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving

_PROGRAM = """
import json, sys
from pathlib import Path
from dragoman.router.app import RouterConfig, run_router
given = json.loads(sys.argv[1])
for key in ("manifests",):
    given[key] = tuple(Path(item) for item in given.get(key, ()))
given["state_dir"] = Path(given["state_dir"])
given["listen"] = tuple(given["listen"])
if "policy" in given:
    given["policy"] = Path(given["policy"])
config = RouterConfig(entry_points=False, user_manifests=False, **given)
run_router(config, on_ready=lambda addresses: print(json.dumps(addresses), flush=True))
"""


@contextlib.asynccontextmanager
async def program(folder: Path, **fields: Any) -> AsyncIterator[tuple[asyncio.subprocess.Process, Caller]]:
    """A router in a process of its own."""
    settings = {"listen": [f"unix:{folder}/r.sock"], "state_dir": str(folder / "s"), **fields}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, json.dumps(settings), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        (address,) = json.loads(await process.stdout.readline())
    caller = Caller(address)
    try:
        yield process, caller
    finally:
        await caller.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_killed_router_leaves_nothing_after_its_adapters_orphan_time(folder: Path) -> None:
    named = str(manifest(folder, "fake"))
    # It begins with the adapter's start: more than it takes the router to get there.
    async with program(folder, manifests=[named], adapter_orphan_after_s=1.5) as (process, caller):
        stream = caller.execute("fake", {"gate": "g"})
        await stream.until("started")
        entry = await caller.entry("fake")
        process.kill()
        await gone(entry.pid)
        await gone(entry.guard_pid)
    # And the next one tidies up what could not be tidied up then.
    run = folder / "s" / "run"
    assert len(list(run.iterdir())) == 1
    async with routing(config(folder)):
        assert len(list(run.iterdir())) == 1
    assert list(run.iterdir()) == []


async def test_a_process_at_an_address_that_dies_is_known_to_be_gone(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    command = (sys.executable, str(PROGRAM))
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "DRAGOMAN_LISTEN": address})
    try:
        # The time for which a lost connection is forgiven is longer than this test waits.
        async with routing(config(folder, addresses=(address,))) as (_router, caller):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            stream = caller.execute("fake", {"tool": "t"}, "a", {"gate": "g"})
            await stream.until("text")
            process.kill()
            last = (await stream.rest())[-1]
            assert last.result.outcome == event_pb2.OUTCOME_LOST
            assert "its process has exited" in last.result.failure.message
            assert last.result.failure.work_begun, "an event showed it"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_an_adapter_whose_guard_was_killed_does_not_live_on(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        stream = caller.execute("fake", "a", {"gate": "g"})
        await stream.until("text")
        entry = await caller.entry("fake")
        os.kill(entry.guard_pid, signal.SIGKILL)
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_LOST
        await gone(entry.pid)
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_what_a_killed_router_and_a_killed_guard_left_is_ended_by_the_next(folder: Path) -> None:
    named = str(manifest(folder, "fake"))
    async with program(folder, manifests=[named]) as (process, caller):
        await caller.execute("fake", {"gate": "g"}).until("started")
        entry = await caller.entry("fake")
        process.kill()
        await process.wait()
        os.kill(entry.guard_pid, signal.SIGKILL)
        await gone(entry.guard_pid)
        assert is_alive(entry.pid)
        remove_stale(folder / "s" / "run")
        await gone(entry.pid)
    assert list((folder / "s" / "run").iterdir()) == []


async def test_what_a_living_router_uses_is_not_tidied_up(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("text")
        remove_stale(folder / "s" / "run")
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await stream.rest()) == ["result"]


def test_a_state_directory_that_is_meant_for_all_is_refused_and_left_as_it_is(folder: Path) -> None:
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(AddressError, match="other users can write to"), open_runtime_dirs(shared):
        pass
    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert list(shared.iterdir()) == []


def test_what_a_router_that_just_starts_makes_is_not_tidied_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, others = fcntl.flock, [remove_stale]

    def late(file: int, how: int) -> None:
        while others:
            others.pop()(folder / "run")  # another router starts before this one holds what it made
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with open_runtime_dirs(folder) as places:
        assert not others
        assert places.runtime.exists()
        remove_stale(folder / "run")
        assert places.runtime.exists()
    assert list((folder / "run").iterdir()) == []


async def test_the_first_signal_drains_and_runs_may_end(folder: Path) -> None:
    named = str(manifest(folder, "fake"))
    async with program(folder, manifests=[named], drain_grace_s=30) as (process, caller):
        stream = caller.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("started")
        entry = await caller.entry("fake")
        process.terminate()
        # Drained or not yet: what is new is refused from the signal on, what runs can be steered.
        async with asyncio.timeout(PATIENCE_S):
            while (await caller.execute("fake", {"end": "SUCCEEDED"}).rest_or_error()) is not Reason.DRAINING:
                pass
        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await stream.rest()) == ["result"]
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert not is_alive(entry.pid)
        assert not is_alive(entry.guard_pid)


async def test_a_run_that_ends_with_its_router_says_so_later(folder: Path) -> None:
    named = manifest(folder, "fake")
    async with program(folder, manifests=[str(named)], drain_grace_s=0) as (process, caller):
        stream = caller.execute("fake", {"gate": "g"}, run_id="r")
        await stream.until("started")
        process.terminate()
        assert kinds(await stream.rest()) == ["notice", "result"]
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        run = (await caller.run("r")).run
        assert run.result.outcome == event_pb2.OUTCOME_CANCELLED
        assert list(run.remarks) == ["The router and its adapters are shutting down; the run is being cancelled."]


async def test_the_second_signal_ends_at_once(folder: Path) -> None:
    named = str(manifest(folder, "fake", env={"SIDECAR_STUBBORN": "1"}))
    async with program(folder, manifests=[named], drain_grace_s=50, stop_timeout_s=50) as (process, caller):
        stream = caller.execute("fake", {"gate": "g"})
        await stream.until("started")
        entry = await caller.entry("fake")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            while (await caller.execute("fake", {"end": "SUCCEEDED"}).rest_or_error()) is not Reason.DRAINING:
                pass
        process.send_signal(signal.SIGINT)
        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_LOST
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert not is_alive(entry.pid)


async def test_sighup_detects_anew(folder: Path) -> None:
    named = str(manifest(folder, "fake"))
    async with program(folder, manifests=[named]) as (process, caller):
        assert (await caller.entry("fake")).state == router_pb2.ADAPTER_STATE_IDLE
        process.send_signal(signal.SIGHUP)
        # It had to be started for that.
        await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_runs_at_an_address_outlive_the_router(folder: Path) -> None:
    sidecar = Sidecar()
    address = f"unix:{folder}/a.sock"
    async with serving(sidecar, address):
        async with routing(config(folder, addresses=(address,))) as (router, caller):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            stream = caller.execute("fake", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="r")
            await stream.until("text")
            stopping = asyncio.ensure_future(router.stop(0.1))
            error = await stream.error()
            assert error.reason is Reason.DRAINING
            assert error.metadata["last_sequence"] == "2"
            await stopping
        assert not sidecar.requests("Cancel")
        async with routing(config(folder, addresses=(address,))) as (_router, caller):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            follower = caller.attach("r", after=2, adapter="fake", hold=True)
            await follower.until("replay_done")
            sidecar.open("g")
            assert kinds(await follower.rest()) == ["text:b", "result"]
