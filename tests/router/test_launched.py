"""Adapters that the router launches: the first run, a crash, idleness, back-off, the end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters import launcher
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import (
    PATIENCE_S,
    config,
    failure,
    gone,
    is_alive,
    kinds,
    manifest,
    routing,
    sequences,
)


async def test_a_run_goes_through_an_adapter_that_is_launched_for_it(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        before = await caller.entry("fake")
        assert before.state == router_pb2.ADAPTER_STATE_IDLE
        assert not before.HasField("pid")

        stream = caller.execute("fake", "a", "b", {"end": "SUCCEEDED"})
        assert (await stream.run_id()).startswith("run-")
        events = await stream.rest()

        assert kinds(events) == ["started", "text:a", "text:b", "result"]
        assert sequences(events) == [1, 2, 3, 4]
        after = await caller.entry("fake")
        assert after.state == router_pb2.ADAPTER_STATE_READY
        assert len({os.getpid(), after.pid, after.guard_pid}) == 3
        assert after.description.instance_id == events[0].started.instance_id


async def test_a_process_that_starts_is_called_once_it_listens(folder: Path) -> None:
    channel = AdapterChannel(f"unix:{folder}/late.sock")
    listening = asyncio.create_task(channel.listening())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(listening), 0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "late.sock"))
        server.listen()
        await asyncio.wait_for(listening, PATIENCE_S)
    await channel.close()


async def test_an_adapter_that_is_too_busy_to_describe_itself_is_asked_again(folder: Path) -> None:
    named = manifest(folder, "fake", env={"SIDECAR_CUTS_DESCRIPTIONS": "2"})
    async with routing(config(folder, manifests=(named,))) as (_router, caller):
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        assert (await caller.entry("fake")).restarts == 0


@pytest.mark.parametrize("asks", [True, False])
async def test_an_adapter_that_hears_nothing_is_ended_with_its_agents_when_a_run_is_to_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, asks: bool
) -> None:
    monkeypatch.setattr("dragoman.router.adapters.supervisor.DEAF_S", 0.3)
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        stream = caller.execute("fake", "a", {"gate": "g"}, run_id="r")
        await stream.until("text")
        entry = await caller.entry("fake")
        os.kill(entry.pid, signal.SIGSTOP)
        if asks:
            answered = await caller.adapter.Cancel(pb.CancelRequest(run_id="r"), timeout=PATIENCE_S)
            assert answered.outcome == event_pb2.OUTCOME_LOST
            message = (await stream.rest())[-1].result.failure.message
            assert "did not answer for 0.3 s, so the router killed it" in message
        else:
            stream.cancel()  # no client holds it any more
        await gone(entry.pid)
        await gone(entry.guard_pid)
        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]


async def test_a_killed_adapter_means_lost_at_once_and_harms_no_other(folder: Path) -> None:
    manifests = (manifest(folder, "fake"), manifest(folder, "other"))
    async with routing(config(folder, manifests=manifests)) as (_router, caller):
        doomed = caller.execute("fake", "a", {"gate": "g"}, run_id="doomed")
        spared = caller.execute("other", "a", {"gate": "g"}, "b", {"end": "SUCCEEDED"}, run_id="spared")
        await doomed.until("text")
        await spared.until("text")
        pid = (await caller.entry("fake")).pid

        loop = asyncio.get_running_loop()
        killed_at = loop.time()
        os.kill(pid, signal.SIGKILL)
        events = await doomed.rest()

        assert loop.time() - killed_at < 5.0, "the router does not wait to see whether it comes back"
        last = events[-1]
        assert last.result.outcome == event_pb2.OUTCOME_LOST
        assert last.sequence == 3
        assert last.attempt == 1
        assert last.origin == event_pb2.EVENT_ORIGIN_ROUTER
        assert last.result.failure.kind == event_pb2.FAILURE_KIND_ADAPTER_LOST
        assert last.result.failure.retryable
        assert "SIGKILL" in last.result.failure.message

        await caller.adapter.Respond(pb.RespondRequest(run_id="spared", request_id="g"), timeout=PATIENCE_S)
        assert kinds(await spared.rest()) == ["text:b", "result"]


async def test_after_a_crash_the_next_run_gets_a_new_process(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        crashed = await caller.execute("fake", {"exit": 7}).rest()
        assert crashed[-1].result.outcome == event_pb2.OUTCOME_LOST
        assert "exited with code 7" in crashed[-1].result.failure.message
        dead = await caller.entry("fake")
        assert dead.state == router_pb2.ADAPTER_STATE_UNAVAILABLE
        assert "exited with code 7" in dead.reason

        events = await caller.execute("fake", {"end": "SUCCEEDED"}).rest()

        assert kinds(events) == ["started", "result"]
        entry = await caller.entry("fake")
        assert entry.restarts == 1
        assert entry.state == router_pb2.ADAPTER_STATE_READY


async def test_a_crash_loop_is_reported_and_slows_down(folder: Path) -> None:
    program = "print('adapter output', flush=True); raise SystemExit(3)"
    broken = manifest(folder, "fake", command=[sys.executable, "-c", program])
    async with routing(config(folder, manifests=(broken,))) as (_router, caller):
        errors: list[DragomanError] = []
        while not errors or "will try to start it again" not in errors[-1].message:
            errors.append(await caller.execute("fake").error())
            assert len(errors) < 10

        assert {error.reason for error in errors} == {Reason.ADAPTER_UNAVAILABLE}
        assert "exited with code 3" in errors[0].message
        assert "1 times in a row" not in errors[0].message
        log = folder / "s" / "logs" / "fake.log"
        assert str(log) in errors[0].message
        assert "adapter output" in log.read_text()
        assert errors[-1].retry_after_s is not None
        assert errors[-1].retry_after_s > 2
        entry = await caller.entry("fake")
        assert entry.state == router_pb2.ADAPTER_STATE_UNAVAILABLE
        assert "times in a row" in entry.reason


async def test_one_that_ends_before_its_guard_is_reached_is_reported_with_its_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_event = launcher._start_event

    def late(guard: "subprocess.Popen[bytes]") -> dict[str, Any]:
        word = start_event(guard)
        guard.wait()
        return word

    monkeypatch.setattr(launcher, "_start_event", late)
    broken = manifest(folder, "fake", command=[sys.executable, "-c", "raise SystemExit(3)"])
    async with routing(config(folder, manifests=(broken,))) as (_router, caller):
        error = await caller.execute("fake").error()
        assert "with code 3" in error.message
        assert str(folder / "s" / "logs" / "fake.log") in error.message


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"command": ["/nonexistent/adapter"]}, "No such file"),
        ({"env": {"SIDECAR_DEAF": "1"}}, "did not become ready within 0.5 s"),
        ({"env": {"SIDECAR_NOT_SERVING": "1"}}, "did not become ready within 0.5 s"),
    ],
)
async def test_an_adapter_that_does_not_start_is_unavailable(
    folder: Path, more: dict[str, object], reason: str
) -> None:
    broken = manifest(folder, "fake", **more)  # type: ignore[arg-type] # keys of a manifest
    async with routing(config(folder, manifests=(broken,), start_timeout_s=0.5)) as (_router, caller):
        error = await caller.execute("fake", run_id="again").error()
        assert error.reason is Reason.ADAPTER_UNAVAILABLE
        assert reason in error.message
        assert "fake" in error.message
        assert error.retry_after_s
        # The run never was.
        unknown = await failure(caller.run("again"))
        assert unknown.reason is Reason.RUN_NOT_FOUND


async def test_an_idle_adapter_is_let_go_and_comes_back(folder: Path) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake"),), idle_after_s=0.2)
    async with routing(configured) as (_router, caller):
        stream = caller.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"}, run_id="r")
        await stream.until("started")
        pid = (await caller.entry("fake")).pid
        # A live run keeps it for longer than that.
        waiting = asyncio.ensure_future(caller.until("fake", router_pb2.ADAPTER_STATE_IDLE))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done

        await caller.adapter.Respond(pb.RespondRequest(run_id="r", request_id="g"))
        await stream.rest()
        idle = await waiting
        await gone(pid)
        assert not idle.HasField("pid")
        assert idle.reason == ""

        assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        assert (await caller.entry("fake")).restarts == 0


async def test_short_calls_do_not_let_an_adapter_go_before_it_was_idle(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (_router, caller):
        pids = set()
        for _ in range(200):
            await caller.adapter.Describe(pb.DescribeRequest(adapter="fake"), timeout=PATIENCE_S)
            await caller.adapter.Detect(pb.DetectRequest(adapter="fake", refresh=True), timeout=PATIENCE_S)
            assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
            pids.add((await caller.entry("fake")).pid)
        assert len(pids) == 1


async def test_a_short_call_begins_the_idle_time_anew(folder: Path) -> None:
    clock = asyncio.get_running_loop().time
    described = pb.DescribeResponse(adapter="fake", instance_id="one")
    endpoint = AdapterInstance(AdapterChannel(f"unix:{folder}/absent"), described)
    with endpoint.used():
        assert endpoint.idle_s(clock()) == 0.0
    since = clock()
    assert endpoint.idle_s(since + 5.0) == pytest.approx(5.0, abs=0.5)
    with endpoint.used():
        pass
    assert endpoint.idle_s(clock()) < 5.0


async def test_a_router_that_stops_leaves_nothing_and_its_readers_see_the_end(folder: Path) -> None:
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (router, caller):
        stream = caller.execute("fake", {"gate": "g"})
        await stream.until("started")
        entry = await caller.entry("fake")

        await router.stop(0.1)

        assert (await stream.rest())[-1].result.outcome == event_pb2.OUTCOME_CANCELLED
        assert not is_alive(entry.pid)
        assert not is_alive(entry.guard_pid)
        assert list((folder / "s" / "run").iterdir()) == []


async def test_a_router_whose_streams_are_read_to_their_end_stops_without_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.router.api.drain._LAST_READS_S", 60.0)
    async with routing(config(folder, manifests=(manifest(folder, "fake"),))) as (router, caller):
        for _ in range(2):
            assert kinds(await caller.execute("fake", {"end": "SUCCEEDED"}).rest()) == ["started", "result"]
        async with asyncio.timeout(PATIENCE_S):
            await router.stop(0.0)


async def test_a_second_stop_does_not_wait_for_a_stubborn_adapter(folder: Path) -> None:
    stubborn = manifest(folder, "fake", env={"SIDECAR_STUBBORN": "1"})
    async with routing(config(folder, manifests=(stubborn,))) as (router, caller):
        stream = caller.execute("fake", {"gate": "g"})
        await stream.until("started")
        entry = await caller.entry("fake")
        loop = asyncio.get_running_loop()
        began = loop.time()

        first = asyncio.ensure_future(router.stop(60.0))
        refused = await caller.execute("fake").error()
        assert refused.reason is Reason.DRAINING
        await router.stop(0.0)
        await first

        assert loop.time() - began < 8.0
        assert not is_alive(entry.pid)
