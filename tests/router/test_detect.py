"""Detect at the router: all at once, from the cache, and looked for anew."""

import asyncio
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from dragoman.router.system import SystemClock
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

from tests.router.harness import PATIENCE_S, Caller, config, manifest, routing
from tests.router.sidecar import Sidecar, serving

READY = router_pb2.ADAPTER_STATE_READY


@pytest.fixture
def executable(folder: Path) -> Path:
    path = folder / "agent"
    path.write_text("one")
    return path


def found(path: Path, **fields: Any) -> Sidecar:
    """Return an adapter that finds its agent."""
    sidecar = Sidecar()
    defaults: dict[str, Any] = {
        "adapter": "fake",
        "available": True,
        "executable": str(path),
        "version": "1",
        "auth": pb.AUTH_STATE_OK,
        "confidence": pb.DETECTION_CONFIDENCE_CONFIDENT,
    }
    sidecar.detections = [pb.Detection(**{**defaults, **fields})]
    return sidecar


def addressed(folder: Path, **fields: Any) -> Any:
    return config(folder, addresses=(f"unix:{folder}/a.sock",), **fields)


async def detect(caller: Caller, **fields: Any) -> pb.Detection:
    fields.setdefault("adapter", "fake")
    response = await caller.adapter.Detect(pb.DetectRequest(**fields), timeout=PATIENCE_S)
    (detection,) = response.detections
    return detection


async def test_a_good_finding_is_cached_also_over_a_restart(folder: Path, executable: Path) -> None:
    sidecar = found(executable)
    async with serving(sidecar, f"unix:{folder}/a.sock"):
        async with routing(addressed(folder)) as (_, caller):
            await caller.until("fake", READY)
            assert not (await detect(caller)).cached
            again = await detect(caller)
            assert again.cached
            assert again.version == "1"
            assert len(sidecar.requests("Detect")) == 1
        file = folder / "s" / "detections.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        async with routing(addressed(folder)) as (_, caller):
            await caller.until("fake", READY)
            assert (await detect(caller)).cached


async def test_a_cached_finding_starts_no_process(folder: Path) -> None:
    configured = config(folder, manifests=(manifest(folder, "fake"),))
    async with routing(configured) as (_, caller):
        assert not (await detect(caller)).cached
    async with routing(configured) as (_, caller):
        assert (await detect(caller)).cached
        assert (await caller.entry("fake")).state == router_pb2.ADAPTER_STATE_IDLE


@pytest.mark.parametrize(
    "fields",
    [
        {"refresh": True},
        {"env": {"PATH": "/elsewhere"}},
        {"config": {"fields": {"command": {"string_value": "other"}}}},
    ],
)
async def test_requests_that_ask_anew(folder: Path, executable: Path, fields: dict[str, Any]) -> None:
    sidecar = found(executable)
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(addressed(folder)) as (_, caller):
        await caller.until("fake", READY)
        await detect(caller)
        sidecar.detections[0].version = "2"
        assert (await detect(caller, **fields)).version == "2"
        # What was found with settings of one caller is not what others get.
        expected = "2" if fields == {"refresh": True} else "1"
        cached = await detect(caller)
        assert cached.cached
        assert cached.version == expected


@pytest.mark.parametrize("change", ["content", "time", "gone", "age", "version", "corrupt", "format", "key"])
async def test_what_makes_a_cached_finding_stale(
    folder: Path, executable: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    sidecar = found(executable)
    file = folder / "s" / "detections.json"
    async with serving(sidecar, f"unix:{folder}/a.sock"):
        async with routing(addressed(folder)) as (_, caller):
            await caller.until("fake", READY)
            await detect(caller)
        content = file.read_text()
        if change == "content":
            executable.write_text("another")
        elif change == "time":
            os.utime(executable, ns=(1, 1))
        elif change == "gone":
            executable.unlink()
        elif change == "version":
            file.write_text(content.replace('"router_version":"', '"router_version":"9'))
        elif change == "corrupt":
            file.write_text(content[:40])
        elif change == "key":
            monkeypatch.setenv("FAKE_API_KEY", "x")
        elif change == "format":
            file.write_text(content.replace('"format":3', '"format":2'))
        ttl_s = 0.0 if change == "age" else 3600.0
        async with routing(addressed(folder, detect_ttl_s=ttl_s)) as (_, caller):
            await caller.until("fake", READY)
            assert not (await detect(caller)).cached
            assert len(sidecar.requests("Detect")) == 2


MENDABLE = [
    {"available": False, "executable": "", "confidence": pb.DETECTION_CONFIDENCE_ABSENT},
    {"auth": pb.AUTH_STATE_MISSING},
    {"auth": pb.AUTH_STATE_EXPIRED},
]


@pytest.mark.parametrize("change", ["nothing", "installed", "home", "login", "variable", "age"])
@pytest.mark.parametrize("fields", MENDABLE)
async def test_what_people_will_repair_is_cached_until_they_do_something(
    folder: Path, executable: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], change: str
) -> None:
    places = {name: folder / name for name in ("bin", "home", "config")}
    for place in places.values():
        place.mkdir()
        os.utime(place, ns=(1, 1))
    monkeypatch.setenv("PATH", str(places["bin"]))
    monkeypatch.setenv("HOME", str(places["home"]))
    sidecar = found(executable, config_dir=str(places["config"]), **fields)
    now = [time.time()]
    monkeypatch.setattr(SystemClock, "time", lambda _self: now[0])
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(addressed(folder)) as (_, caller):
        await caller.until("fake", READY)
        await detect(caller)
        assert (await detect(caller)).cached
        if change == "variable":
            monkeypatch.setenv("SOME_NEW_KEY", "x")
        elif change == "age":
            now[0] += 61
        elif change != "nothing":
            (places[{"installed": "bin", "login": "config"}.get(change, "home")] / "new").touch()
        assert (await detect(caller)).cached == (change == "nothing")


