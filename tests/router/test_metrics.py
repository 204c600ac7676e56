"""What Prometheus reads of routers and adapters, and that nothing is kept where it does not."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dragoman.client import Client, execute_request
from dragoman.protocol.addresses import AddressError
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2
from prometheus_client.parser import text_string_to_metric_families

from tests.router.harness import PATIENCE_S, Caller, config, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_draining import adapter, finish, started, waiting

SECRET = "q4Lm-metrics-Tz93-8rWx"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def scrape(port: int) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


async def samples(port: int) -> dict[str, float]:
    """Return the numbers that are served by name and labels, e.g. ``dragoman_runs_total{fake,SUCCEEDED}``."""
    found = {}
    for family in text_string_to_metric_families(await scrape(port)):
        for sample in family.samples:
            labels = ",".join(value for _, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@contextlib.asynccontextmanager
async def measured(folder: Path, **fields: object) -> AsyncIterator[tuple[Caller, Sidecar, int]]:
    """Run a router, with an adapter ``fake``, whose metrics are served."""
    port, sidecar = free_port(), Sidecar()
    address = f"unix:{folder}/a.sock"
    async with serving(sidecar, address):
        configured = config(folder, addresses=(address,), metrics=str(port), **fields)
        async with routing(configured) as (_router, caller):
            await caller.until("fake", router_pb2.ADAPTER_STATE_READY)
            yield caller, sidecar, port


async def test_a_router_counts_its_calls_and_runs(folder: Path) -> None:
    async with measured(folder) as (caller, sidecar, port):
        await caller.execute("fake", "a", "b", {"end": "SUCCEEDED"}).rest()
        await caller.execute("fake", {"failed": "AUTH_REQUIRED"}).rest()
        assert await caller.execute("fake", {"end": "SUCCEEDED"}).rest_or_error()  # its circuit breaker is open
        request = pb.ExecuteRequest(adapter="fake", prompt='[{"gate": "g"}]', auth_token=SECRET, run_id="live-run")
        live = caller.adapter.Execute(request)
        await live.read()
        found = await samples(port)
        assert found["dragoman_runs_total{fake,SUCCEEDED}"] == 1
        assert found["dragoman_runs_total{fake,FAILED}"] == 1
        assert found["dragoman_runs_total{fake,REJECTED}"] == 1
        assert found["dragoman_rpcs_total{OK,,Execute}"] == 2
        assert found["dragoman_rpcs_total{UNAVAILABLE,BREAKER_OPEN,Execute}"] == 1
        assert found["dragoman_open_breakers{fake}"] == 1
        assert found["dragoman_live_runs{fake}"] == 1
        assert found["dragoman_adapter_usable{fake}"] == 1
        assert found["dragoman_queued_runs{fake}"] == 0
        assert found["dragoman_run_log_failing"] == 0
        assert found["dragoman_run_log_lost_events_total"] == 0
        assert found["dragoman_run_duration_seconds_count{fake}"] == 3
        assert found["dragoman_events_total{fake}"] == 4 + 2 + 1
        text = await scrape(port)
        assert SECRET not in text
        assert "live-run" not in text
        sidecar.open("g")
        live.cancel()


async def test_runs_that_wait_for_a_slot_are_counted(folder: Path) -> None:
    async with measured(folder, max_runs={"fake": 1}) as (caller, sidecar, port):
        first = caller.execute("fake", {"gate": "g"}, {"end": "SUCCEEDED"})
        await first.until("started")
        admission = pb.Admission()
        admission.longest_wait.FromSeconds(60)
        second = caller.execute("fake", {"end": "SUCCEEDED"}, admission=admission)
        await second.run_id()
        async with asyncio.timeout(PATIENCE_S):
            while (await samples(port))["dragoman_queued_runs{fake}"] != 1:
                pass
        sidecar.open("g")
        await first.rest()
        await second.rest()
        assert (await samples(port))["dragoman_events_total{fake}"] == 4


async def test_the_delay_of_the_event_loop_is_measured(folder: Path) -> None:
    async with measured(folder) as (_caller, _sidecar, port):
        async with asyncio.timeout(PATIENCE_S):
            while not (await samples(port))["dragoman_event_loop_delay_seconds_count"]:
                pass
        assert (await samples(port))["process_cpu_seconds_total"] > 0


async def test_an_adapter_in_its_own_process_is_measured(folder: Path) -> None:
    port = free_port()
    async with (
        adapter(f"unix:{folder}/a.sock", DRAGOMAN_METRICS=str(port)) as served,
        Client(served.address) as client,
    ):
        async with client.execute(execute_request("", "", cwd="/", config={"command": "true"})) as run:
            async for _event in run:
                pass
        async with client.execute(waiting(folder, "r")) as run:
            await started(run)
            found = await samples(port)
            assert found["dragoman_live_runs{process}"] == 1
            assert found["dragoman_runs_total{process,SUCCEEDED}"] == 1
            assert found["dragoman_rpcs_total{OK,,Execute}"] == 1
            assert found["dragoman_events_total{process}"] > 4
            finish(folder, "r")
            async for _event in run:
                pass
        served.process.terminate()
        assert await served.ended() == 0


async def test_an_address_that_is_taken_is_named(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            AddressError, match=f"metrics cannot be served at 127.0.0.1:{port}: Address already in use"
        ):
            async with routing(config(folder, metrics=str(port))):
                pass


def test_without_an_address_nothing_of_it_is_imported() -> None:
    program = "import sys, dragoman.router.app, dragoman.sdk; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE_S).returncode == 0
