"""An adapter of the Python SDK keeps itself registered: through restarts of routers, and until it ends."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from dragoman.protocol.addresses import AddressError
from dragoman.router.app import Router
from dragoman.sdk.registration import Registration, registered
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving

READY = router_pb2.ADAPTER_STATE_READY
END = {"end": "SUCCEEDED"}


def address(folder: Path) -> str:
    return f"unix:{folder}/a.sock"


@contextlib.asynccontextmanager
async def registering(folder: Path, lease_s: float = 30.0) -> AsyncIterator[Sidecar]:
    """Serve an adapter that keeps itself registered at the router of this folder."""
    sidecar = Sidecar("fake")
    registration = Registration([f"unix:{folder}/r.sock"], lease_s=lease_s)
    async with serving(sidecar, address(folder)) as server:
        where = registration.announced(server.addresses)
        async with registered(registration, where, "fake", sidecar.instance_id):
            yield sidecar


async def test_it_registers_when_a_router_comes_and_when_it_comes_again(folder: Path) -> None:
    async with registering(folder, lease_s=3600.0) as sidecar:
        for _ in range(2):
            async with routing(config(folder)) as (_router, caller):
                entry = await caller.until("fake", READY)
                assert entry.source == router_pb2.ADAPTER_SOURCE_REGISTRATION
                assert entry.description.instance_id == sidecar.instance_id
                assert kinds(await caller.execute("fake", END).rest()) == ["started", "result"]


async def test_it_unregisters_at_its_end(folder: Path) -> None:
    async with routing(config(folder)) as (_, caller):
        async with registering(folder, lease_s=3600.0):
            await caller.until("fake", READY)
        await caller.until_gone("fake")


async def test_it_renews_its_lease(folder: Path) -> None:
    async with routing(config(folder)) as (_, caller), registering(folder, lease_s=1.0):
        first = await caller.until("fake", READY)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                entry = await caller.entry("fake")  # it is there all the time
                assert entry.since == first.since
                if entry.lease_expires_at.ToNanoseconds() > first.lease_expires_at.ToNanoseconds() + 2 * 10**9:
                    break
                await asyncio.sleep(0.05)  # there is no event for it


async def test_it_says_why_it_is_refused_and_registers_once_it_may(folder: Path) -> None:
    manifests = folder / "m"
    manifests.mkdir()
    path = manifest(manifests, "fake")
    with structlog.testing.capture_logs() as logs:
        async with routing(config(folder, manifests=(manifests,))) as (_, caller), registering(folder):
            async with asyncio.timeout(PATIENCE_S):
                while not any(  # noqa: ASYNC110 - there is no event for it
                    entry["event"] == "registration refused" and "router" in entry for entry in logs
                ):
                    await asyncio.sleep(0.01)
            path.unlink()
            entry = await caller.until("fake", READY)
            assert entry.source == router_pb2.ADAPTER_SOURCE_REGISTRATION
    refused = [entry for entry in logs if entry["event"] == "registration refused" and "router" in entry]
    assert len(refused) == 1, "once, however often it is"
    assert "already used by adapter 'fake'" in refused[0]["why"]


async def test_the_command_registers_the_adapter_that_it_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    command = ["adapter", "serve", "process", "--listen", address(folder), "--register", f"unix:{folder}/r.sock"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dragoman.cli.main", *command, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with Router(config(folder)) as router:
            caller = Caller(router.addresses[0])
            entry = await caller.until("process", READY)
            assert (entry.address, entry.description.pid) == (address(folder), process.pid)
            process.send_signal(signal.SIGTERM)
            await caller.until_gone("process")
            await caller.close()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_an_address_that_no_router_can_reach_is_refused_at_the_start() -> None:
    assert Registration(()).announced(["0.0.0.0:7"]) == ""
    assert Registration(["unix:/r"]).announced(["unix:/a", "127.0.0.1:7"]) == "unix:/a"
    assert Registration(["unix:/r"], "host.example:7").announced(["0.0.0.0:7"]) == "host.example:7"
    with pytest.raises(AddressError, match="--advertise HOST:PORT"):
        Registration(["unix:/r"]).announced(["0.0.0.0:7"])
    with pytest.raises(AddressError, match="nonsense"):
        Registration(["nonsense"]).announced(["unix:/a"])
