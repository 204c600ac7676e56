"""Passing a stream on as it comes, from an adapter or from the router that owns its run."""

import asyncio
from collections.abc import Callable

from dragoman.protocol.server import Context, draining, send_head, write_event
from dragoman.protocol.signals import Signal
from dragoman.router.adapters.channel import StreamCall, received
from dragoman.router.model.tasks import first_of, nothing


async def relay(
    call: StreamCall,
    context: Context,
    ended_early: Signal,
    on_message: Callable[[bytes], object] = nothing,
    on_written: Callable[[bytes], object] = nothing,
    run_id: str = "",
) -> None:
    """Write to a caller what an upstream sends, and end the upstream call.

    Args:
        call: the upstream.
        context: the RPC that is answered.
        ended_early: set by the router when it drains.
        on_message: called with each message before the caller gets it.
        on_written: called with each message once it is written.
        run_id: the run whose ID the caller gets first; empty for none.

    Raises:
        DragomanError: the upstream's status, ADAPTER_UNAVAILABLE, or DRAINING.
        PeerGoneError: the caller went away.
    """

    async def pass_on() -> None:
        is_first = True
        async for message in received(call):
            on_message(message)
            if is_first:
                await send_head(context, run_id)
                is_first = False
            await write_event(context, message)
            on_written(message)

    passing = asyncio.ensure_future(pass_on())
    try:
        await first_of(asyncio.shield(passing), ended_early.wait())
        if not passing.done():
            raise draining()
        await passing
    finally:
        call.cancel()
        passing.cancel()
        await asyncio.gather(passing, return_exceptions=True)
