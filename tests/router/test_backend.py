"""How long a call waits for an adapter's process that is about to serve again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.adapters.backend import AdapterBackend
from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.context import AdapterContext, Timing
from dragoman.router.adapters.descriptions import DescriptionFolder
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.adapters.launcher import GuardLauncher
from dragoman.router.adapters.registry import AdapterRecord, AdapterRegistry
from dragoman.router.adapters.specs import AdapterSpec, Source
from dragoman.router.model.ports import Processes
from dragoman.router.system import SystemClock
from dragoman.v1 import adapter_pb2

from tests.sdk.running import travel

PATIENCE_S = 2.0


class Resting(AdapterBackend):
    """Has one process, which does not serve at first."""

    def __init__(self) -> None:
        spec = AdapterSpec("fake", Source.ADDRESS)
        context = AdapterContext(
            AdapterRegistry(),
            cast("GuardLauncher", None),
            cast("DescriptionFolder", None),
            SystemClock(),
            cast("Processes", None),
            Timing(patience_s=PATIENCE_S),
        )
        super().__init__(AdapterRecord(spec, 0), context)
        self.instance = AdapterInstance(cast("AdapterChannel", None), adapter_pb2.DescribeResponse())
        self.instance.serving.clear()

    @property
    def is_up(self) -> bool:
        return True

    async def stop(self, grace_s: float) -> None:
        """There is nothing to stop."""

    async def _end_unused(self) -> None:
        """There is nothing to end."""

    async def _acquire(self, instance_id: str) -> AdapterInstance:
        return self.instance


def using(serves_after_s: float) -> Callable[[], Awaitable[AdapterInstance]]:
    async def use() -> AdapterInstance:
        backend = Resting()
        asyncio.get_running_loop().call_later(serves_after_s, backend.instance.serving.set)
        with await backend.use() as instance:
            return instance

    return use


def test_a_call_waits_for_a_process_that_serves_again_soon_and_no_longer() -> None:
    assert travel(using(PATIENCE_S / 2)).serving.is_set()
    with pytest.raises(DragomanError) as caught:
        travel(using(PATIENCE_S * 2))
    assert (caught.value.reason, caught.value.retry_after_s) == (Reason.ADAPTER_UNAVAILABLE, 1.0)
