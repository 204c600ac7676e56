"""Adapters that end while they have runs: real processes, whose router sends new runs elsewhere."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.addresses import parse_address
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import event_pb2, router_pb2

from tests.router.harness import PATIENCE_S, Caller, Stream, config, routing
from tests.router.kubernetes_api import FakeKubernetesApi, endpoint, endpoint_slice
from tests.router.test_processes import program as router_program

UNAVAILABLE = router_pb2.ADAPTER_STATE_UNAVAILABLE
READY = router_pb2.ADAPTER_STATE_READY
TOKEN = "0123456789abcdef0123456789abcdef"
LABELS = {"part-of": "dragoman"}


class Adapter:
    """``dragoman adapter serve process``, and what it listens on."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    @property
    def slice(self) -> dict[str, Any]:
        port = parse_address(self.address).port
        return endpoint_slice(f"pod-{port}", "p", [endpoint("127.0.0.1", f"pod-{port}")], port=port, labels=LABELS)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def adapter(listen: str, *options: str, **variables: str) -> AsyncIterator[Adapter]:
    """Serve the adapter ``process`` in a process of its own."""
    command = ["-m", "dragoman.cli.main", "adapter", "serve", "process", "--listen", listen, "--log-format", "json"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, *options), env={**os.environ, **variables}, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Adapter(process, await _address(process))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        async for line in process.stderr:
            if b'"adapter ready"' in line:
                return line.decode().partition('"listen": ["')[2].partition('"')[0]
    raise AssertionError("it ended before it was ready")


def waiting(folder: Path, run_id: str, *, adapter: str = "") -> pb.ExecuteRequest:
    """Return a request for a run that prints ``ready``, and ends once a file of its id is in the folder."""
    script = f'echo ready; until [ -e "{folder}/{run_id}" ]; do sleep 0.05; done; echo over'
    config = {"command": "sh", "args": ["-c", script]}
    request = execute_request(adapter, "", cwd=str(folder), config=config)
    request.run_id = run_id
    request.orphan_after.FromSeconds(60)
    return request


def finish(folder: Path, run_id: str) -> None:
    (folder / run_id).touch()


async def started(stream: Any) -> None:
    """Read until the program has said ``ready``."""
    async for event in stream:
        if "ready" in event.log.text:
            return
    raise AssertionError("the run ended before it began")


async def refused(address: str) -> DragomanError:
    """Return why a new run is refused, once one is."""
    caller = Caller(address)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                request = execute_request("process", "", cwd="/", config={"command": "true"})
                with contextlib.suppress(EOFError):
                    return await Stream(caller.adapter.Execute(request)).error()
    finally:
        await caller.close()


async def test_live_runs_may_continue_while_new_ones_are_refused(folder: Path) -> None:
    async with adapter(f"unix:{folder}/a.sock", "--drain-grace", "60") as served, Client(served.address) as client:
        async with client.execute(waiting(folder, "r")) as run:
            await started(run)
            served.process.terminate()
            error = await refused(served.address)
            assert error.reason is Reason.DRAINING
            assert error.retry_after_s
            async with client.attach("r") as another:  # who follows one is still served
                await started(another)
            finish(folder, "r")
            async for _event in run:
                pass
        assert run.result is not None
        assert run.result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert await served.ended() == 0


@pytest.mark.parametrize("signals", [1, 2])
async def test_after_the_grace_or_a_second_signal_live_runs_are_cancelled(folder: Path, signals: int) -> None:
    grace = "0.3" if signals == 1 else "1000"
    variables = {"DRAGOMAN_DRAIN_GRACE": grace}
    async with adapter(f"unix:{folder}/a.sock", **variables) as served, Client(served.address) as client:
        async with client.execute(waiting(folder, "r")) as run:
            await started(run)
            served.process.terminate()
            await refused(served.address)
            if signals == 2:
                served.process.send_signal(signal.SIGINT)
            async for _event in run:
                pass
        assert run.result is not None
        assert run.result.outcome == event_pb2.OUTCOME_CANCELLED
        assert run.result.tree_confirmed_dead
        assert await served.ended() == 0


async def test_a_grace_that_is_no_time_is_refused(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman.cli.main", "adapter", "serve", "process", "--listen", f"unix:{folder}/a"),
        env={**os.environ, "DRAGOMAN_DRAIN_GRACE": "5m"},
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2
    assert b"DRAGOMAN_DRAIN_GRACE" in output
    assert b"5m" in output


async def test_a_new_router_takes_over_the_runs_of_an_adapter_that_drains(folder: Path) -> None:
    address = f"unix:{folder}/a.sock"
    fields = {"addresses": [address], "drain_grace_s": 0}
    async with adapter(address, "--drain-grace", "60") as served:
        async with router_program(folder, **fields) as (process, caller):
            await caller.until("process", READY)
            first = caller.adapter.Execute(waiting(folder, "r", adapter="process"))
            await started(first)
            served.process.terminate()
            await caller.until("process", UNAVAILABLE)
            process.kill()
            await process.wait()
        async with router_program(folder, **fields) as (_, caller):
            second = caller.adapter.Attach(pb.AttachRequest(run_id="r"))
            await started(second)  # readers may join once the adapter is reached
            finish(folder, "r")
            events = [event async for event in second]
            assert events[-1].result.outcome == event_pb2.OUTCOME_SUCCEEDED
        assert await served.ended() == 0


async def test_a_rolling_restart_of_adapters_loses_no_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_TOKEN", TOKEN)
    (tmp_path / "namespace").write_text("agents")
    (tmp_path / "token").write_text("t1\n")
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(FakeKubernetesApi())
        fields = {"kubernetes": "part-of=dragoman", "kubernetes_account": tmp_path, "kubernetes_url": api.url}
        router, caller = await stack.enter_async_context(routing(config(folder, **fields)))
        client = await stack.enter_async_context(Client(router.addresses[0]))
        present: Adapter | None = None
        outcomes: list[int] = []
        is_over = asyncio.Event()

        async def load() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                request = execute_request("process", "", cwd=str(folder), config={"command": "true"})
                async with client.execute(request) as run:
                    async for _event in run:
                        pass
                assert run.result is not None
                outcomes.append(run.result.outcome)

        loading: list[asyncio.Task[None]] = []
        live: list[Any] = []
        retiring: list[Adapter] = []
        for generation in range(3):
            following = await stack.enter_async_context(adapter("127.0.0.1:0", "--drain-grace", "60"))
            api.put(following.slice)
            await caller.until_listed(lambda entries: any(one.state == READY for one in entries))
            if present is not None:
                retiring.append(present)
                present.process.terminate()  # at once, without the pause of a preStop hook
            else:
                loading = [asyncio.ensure_future(load()) for _ in range(2)]
            present = following
            run = await stack.enter_async_context(
                client.execute(waiting(folder, f"live-{generation}", adapter="process"))
            )
            await started(run)
            live.append(run)
        is_over.set()
        await asyncio.wait_for(asyncio.gather(*loading), PATIENCE_S)
        for generation, run in enumerate(live):
            finish(folder, f"live-{generation}")
            async for _event in run:
                pass
        assert {run.result.outcome for run in live} == {event_pb2.OUTCOME_SUCCEEDED}
        assert set(outcomes) == {event_pb2.OUTCOME_SUCCEEDED}
        assert [await one.ended() for one in retiring] == [0, 0]
