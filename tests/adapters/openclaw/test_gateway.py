"""Which gateway a run gets, with gateways that are no programs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dragoman.adapters.openclaw import gateway as module
from dragoman.adapters.openclaw.environment import Setting
from dragoman.adapters.openclaw.gateway import Gateways
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
        gateway = cls(setting, module.GatewayFolder(Path("/nowhere")), 1, "token")
        gateway.well, gateway.ends, gateway.ended = True, True, []
        cls.started.append(gateway)
        return gateway

    well = False
    ends: bool
    ended: list[tuple[str, bool]]

    @property
    def is_alive(self) -> bool:
        return self.well

    async def is_healthy(self) -> bool:
        return self.well

    async def end_run(self, marker: str, *, is_alone: bool) -> bool:
        self.ended.append((marker, is_alone))
        return self.ends

    async def stop(self) -> bool:
        self.well = False
        return True


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
    first, second = await asyncio.gather(gateways.acquire(setting()), gateways.acquire(setting()))
    assert first is second
    assert await gateways.acquire(setting(state="/t")) is not first
    first.well = False  # type: ignore[attr-defined]  # a pretended one
    assert await gateways.acquire(setting()) is not first
    assert len(kind.started) == 3


async def test_another_setting_waits_until_no_run_uses_the_first(kind: Any) -> None:
    gateways = Gateways()
    first = await gateways.acquire(setting())
    waiting = asyncio.ensure_future(gateways.acquire(setting("b")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    await gateways.release(first, "m")
    assert (await waiting).setting == setting("b")
    assert not first.is_alive
    assert len(kind.started) == 2


async def test_a_start_that_fails_is_tried_again_by_the_next(kind: Any) -> None:
    gateways = Gateways()
    kind.fails = True
    with pytest.raises(FailureError):
        await gateways.acquire(setting())
    kind.fails = False
    assert (await gateways.acquire(setting())).is_alive


async def test_a_start_that_failed_after_its_runs_were_gone_is_repeated_too(kind: Any) -> None:
    gateways = Gateways()
    kind.fails = True
    waiting = asyncio.ensure_future(gateways.acquire(setting()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    for _ in range(5):
        await asyncio.sleep(0)
    kind.fails = False
    assert (await gateways.acquire(setting())).is_alive


@pytest.mark.parametrize("turns", range(6))
async def test_whenever_who_waits_goes_away_the_next_has_what_was_started(kind: Any, turns: int) -> None:
    gateways = Gateways()
    waiting = asyncio.ensure_future(gateways.acquire(setting()))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await gateways.acquire(setting())).is_alive
    assert len(kind.started) == 1


async def test_so_is_one_that_could_not_even_be_tried(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways()
    with monkeypatch.context() as full:
        full.setattr(kind, "start", _no_room)
        with pytest.raises(OSError, match="no room"):
            await gateways.acquire(setting())
    assert (await gateways.acquire(setting())).is_alive


async def _no_room(_: Setting) -> module.Gateway:
    raise OSError("no room")


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("another gateway instance is already listening on ws://127.0.0.1:1", "openclaw_port_taken"),
        ("maintenance deferred: state lease heartbeat did not become ready (phase=startup)", "openclaw_gateway_late"),
    ],
)
async def test_one_that_could_not_start_just_then_is_started_again_elsewhere(
    tmp_path: Path, printed: str, code: str
) -> None:
    starts = tmp_path / "ports"
    refuses = program(tmp_path, f'echo $OPENCLAW_GATEWAY_PORT >>"{starts}"\necho "{printed}"')
    with pytest.raises(FailureError, match="ended while it started") as caught:
        await module.Gateway.start(refuses)
    assert caught.value.info.code == code
    assert len(starts.read_text().split()) == 3


async def test_it_is_started_in_a_folder_of_its_own_with_a_token_of_its_own(tmp_path: Path) -> None:
    refuses = program(tmp_path, f'{{ pwd; env; }} >"{tmp_path}/started"\necho "Config invalid"')
    with pytest.raises(FailureError):
        await module.Gateway.start(refuses)
    folder, *variables = (tmp_path / "started").read_text().splitlines()
    found = dict(line.partition("=")[::2] for line in variables)
    assert len(found["OPENCLAW_GATEWAY_TOKEN"]) > 30
    assert 0 < int(found["OPENCLAW_GATEWAY_PORT"]) < 65536
    assert found["TMPDIR"] == f"{folder}/tmp"
    assert found["OPENCLAW_CONFIG_PATH"] == f"{folder}/openclaw.json"
    assert found["OPENCLAW_STATE_DIR"] == str(refuses.state_dir)
    assert found["OPENCLAW_INCLUDE_ROOTS"] == str(refuses.config.resolve().parent)


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
    taken = [await gateways.acquire(setting()), await gateways.acquire(setting(state="/t"))]
    await gateways.close()
    assert not any(item.is_alive for item in taken)
    await gateways.release(taken[0], "m")
    assert len(kind.started) == 2


async def test_a_run_is_ended_alone_only_if_no_other_is_there(kind: Any) -> None:
    gateways = Gateways()
    gateway: Any = await gateways.acquire(setting())
    await gateways.acquire(setting())
    assert await gateways.release(gateway, "first")
    assert await gateways.release(gateway, "second")
    assert gateway.ended == [("first", False), ("second", True)]
    assert gateway.is_alive, "it stays warm"


@pytest.mark.parametrize("left", ["process", "turn"])
async def test_what_cannot_be_ended_beside_other_runs_ends_with_the_gateway(kind: Any, left: str) -> None:
    gateways = Gateways()
    gateway: Any = await gateways.acquire(setting())
    await gateways.acquire(setting())
    gateway.ends = left != "process"
    assert not await gateways.release(gateway, "first", has_stopped=left != "turn")
    assert gateway.is_alive, "another run uses it"
    gateway.ends = True
    assert await gateways.release(gateway, "second")
    assert not gateway.is_alive
    assert await gateways.acquire(setting()) is not gateway


async def test_no_run_begins_while_the_last_one_is_ended(kind: Any) -> None:
    gateways = Gateways()
    gateway: Any = await gateways.acquire(setting())
    coming: list[asyncio.Task[module.Gateway]] = []

    async def end_run(_marker: str, *, is_alone: bool) -> bool:
        assert is_alone
        coming.append(asyncio.ensure_future(gateways.acquire(setting())))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not coming[0].done()
        return True

    gateway.end_run = end_run
    assert await gateways.release(gateway, "m")
    assert await coming[0] is gateway


async def test_it_is_looked_for_now_and_then_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(min(seconds, 0.01))

    monkeypatch.setattr(asyncio, "sleep", note)
    with pytest.raises(FailureError, match="ended while it started"):
        await module.Gateway.start(program(tmp_path, "sleep 0.2"))
    assert pauses
    assert min(pauses) >= 0.1, "a tight loop"


async def test_one_that_neither_ends_nor_answers_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has said: it had its time."""
    monkeypatch.setattr(module, "_START_LIMIT_S", 0.3)
    starts = tmp_path / "starts"
    script = f'echo >>"{starts}"\necho "already listening on"\nexec sleep 60'
    with pytest.raises(FailureError, match="does not answer") as caught:
        await module.Gateway.start(program(tmp_path, script))
    assert caught.value.info.code == "openclaw_gateway_silent"
    assert len(starts.read_text().splitlines()) == 1
