"""Passing a stream on as it comes: an artifact's pieces, from an adapter or from the router that owns its run."""

import asyncio
from collections.abc import Callable

from dragoman.protocol.server import Context, draining, send_head, write_event
from dragoman.protocol.signals import Signal
from dragoman.router.adapters.channel import StreamCall, received
from dragoman.router.model.tasks import first_of


async def relay(
    call: StreamCall, context: Context, ended_early: Signal, on_message: Callable[[bytes], None] | None = None
) -> None:
    """Write to a caller what an upstream sends, and end the upstream call.

    Args:
        call: the upstream.
        context: the RPC that is answered.
        ended_early: set by the router when it drains.
        on_message: called with each message before the caller gets it.

    Raises:
        DragomanError: the upstream's status, ADAPTER_UNAVAILABLE, or DRAINING.
        PeerGoneError: the caller went away.
    """
    passing = asyncio.ensure_future(_pass(call, context, on_message))
    try:
        await first_of(asyncio.shield(passing), ended_early.wait())
        if not passing.done():
            raise draining()
        await passing
    finally:
        call.cancel()
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)


async def _pass(call: StreamCall, context: Context, on_message: Callable[[bytes], None] | None) -> None:
    is_first = True
    async for message in received(call):
        if on_message is not None:
            on_message(message)
        if is_first:
            await send_head(context)
            is_first = False
        await write_event(context, message)
