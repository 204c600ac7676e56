"""A Cancel that a router brings to an adapter, beside what the whole router's tests show of it."""

import asyncio

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.router.runs import state as states
from dragoman.router.runs.cancellation import cancel
from dragoman.v1 import adapter_pb2 as api

from tests.router.runs.test_actor import World


async def test_a_cancel_that_waits_as_the_router_ends_may_be_sent_again_and_ends_no_run() -> None:
    world = World()
    await world.assign()
    request = api.CancelRequest()
    request.grace.FromSeconds(5)
    asking = asyncio.ensure_future(cancel(world.run, request))
    await world.pause()
    await world.run.tasks.end()
    await asyncio.wait([asking])
    error = asking.exception()
    assert isinstance(error, DragomanError)
    assert error.reason is Reason.DRAINING
    assert not states.is_ending(world.run.state)
