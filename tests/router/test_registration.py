"""RegisterAdapter: leases, their end, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters import registry
from dragoman.router.app import Router
from dragoman.v1 import router_pb2
from google.protobuf.duration_pb2 import Duration

from tests.router.harness import PATIENCE_S, Caller, config, failure, kinds, manifest, routing
from tests.router.sidecar import Sidecar, serving
from tests.router.test_watch import GATED, open_gate

READY = router_pb2.ADAPTER_STATE_READY
END = {"end": "SUCCEEDED"}


def address(folder: Path, name: str = "a") -> str:
    return f"unix:{folder}/{name}.sock"


def registering(caller: Caller, where: str, lease: Duration | None = None, **fields: Any) -> Any:
    request = router_pb2.RegisterAdapterRequest(address=where, lease=lease, **fields)
    return caller.router.RegisterAdapter(request, timeout=PATIENCE_S)


def unregistering(caller: Caller, where: str, **fields: Any) -> Any:
    request = router_pb2.UnregisterAdapterRequest(address=where, **fields)
    return caller.router.UnregisterAdapter(request, timeout=PATIENCE_S)


async def refused(caller: Caller, where: str, lease: Duration | None = None, **fields: Any) -> DragomanError:
    return await failure(registering(caller, where, lease, **fields))


async def test_an_adapter_that_registers_is_one_until_it_unregisters(folder: Path) -> None:
    sidecar, where = Sidecar("fake", aliases=["other"]), address(folder)
    async with serving(sidecar, where), routing(config(folder)) as (_, caller):
        announced = {"instance_id": sidecar.instance_id, "adapter": "other"}
        response = await registering(caller, where, Duration(seconds=60), **announced)
        entry = response.adapter
        assert (entry.adapter, entry.state, entry.address) == ("fake", READY, where)
        assert entry.source == router_pb2.ADAPTER_SOURCE_REGISTRATION
        assert entry.lease_expires_at == response.expires_at
        assert 50 < response.expires_at.seconds - entry.since.seconds <= 61
        renewed = await registering(caller, where, Duration(seconds=600), **announced)
        assert renewed.expires_at.seconds - response.expires_at.seconds > 500
        assert len(sidecar.requests("Describe")) <= 2, "what serves is not asked again"
        assert kinds(await caller.execute("other", END).rest()) == ["started", "result"]

        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("input_request")
        assert not (await unregistering(caller, where, instance_id="another")).unregistered
        assert (await unregistering(caller, where, instance_id=sidecar.instance_id)).unregistered
        assert not (await unregistering(caller, where)).unregistered
        await caller.until_gone("fake")
        assert (await caller.execute("fake").error()).reason is Reason.ADAPTER_NOT_FOUND
        await open_gate(caller, "r", adapter="fake")
        assert kinds(await stream.rest()) == ["input_resolved", "text:b", "result"]
        assert (await registering(caller, where)).adapter.state == READY


async def test_the_end_of_a_lease_removes_the_adapter_and_leaves_its_runs(folder: Path) -> None:
    where = address(folder)
    async with serving(Sidecar("fake"), where), routing(config(folder)) as (_, caller):
        await registering(caller, where, Duration(seconds=1))
        stream = caller.execute("fake", *GATED, run_id="r")
        await stream.until("input_request")
        await caller.until_gone("fake")
        await open_gate(caller, "r")
        assert kinds(await stream.rest())[-1] == "result"


async def test_what_is_refused_says_why_and_is_not_listed(folder: Path) -> None:
    where = address(folder)
    configured = config(
        folder,
        manifests=(manifest(folder, "launched", aliases=["shared"]),),
        addresses=(address(folder, "configured"),),
    )
    old, twin, fake = Sidecar("old", revision=0), Sidecar("twin", aliases=["shared"]), Sidecar("fake")
    async with (
        serving(old, address(folder, "old")),
        serving(twin, address(folder, "twin")),
        serving(fake, where),
        routing(configured) as (_, caller),
    ):
        nothing = await refused(caller, address(folder, "nothing"))
        assert nothing.reason is Reason.ADAPTER_UNREACHABLE
        assert "does not answer Describe" in nothing.message
        without = await refused(caller, address(folder, "old"))
        assert without.reason is Reason.ADAPTER_REFUSED
        assert "has no `revision`" in without.message
        taken = await refused(caller, address(folder, "twin"))
        assert taken.reason is Reason.ADAPTER_TAKEN
        assert "'shared' is already used by adapter 'launched' (manifest" in taken.message
        another = await refused(caller, where, instance_id="another")
        assert another.reason is Reason.ADAPTER_UNREACHABLE
        assert "Another process answers" in another.message
        unexpected = await refused(caller, where, adapter="different")
        assert unexpected.reason is Reason.ADAPTER_REFUSED
        assert "is 'fake', not 'different'" in unexpected.message
        for far in ("192.0.2.1:7777", "nonsense", f"unix:{'x' * 200}"):
            assert (await refused(caller, far)).reason is Reason.ADDRESS_UNTRUSTED
        known = await refused(caller, address(folder, "configured"))
        assert known.reason is Reason.ADAPTER_TAKEN
        assert "known from this router's configuration" in known.message
        for lease in (Duration(), Duration(seconds=7200)):
            wrong = await refused(caller, where, lease)
            assert (wrong.reason, wrong.violations[0].path) == (Reason.INVALID_REQUEST, "lease")
        listed = await caller.router.ListAdapters(router_pb2.ListAdaptersRequest())
        assert {entry.adapter for entry in listed.adapters} == {"launched", address(folder, "configured")}


async def test_a_revision_that_is_too_old_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MIN_REVISION", 2)
    async with serving(Sidecar("fake"), address(folder)), routing(config(folder)) as (_, caller):
        error = await refused(caller, address(folder))
        assert error.reason is Reason.REVISION_TOO_OLD
        assert "this router requires 2 or later" in error.message


async def test_a_registration_that_does_not_answer_gives_way_and_one_that_does_stays(folder: Path) -> None:
    first, second = address(folder, "first"), address(folder, "second")
    async with routing(config(folder)) as (_, caller), serving(Sidecar("fake"), second):
        async with serving(Sidecar("fake"), first):
            await registering(caller, first)
            assert (await refused(caller, second)).reason is Reason.ADAPTER_TAKEN
        assert (await registering(caller, second)).adapter.address == second
        entries = await caller.until_listed(lambda all_: [one.address for one in all_] == [second])
        assert entries[0].state == READY


async def test_another_process_at_the_address_renews_the_lease(folder: Path) -> None:
    where = address(folder)
    async with routing(config(folder)) as (_, caller):
        async with serving(Sidecar("fake"), where):
            await registering(caller, where)
        second = Sidecar("fake")
        async with serving(second, where):
            await registering(caller, where, instance_id=second.instance_id)
            await caller.until_listed(
                lambda entries: [one.description.instance_id for one in entries] == [second.instance_id]
            )
            assert kinds(await caller.execute("fake", END).rest()) == ["started", "result"]


async def test_a_router_that_starts_again_finds_the_run_of_an_adapter_that_had_registered(folder: Path) -> None:
    where = address(folder)
    async with serving(Sidecar("fake"), where):
        async with Router(config(folder)) as router:
            caller = Caller(router.addresses[0])
            await registering(caller, where)
            stream = caller.execute("fake", *GATED, run_id="r", orphan_after=Duration(seconds=60))
            before = await stream.until("input_request")
            await caller.close()
        async with routing(config(folder)) as (_, caller):
            following = caller.attach("r", before[-1].sequence)
            await following.until("replay_done")
            entry = await caller.until("fake", READY)
            assert entry.source == router_pb2.ADAPTER_SOURCE_REGISTRATION
            assert entry.HasField("lease_expires_at")
            await open_gate(caller, "r")
            assert kinds(await following.rest())[-2:] == ["text:b", "result"]
            assert (await registering(caller, where)).adapter.state == READY


async def test_who_has_no_token_registers_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.delenv("DRAGOMAN_TOKEN", raising=False)
    async with routing(config(folder, listen=("127.0.0.1:0",))) as (_, caller):
        for call in (
            registering(caller, address(folder)),
            unregistering(caller, address(folder)),
            caller.router.RestartAdapter(router_pb2.RestartAdapterRequest(adapter="fake")),
        ):
            assert (await failure(call)).reason is Reason.TOKEN_REQUIRED


async def test_a_slow_one_keeps_no_other_from_registering(folder: Path) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer nothing until the other side closes."""
        await reader.read()
        writer.close()
        await writer.wait_closed()

    slow = await asyncio.start_unix_server(hold, str(folder / "slow.sock"))
    async with routing(config(folder)) as (_, caller), serving(Sidecar("fake"), address(folder)):
        waiting = asyncio.ensure_future(failure(registering(caller, address(folder, "slow"))))
        assert (await registering(caller, address(folder))).adapter.state == READY
        assert not waiting.done()
        assert (await waiting).reason is Reason.ADAPTER_UNREACHABLE
    slow.close()
    await slow.wait_closed()
