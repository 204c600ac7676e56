"""Routers of one run log: calls about a run that another one follows are passed on to it, one hop and no more."""

import asyncio
import json
from collections import deque
from typing import Any, Final

import grpc
from dragoman.protocol.errors import DragomanError
from dragoman.protocol.server import Context, draining, write_event
from dragoman.protocol.wire import peek
from dragoman.router._domain.stored import StoredRun
from dragoman.router._rpc.link import Link, StreamCall, elsewhere, explained, first_of, is_cut
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

HOP: Final = "dragoman-hop"
"""Metadata of calls that come from another router; they are not passed on again."""
_TELL_S: Final = 2.0
"""How long another router may take to tell of a run, before what it has written down is told."""
_REMEMBERED: Final = 64
"""Of the events that were passed on so many are kept, to say which one was the last; not each has a sequence."""
_REACH_S: Final = 5.0
"""How long another router may take to take a call."""


class Peers:
    """The connections to other routers."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}

    async def close(self) -> None:
        """End all calls and connections."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    async def answer(self, stored: StoredRun, method: str, request: bytes, context: Context) -> bytes:
        """Ask the router that follows a run.

        Raises:
            DragomanError: its status, or ADAPTER_UNAVAILABLE if it cannot be asked.
        """
        link = self._link(stored, context)
        left = context.time_remaining()
        try:
            return await link.answer(method, request, timeout_s=left, metadata=((HOP, "1"),))
        except DragomanError as error:
            raise elsewhere(stored.run_id) if is_cut(error) else error from error

    async def tell(self, stored: StoredRun, context: Context) -> router_pb2.GetRunResponse:
        """Return what the router that follows a run tells of it; what is kept, if it does not answer."""
        request = router_pb2.GetRunRequest(run_id=stored.run_id).SerializeToString()
        service = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
        try:
            link = self._link(stored, context)
            told = await link.answer("GetRun", request, timeout_s=_TELL_S, metadata=((HOP, "1"),), service=service)
        except DragomanError:
            return stored.state
        return router_pb2.GetRunResponse.FromString(told)

    async def stream(
        self,
        stored: StoredRun,
        request: pb.AttachRequest | pb.ExecuteRequest,
        context: Context,
        *,
        ended_early: asyncio.Event,
    ) -> None:
        """Ask the router that follows a run for its events, and pass them on.

        Raises:
            DragomanError: its status, ADAPTER_UNAVAILABLE, or DRAINING.
        """
        method = "Attach" if isinstance(request, pb.AttachRequest) else "Execute"
        call = self._link(stored, context).stream(method, request.SerializeToString(), metadata=((HOP, "1"),))
        passed: deque[bytes] = deque(maxlen=_REMEMBERED)
        passing = asyncio.ensure_future(self._pass(call, context, passed))
        try:
            await first_of(asyncio.shield(passing), asyncio.ensure_future(ended_early.wait()))
            if not passing.done():
                raise draining(next((number for data in reversed(passed) if (number := peek(data).sequence)), None))
            await passing
        except TimeoutError as error:
            raise elsewhere(stored.run_id) from error
        except grpc.aio.AioRpcError as error:
            told = explained(error)
            raise elsewhere(stored.run_id) if is_cut(told) else told from error
        finally:
            call.cancel()
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    async def _pass(self, call: StreamCall, context: Context, passed: deque[bytes]) -> None:
        async with asyncio.timeout(_REACH_S):
            await call.initial_metadata()
        message: Any = await call.read()
        while message is not grpc.aio.EOF:
            await write_event(context, message)
            passed.append(message)
            message = await call.read()

    def _link(self, stored: StoredRun, context: Context) -> Link:
        address = json.loads(stored.place).get("router", "")
        if not address or came_from_a_router(context):
            raise elsewhere(stored.run_id)
        return self._links.setdefault(address, self._links.get(address) or Link(address))


def came_from_a_router(context: Context) -> bool:
    """Tell whether a call was passed on already."""
    return any(key == HOP for key, _value in context.invocation_metadata() or ())
