"""Forwarding between routers of one run log: calls go to the router that owns the run, in one hop at most."""

import asyncio
from collections import deque
from typing import Final

from dragoman.protocol.errors import DragomanError, Reason
from dragoman.protocol.server import Context, draining
from dragoman.protocol.signals import Signal
from dragoman.protocol.wire import peek
from dragoman.router.adapters.channel import AdapterChannel, is_cut
from dragoman.router.adapters.relay import relay
from dragoman.router.model.errors import elsewhere
from dragoman.router.model.stored import StoredRun
from dragoman.router.model.tasks import first_of
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
        self, stored: StoredRun, method: str, request: bytes, context: Context, ended_early: Signal
    ) -> None:
        """Forward a streaming call to the router that owns a run.

        Raises:
            DragomanError: its status, ADAPTER_UNAVAILABLE, ADDRESS_UNTRUSTED, or DRAINING: of events, with the last
                sequence that the caller got.
        """
        call = self._channel(stored, context).stream(method, request, metadata=_FORWARDED)
        is_events, passed = method == "Attach", deque[bytes](maxlen=_REMEMBERED)
        try:
            if is_events:  # the other router accepts an Attach before it is known whether there is a run
                async with asyncio.timeout(_REACH_S):
                    await first_of(call.initial_metadata(), ended_early.wait())
            await relay(call, context, ended_early, on_written=passed.append, run_id=stored.run_id)
        except TimeoutError as error:
            raise elsewhere(stored.run_id) from error
        except DragomanError as error:
            if ended_early.is_set():
                events = reversed(passed) if is_events else ()
                last = next((number for data in events if (number := peek(data).sequence)), None)
                raise draining(last) from error
            # Not this router drains, and the run continues at another one: the same call finds it there.
            is_draining = error.reason is Reason.DRAINING and not passed
            raise elsewhere(stored.run_id) if is_cut(error) or is_draining else error from error
        finally:
            call.cancel()

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
