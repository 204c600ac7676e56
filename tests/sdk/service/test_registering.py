"""How long an adapter waits before it tries to register again: longer after each failure."""

import asyncio
from types import SimpleNamespace

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk.registration import Registration, registered

PAUSES_S = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
MODULE = "dragoman.sdk._serving.registering"


@pytest.mark.parametrize("failing", ["open_channel", "_RouterLink._call"])
async def test_it_waits_longer_after_each_failure(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    def fail(*_: object) -> None:
        raise DragomanError(Reason.ADAPTER_UNAVAILABLE, "not now")

    async def connect(*_: object) -> None:
        pass

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == len(PAUSES_S):
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(f"{MODULE}.{failing}", fail)
    monkeypatch.setattr(f"{MODULE}._RouterLink._connected", connect)
    monkeypatch.setattr(f"{MODULE}.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))
    async with registered(Registration(["127.0.0.1:1"]), "127.0.0.1:2", "fake", "i1"):
        await asyncio.sleep(0)  # what sleeps meanwhile and is no registration is not noted
        async with asyncio.timeout(30):
            await enough.wait()
    assert pauses == PAUSES_S
