"""Detecting with adapters that come with Dragoman: one process answers for all that have none of their own."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dragoman.router.adapters.launch_spec import LaunchSpec
from dragoman.router.app import Router
from dragoman.router.launching import open_launching
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2
from msgspec.structs import replace

from tests.router.harness import PATIENCE_S, Caller, config

IDLE, READY = router_pb2.ADAPTER_STATE_IDLE, router_pb2.ADAPTER_STATE_READY
TYPES = ["acp", "process"]


@contextlib.asynccontextmanager
async def router_of(folder: Path, *types: str, **fields: str) -> AsyncIterator[Caller]:
    """Run a router of installed adapters; ``fields`` are those of the specification of the last one."""
    configured = config(folder, entry_points=True)
    with open_launching(configured) as launching:
        specs = [spec for spec in launching.specs if spec.name in types]
        specs[-1] = replace(specs[-1], **fields)
        async with Router(configured, replace(launching, specs=specs)) as router:
            caller = Caller(router.addresses[0])
            try:
                yield caller
            finally:
                await caller.close()


async def detect(caller: Caller, **fields: object) -> list[pb.Detection]:
    request = pb.DetectRequest(**fields)  # type: ignore[arg-type]
    found = list((await caller.adapter.Detect(request, timeout=PATIENCE_S)).detections)
    for one in found:
        assert one.HasField("detected_at")
        one.ClearField("detected_at")
    return found


async def test_one_process_says_what_their_own_would(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_DETECT", "false")  # an option of 'dragoman serve', which adapters inherit
    async with router_of(folder, *TYPES) as caller:
        together = await detect(caller)
        entries = [await caller.entry(name) for name in TYPES]
        assert [entry.state for entry in entries] == [IDLE, IDLE]
        assert [entry.description.adapter for entry in entries] == TYPES, "they are described, too"
        assert [found for name in TYPES for found in await detect(caller, adapter=name, refresh=True)] == together
        assert [entry.state for entry in [await caller.entry(name) for name in TYPES]] == [READY, READY]
        before = (folder / "s" / "logs" / "shared-detection.log").stat().st_size
        assert await detect(caller, refresh=True) == together, "their own processes are there now"
        assert (folder / "s" / "logs" / "shared-detection.log").stat().st_size == before


async def test_an_adapter_that_fails_there_is_asked_in_a_process_of_its_own(folder: Path) -> None:
    async with router_of(folder, *TYPES, reference="no.such.module:adapter") as caller:
        found = await detect(caller)
        assert [(one.adapter, one.available) for one in found] == [(name, True) for name in TYPES]
        assert (await caller.entry("acp")).state == IDLE
        assert (await caller.entry("process")).state == READY


@pytest.mark.parametrize("command", ["/no/such/program", "/bin/false"])
async def test_without_that_process_each_is_asked_on_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("dragoman.router.api.detection.detection_launch", lambda _specs: LaunchSpec((command,)))
    async with router_of(folder, *TYPES) as caller:
        assert [one.adapter for one in await detect(caller)] == TYPES
        assert [(await caller.entry(name)).state for name in TYPES] == [READY, READY]
