"""Which gateway a run gets, with gateways that are no programs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.openclaw import gateway as module
from dragoman.adapters.openclaw.gateway import Gateways
from dragoman.adapters.openclaw.setting import Setting
from dragoman.sdk import FailureError, FailureInfo
from dragoman.v1 import event_pb2 as pb


class Pretended(module.Gateway):
    """One that starts at once."""

    started: list["Pretended"]
    fails = False

    @classmethod
    async def start(cls, setting: Setting) -> "Pretended":
        await asyncio.sleep(0)
        if cls.fails:
            raise FailureError(FailureInfo(pb.FAILURE_KIND_SPAWN_FAILED, "no"))
        made = cls(setting, Path("/nowhere"), 1, "token")
        made.well = True
        cls.started.append(made)
        return made

    well = False

    @property
    def is_alive(self) -> bool:
        return self.well

    async def is_well(self) -> bool:
        return self.well

    async def stop(self) -> None:
        self.well = False


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    Pretended.started = []
    monkeypatch.setattr(module, "Gateway", Pretended)
    monkeypatch.setattr(Pretended, "fails", False)
    return Pretended


def setting(key: str = "a", state: str = "/s") -> Setting:
    return Setting("/opt/openclaw", Path(state), Path(state, "openclaw.json"), {"KEY": key})


async def test_runs_share_one_and_a_dead_one_is_replaced(kind: Any) -> None:
    gateways = Gateways()
    first, second = await asyncio.gather(gateways.take(setting()), gateways.take(setting()))
    assert first is second
    assert await gateways.take(setting(state="/t")) is not first
    first.well = False  # type: ignore[attr-defined]  # a pretended one
    assert await gateways.take(setting()) is not first
    assert len(kind.started) == 3


async def test_another_setting_waits_until_nobody_uses_the_first(kind: Any) -> None:
    gateways = Gateways()
    first = await gateways.take(setting())
    waiting = asyncio.ensure_future(gateways.take(setting("b")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    await gateways.leave(first)
    assert (await waiting).setting == setting("b")
    assert not first.is_alive
    assert len(kind.started) == 2


async def test_a_start_that_fails_is_tried_again_by_the_next(kind: Any) -> None:
    gateways = Gateways()
    kind.fails = True
    with pytest.raises(FailureError):
        await gateways.take(setting())
    kind.fails = False
    assert (await gateways.take(setting())).is_alive


async def test_a_start_that_failed_when_nobody_waited_any_more_is_tried_again_too(kind: Any) -> None:
    gateways = Gateways()
    kind.fails = True
    waiting = asyncio.ensure_future(gateways.take(setting()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    for _ in range(5):
        await asyncio.sleep(0)
    kind.fails = False
    assert (await gateways.take(setting())).is_alive


@pytest.mark.parametrize("turns", range(6))
async def test_whenever_who_waits_goes_away_the_next_has_what_was_started(kind: Any, turns: int) -> None:
    gateways = Gateways()
    waiting = asyncio.ensure_future(gateways.take(setting()))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await gateways.take(setting())).is_alive
    assert len(kind.started) == 1


async def test_so_is_one_that_could_not_even_be_tried(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways()
    with monkeypatch.context() as full:
        full.setattr(kind, "start", _no_room)
        with pytest.raises(OSError, match="no room"):
            await gateways.take(setting())
    assert (await gateways.take(setting())).is_alive


async def _no_room(_: Setting) -> module.Gateway:
    raise OSError("no room")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("another gateway instance is already listening on ws://127.0.0.1:1", "openclaw_port_taken"),
        ("maintenance deferred: state lease heartbeat did not become ready (phase=startup)", "openclaw_gateway_late"),
    ],
)
async def test_one_that_could_not_start_just_then_is_started_again_elsewhere(
    tmp_path: Path, said: str, code: str
) -> None:
    starts = tmp_path / "ports"
    refuses = program(tmp_path, f'echo $OPENCLAW_GATEWAY_PORT >>"{starts}"\necho "{said}"')
    with pytest.raises(FailureError, match="ended while it started") as caught:
        await module.Gateway.start(refuses)
    assert caught.value.info.code == code
    assert len(starts.read_text().split()) == 3


async def test_one_that_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "ports"
    refuses = program(tmp_path, f'echo $OPENCLAW_GATEWAY_PORT >>"{starts}"\necho "Config invalid"')
    with pytest.raises(FailureError, match="Config invalid") as caught:
        await module.Gateway.start(refuses)
    assert caught.value.info.code == "openclaw_gateway_ended"
    assert len(starts.read_text().split()) == 1


def program(folder: Path, script: str) -> Setting:
    """Return a setting whose OpenClaw does that, and ends."""
    path = folder / "openclaw"
    path.write_text(f"#!/bin/sh\n{script}\nexit 1\n")
    path.chmod(0o755)
    return Setting(str(path), folder, folder / "openclaw.json", {})


async def test_all_are_ended(kind: Any) -> None:
    gateways = Gateways()
    made = [await gateways.take(setting()), await gateways.take(setting(state="/t"))]
    await gateways.close()
    assert not any(item.is_alive for item in made)
    await gateways.leave(made[0])
    assert len(kind.started) == 2
