"""The connection of one client, and the one place where gRPC's errors become ours."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc
from dragoman.protocol.errors import DragomanError, from_rpc_error
from dragoman.protocol.limits import channel_options
from dragoman.v1 import adapter_pb2_grpc, router_pb2_grpc

_T = TypeVar("_T")
_UNDECIDED = frozenset({grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING})


class Link:
    """A channel with its stubs.

    Args:
        address: ``unix:/path`` or ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # A Unix socket may be a busy adapter's own, towards which bandwidth probing costs memory.
        local = address.startswith("unix:")
        self._channel = grpc.aio.insecure_channel(address, options=channel_options(address, local=local))
        self.adapter: adapter_pb2_grpc.AdapterServiceAsyncStub = adapter_pb2_grpc.AdapterServiceStub(self._channel)
        self.router: router_pb2_grpc.RouterServiceAsyncStub = router_pb2_grpc.RouterServiceStub(self._channel)
        self.connected = False
        """Whether there ever was a connection."""
        self.closed = False

    async def close(self) -> None:
        """Close the channel; whatever still runs on it ends."""
        self.closed = True
        await self._channel.close()

    async def look(self) -> None:
        """Find out whether anybody is there, until there once was: a call that fails does not tell.

        Where a connection is refused, nothing that is sent arrives; where one breaks, nobody knows.
        """
        while not self.connected and not self.closed:
            state = self._channel.get_state(try_to_connect=True)
            self.connected = state is grpc.ChannelConnectivity.READY
            if state not in _UNDECIDED:
                return
            await self._channel.wait_for_state_change(state)

    async def answer(self, call: Awaitable[_T]) -> _T:
        """Return a unary call's response.

        Raises:
            DragomanError: the call failed.
        """
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            raise self.error(error) from error
        except asyncio.CancelledError:
            if self.closed and not is_cancelling():
                raise closed_error() from None
            raise
        self.connected = True
        return response

    def error(self, error: grpc.aio.AioRpcError) -> DragomanError:
        """Return what the other side, or a hop before it, said."""
        converted = from_rpc_error(error)
        if converted.reason is not None:
            self.connected = True
        return converted


def is_cancelling() -> bool:
    """Tell whether the current task is itself being cancelled.

    gRPC raises ``CancelledError`` as well when only the call was cancelled, e.g. by closing the channel.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def closed_error() -> DragomanError:
    """Return the error for a call on a client that was closed meanwhile."""
    return DragomanError(None, "the client was closed", status=grpc.StatusCode.CANCELLED)
