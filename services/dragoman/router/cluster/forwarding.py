"""Forwarding between routers of one run log: calls go to the router that owns the run, in one hop at most."""

import asyncio
from collections import deque
from typing import Any, Final

import grpc
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.identity import RUN_ID_METADATA_KEY
from dragoman.protocol.server import Context, draining, write_event
from dragoman.protocol.signals import Signal
from dragoman.protocol.wire import peek
from dragoman.router.adapters.channel import AdapterChannel, StreamCall, explained, is_cut
from dragoman.router.adapters.relay import relay
from dragoman.router.model.errors import elsewhere
from dragoman.router.model.stored import StoredRun
from dragoman.router.model.tasks import first_of
from dragoman.v1 import adapter_pb2 as pb
from dragoman.v1 import router_pb2

HOP: Final = "dragoman-hop"
"""Metadata of calls that come from another router; they are not forwarded again."""
_FORWARDED: Final = ((HOP, "1"),)
_ANSWER_S: Final = 2.0
"""How long another router may take to return a run, before its stored state is returned."""
_REMEMBERED: Final = 64
"""How many forwarded events are kept, to know the last sequence; not each event has one."""
_REACH_S: Final = 5.0
"""How long another router may take to accept a call."""


class ReplicaForwarder:
    """The connections to other routers.

    Args:
        peer_name: the name that their certificates are for; empty for the host of their addresses.
    """

    def __init__(self, peer_name: str = "") -> None:
        self._peer_name = peer_name
        self._channels: dict[str, AdapterChannel] = {}

    async def close(self) -> None:
        """End all calls and connections."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))

    async def answer(self, stored: StoredRun, method: str, request: bytes, context: Context) -> bytes:
        """Forward a unary call to the router that owns a run.

        Raises:
            DragomanError: its status, ADAPTER_UNAVAILABLE if it cannot be asked, or ADDRESS_UNTRUSTED if it must
                not be.
        """
        channel = self._channel(stored, context)
        left = context.time_remaining()
        try:
            return await channel.answer(method, request, timeout_s=left, metadata=_FORWARDED)
        except DragomanError as error:
            raise elsewhere(stored.run_id) if is_cut(error) else error from error

    async def relay(
        self, stored: StoredRun, method: str, request: bytes, context: Context, *, ended_early: Signal
    ) -> None:
        """Forward a streaming call, other than of events, to the router that owns a run.

        Raises:
            DragomanError: its status, ADAPTER_UNAVAILABLE, ADDRESS_UNTRUSTED, or DRAINING.
        """
        call = self._channel(stored, context).stream(method, request, metadata=_FORWARDED)
        try:
            await relay(call, context, ended_early)
        except DragomanError as error:
            raise elsewhere(stored.run_id) if is_cut(error) else error from error

    async def get_run(self, stored: StoredRun, context: Context) -> router_pb2.GetRunResponse:
        """Return a run as the router that owns it reports it; as stored, if that router does not answer."""
        request = router_pb2.GetRunRequest(run_id=stored.run_id).SerializeToString()
        service = router_pb2.DESCRIPTOR.services_by_name["RouterService"].full_name
        try:
            channel = self._channel(stored, context)
            answer = await channel.answer(
                "GetRun", request, timeout_s=_ANSWER_S, metadata=_FORWARDED, service=service
            )
        except DragomanError:
            return stored.state
        return router_pb2.GetRunResponse.FromString(answer)

    async def stream(
        self, stored: StoredRun, request: pb.AttachRequest, context: Context, *, ended_early: Signal
    ) -> None:
        """Forward an Attach to the router that owns a run.

        Raises:
            DragomanError: its status, ADAPTER_UNAVAILABLE, or DRAINING.
        """
        call = self._channel(stored, context).stream("Attach", request.SerializeToString(), metadata=_FORWARDED)
        passed: deque[bytes] = deque(maxlen=_REMEMBERED)
        passing = asyncio.ensure_future(self._pass(call, stored.run_id, context, passed))
        try:
            await first_of(asyncio.shield(passing), ended_early.wait())
            if not passing.done():
                raise draining(next((number for data in reversed(passed) if (number := peek(data).sequence)), None))
            await passing
        except TimeoutError as error:
            raise elsewhere(stored.run_id) from error
        except grpc.aio.AioRpcError as error:
            status = explained(error)
            # Not this router drains, and the run continues at another one: the same call finds it there.
            is_draining = status.reason is Reason.DRAINING and not passed
            raise elsewhere(stored.run_id) if is_cut(status) or is_draining else status from error
        finally:
            call.cancel()
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    async def _pass(self, call: StreamCall, run_id: str, context: Context, passed: deque[bytes]) -> None:
        async with asyncio.timeout(_REACH_S):
            await call.initial_metadata()
        message: Any = await call.read()
        # Only now: the other router accepts a call before it is known whether there is a run.
        await context.send_initial_metadata(((RUN_ID_METADATA_KEY, run_id),))
        while message is not grpc.aio.EOF:
            await write_event(context, message)
            passed.append(message)
            message = await call.read()

    def _channel(self, stored: StoredRun, context: Context) -> AdapterChannel:
        address = stored.router
        if not address or came_from_a_router(context):
            raise elsewhere(stored.run_id)
        if address not in self._channels:
            # A writer of the log must not be able to choose where requests, with their secrets, are sent.
            self._channels[address] = AdapterChannel(address, self._peer_name)
        return self._channels[address]


def came_from_a_router(context: Context) -> bool:
    """Return whether another router forwarded a call."""
    return any(key == HOP for key, _value in context.invocation_metadata() or ())
