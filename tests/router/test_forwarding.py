"""Streams of another router, and the end of the one that was asked for them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.signals import Signal
from dragoman.router.cluster.forwarding import ReplicaForwarder

from tests.router.harness import PATIENCE_S


class Unanswered:
    """A call that its server does not accept."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def stream(self, *_call: object, **_how: object) -> "Unanswered":
        return self

    async def initial_metadata(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    def __aiter__(self) -> "Unanswered":
        self.begun.set()
        return self

    async def __anext__(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("method", ["Attach", "ReadArtifact"])
async def test_a_router_that_drains_does_not_wait_for_one_that_accepts_nothing(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    anything: Any = SimpleNamespace(run_id="r")
    call, ended_early = Unanswered(), Signal()
    monkeypatch.setattr("dragoman.router.cluster.forwarding._REACH_S", 2 * PATIENCE_S)
    monkeypatch.setattr(ReplicaForwarder, "_channel", lambda *_of: call)
    forwarding = asyncio.ensure_future(ReplicaForwarder().stream(anything, method, b"", anything, ended_early))
    async with asyncio.timeout(PATIENCE_S):
        await call.begun.wait()
        ended_early.set()
        with pytest.raises(DragomanError) as caught:
            await forwarding
    assert caught.value.reason is Reason.DRAINING
