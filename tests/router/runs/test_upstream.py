"""How often a run's stream from its adapter is opened again."""

import asyncio
from typing import cast

from dragoman.router.adapters.channel import AdapterChannel
from dragoman.router.adapters.instance import AdapterInstance
from dragoman.router.runs.upstream import ReconnectPolicy
from dragoman.v1 import adapter_pb2 as pb

from tests.sdk.running import travel


class Connected:
    """A channel that is always connected."""

    async def connected(self) -> None:
        """There is nothing to wait for."""


def test_a_stream_that_breaks_as_soon_as_it_is_opened_is_opened_again_after_a_pause() -> None:
    async def pauses() -> list[float]:
        instance = AdapterInstance(cast("AdapterChannel", Connected()), pb.DescribeResponse())
        policy, loop = ReconnectPolicy(30.0), asyncio.get_running_loop()
        waited = []
        for steady_s in (0.0, 0.0, 0.0, 60.0):
            await asyncio.sleep(steady_s)
            began = loop.time()
            assert await policy.outlast(instance)
            policy.restore()
            waited.append(loop.time() - began)
        return waited

    first, second, third, after_a_minute = travel(pauses)
    assert (first, after_a_minute) == (0.0, 0.0)
    assert min(second, third) > 0.0