@pytest.mark.parametrize(
    "fields",
    [{"problems": [pb.DetectionProblem(code="version_timeout")]}, {"executable": "/nonexistent/agent"}],
)
async def test_what_is_not_sure_is_not_cached(folder: Path, executable: Path, fields: dict[str, Any]) -> None:
    sidecar = found(executable, **fields)
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(addressed(folder)) as (_, caller):
        await caller.until("fake", READY)
        await detect(caller)
        assert not (await detect(caller)).cached


async def test_an_agent_that_needs_no_executable_is_cached(folder: Path, executable: Path) -> None:
    none = pb.DETECTION_CONFIDENCE_NOT_APPLICABLE
    sidecar = found(executable, executable="", confidence=none, auth=pb.AUTH_STATE_NOT_NEEDED)
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(addressed(folder)) as (_, caller):
        await caller.until("fake", READY)
        await detect(caller)
        assert (await detect(caller)).cached


async def test_all_are_asked_at_once_and_the_unreachable_are_findings(folder: Path, executable: Path) -> None:
    slow, quick = Sidecar("slow"), found(executable)
    slow.detect_gate = asyncio.Event()
    sockets = [f"unix:{folder}/{name}.sock" for name in "abc"]
    broken = manifest(folder, "broken", command=[f"{folder}/missing"])
    configured = config(folder, manifests=(broken,), addresses=tuple(sockets), detect_timeout_s=2.5)
    async with (
        serving(slow, sockets[0]),
        serving(quick, sockets[1]),
        routing(configured) as (_, caller),
    ):
        await caller.until("slow", READY)
        await caller.until("fake", READY)
        response = await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)

        by_adapter = {one.adapter: one for one in response.detections}
        assert [one.adapter for one in response.detections] == sorted(by_adapter)
        assert by_adapter["fake"].available
        assert not by_adapter["slow"].available
        assert "did not answer within 2.5 s" in by_adapter["slow"].problems[0].message
        assert "No such file" in by_adapter["broken"].problems[0].message
        assert "is unreachable" in by_adapter[sockets[2]].problems[0].message
        # One that is asked by name is a finding too.
        alone = await detect(caller, adapter="broken")
        assert alone.problems[0].code == "adapter_unavailable"


async def test_an_adapters_own_refusal_to_detect_is_a_status(folder: Path) -> None:
    sidecar = Sidecar()
    sidecar.Detect = None  # type: ignore[assignment,method-assign] # as one that does not serve it
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(addressed(folder)) as (_, caller):
        await caller.until("fake", READY)
        with pytest.raises(Exception, match="not served here") as caught:
            await detect(caller)
        assert caught.value is not None
        response = await caller.adapter.Detect(pb.DetectRequest(), timeout=PATIENCE_S)
        assert "not served here" in response.detections[0].problems[0].message


async def test_a_refresh_looks_for_all_anew(folder: Path, executable: Path) -> None:
    sidecar = found(executable)
    async with serving(sidecar, f"unix:{folder}/a.sock"), routing(addressed(folder)) as (router, caller):
        await caller.until("fake", READY)
        await detect(caller)
        sidecar.detections[0].version = "2"
        sidecar.gate("called Detect").clear()
        router.refresh_detection()
        async with asyncio.timeout(PATIENCE_S):
            await sidecar.gate("called Detect").wait()
            while (now := await detect(caller)).version != "2":
                pass
        assert now.version == "2"
        assert sidecar.requests("Detect")[1].refresh
